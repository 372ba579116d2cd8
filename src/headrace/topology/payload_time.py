"""Event time from the payload: a timestamp extractor that reads a field of the value.

>>> from headrace import StreamsBuilder, TopologyTestDriver, event_time
>>> builder = StreamsBuilder()
>>> orders = builder.stream("orders", timestamps=event_time("meta.at", on_invalid="drop"))
>>> orders.map_values(lambda order: order["id"]).to("ids")
>>> driver = TopologyTestDriver(builder.build())
>>> driver.input("orders").send("k", {"id": 7, "meta": {"at": "2024-05-01T12:00:00Z"}})
>>> driver.input("orders").send("k", {"id": 8})
>>> [(record.value, record.timestamp) for record in driver.output("ids").read_all()]
[(7, 1714564800000)]
>>> driver.dropped
{('KSTREAM-SOURCE-0000000000', 'invalid event time'): 1}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from math import isfinite
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from headrace.topology.arguments import refuse_other_than_function, require_choice
from headrace.topology.errors import LAST_TIME_MS, InvalidTimeError, TopologyError, type_of
from headrace.topology.timestamps import InputRecord

OnInvalid = Literal["fail", "dead_letter", "drop", "record_time"]

_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_PER_SECOND = {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000, "epoch_ns": 1_000_000_000}
_ISO = "iso8601"
_CLOCK_UNSET_MS = 365 * 86_400_000
"""A clock before 1971 is the test driver's default, so `max_ahead` is not checked against it."""
_NAIVE = "a time without a time zone; add the zone to the data, or give event_time() zone="


def event_time(
    field: str | Callable[[Any], Any],
    *,
    format: str = _ISO,  # noqa: A002
    zone: str | tzinfo | None = None,
    max_ahead: timedelta | None = timedelta(hours=1),
    on_invalid: OnInvalid = "fail",
) -> EventTime:
    """Return an extractor that reads the time of a record from its value.

    Args:
        field: a field of the value, a dotted path to one (``"meta.at"``), or a function that is
            given the value. A datetime is used unchanged, independently of `format`.
        format: "iso8601", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns", or a format of
            `datetime.strptime`, such as ``"%d.%m.%Y %H:%M:%S"``.
        zone: the time zone of times that have none: a name such as "Europe/Oslo", or a tzinfo.
            Without it they are invalid.
        max_ahead: how far a time may be ahead of the worker's clock; None is any time.
        on_invalid: what to do with a record whose time is missing, cannot be read, is before 1970
            or too far ahead. "fail" raises `InvalidTimeError`, about which
            ``deserialization.exception.handler`` decides; "dead_letter" writes the record to the
            dead-letter topic; "drop" drops and counts it; "record_time" uses its own timestamp.

    Raises:
        TopologyError: an argument is not valid.

    Examples:
        >>> event_time("start", format="epoch_s", on_invalid="drop").on_invalid
        'drop'
        >>> event_time("start", format="%d.%m.%Y %H:%M")
        Traceback (most recent call last):
        headrace.topology.errors.TopologyError: event_time(): times of format '%d.%m.%Y %H:%M' \
have no time zone. Give zone=, such as zone="UTC", or add %z to the format.
    """
    if not isinstance(field, str):
        refuse_other_than_function(field, "event_time", "field", 1)
    elif not all(field.split(".")):
        raise TopologyError(f"event_time(): field {field!r} has an empty part. Name a field.")
    if format not in (_ISO, *_PER_SECOND) and "%" not in str(format):
        names = ", ".join((_ISO, *_PER_SECOND))
        raise TopologyError(
            f"event_time(): format {format!r} is not known. Use {names} or a format of "
            "datetime.strptime()."
        )
    require_choice("event_time(): on_invalid", on_invalid, get_args(OnInvalid))
    if max_ahead is not None and (not isinstance(max_ahead, timedelta) or max_ahead < _MS * 0):
        raise TopologyError("event_time(): max_ahead must be a timedelta of 0 or more, or None.")
    if "%" in format and "%z" not in format and zone is None:
        raise TopologyError(
            f"event_time(): times of format {format!r} have no time zone. Give zone=, such as "
            'zone="UTC", or add %z to the format.'
        )
    ahead_ms = None if max_ahead is None else max_ahead // _MS
    return EventTime(field, format, _zone(zone), ahead_ms, on_invalid)


def _zone(zone: str | tzinfo | None) -> tzinfo | None:
    if zone is None or isinstance(zone, tzinfo):
        return zone
    if zone == "UTC":
        return UTC
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, TypeError, OSError):
        raise TopologyError(
            f"event_time(): zone {zone!r} is not a known time zone. Give a name such as "
            '"Europe/Oslo", or a tzinfo.'
        ) from None


@dataclass(frozen=True, slots=True)
class EventTime:
    """Timestamp extractor returned by `event_time`; equal if its arguments are equal."""

    field: str | Callable[[Any], Any]
    format: str
    zone: tzinfo | None
    max_ahead_ms: int | None
    on_invalid: OnInvalid

    @property
    def failure_reaction(self) -> Literal["skip", "dead_letter"] | None:
        """Reaction to a record with an invalid time that overrides the handlers."""
        if self.on_invalid == "dead_letter":
            return "dead_letter"
        return "skip" if self.on_invalid == "drop" else None

    def __call__(self, record: InputRecord, partition_time: int) -> int:
        """Return milliseconds since 1970; raise InvalidTimeError without a valid time."""
        del partition_time
        try:
            return self._time(record)
        except InvalidTimeError:
            if self.on_invalid == "record_time" and 0 <= record.timestamp <= LAST_TIME_MS:
                return record.timestamp
            raise

    def _time(self, record: InputRecord) -> int:
        time = self._parse(self._find(record.value))
        if time < 0:
            raise self._invalid("a time before 1970")
        if time > LAST_TIME_MS:
            raise self._invalid("a time that is too large; check the unit of the format")
        if self.max_ahead_ms is not None:
            now = record.now_ms()
            if time - now > self.max_ahead_ms and now > _CLOCK_UNSET_MS:
                raise self._invalid(f"a time that is {span(time - now)} ahead of the clock")
        return time

    def _find(self, value: Any) -> Any:
        if value is None:
            raise self._invalid("a null value")
        if not isinstance(self.field, str):
            try:
                return self.field(value)
            except Exception as error:
                raise self._invalid(f"a function that raised {type(error).__name__}") from error
        for part in self.field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
            if value is None:
                raise self._invalid("no such field, or null")
        return value

    def _parse(self, value: Any) -> int:
        if isinstance(value, datetime):
            return self._of_datetime(value)
        per_second = _PER_SECOND.get(self.format)
        if per_second is not None:
            return self._of_number(value, per_second)
        if not isinstance(value, str):
            raise self._invalid(f"{type_of(value)}, not a text of format {self.format}")
        try:
            if self.format == _ISO:
                parsed = datetime.fromisoformat(value)
            else:
                parsed = datetime.strptime(value, self.format)
        except ValueError:
            raise self._invalid(f"a text that is not of format {self.format}") from None
        return self._of_datetime(parsed)

    def _of_datetime(self, time: datetime) -> int:
        if time.utcoffset() is None:
            if self.zone is None:
                raise self._invalid(_NAIVE)
            time = time.replace(tzinfo=self.zone)
        return (time - _1970) // _MS

    def _of_number(self, value: Any, per_second: int) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._invalid(f"{type_of(value)}, not a number of {self.format}")
        if isinstance(value, int):
            return value * 1000 // per_second
        if not isfinite(value):
            raise self._invalid("a number that is not finite")
        return round(value * 1_000_000 / per_second) // 1000

    def _invalid(self, what: str) -> InvalidTimeError:
        source = f"field {self.field!r}" if isinstance(self.field, str) else "the value"
        return InvalidTimeError(source, what, self.failure_reaction)


def span(ms: int) -> str:
    """Return a duration in the largest unit that it fills.

    >>> span(7_200_000), span(864_000_000), span(5_000)
    ('2 hours', '10 days', '5 seconds')
    """
    for unit, name in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes")):
        if ms >= 2 * unit:
            return f"{ms // unit} {name}"
    return f"{ms // 1000} seconds"
