"""What clients were told of stores, against the committed records of the changelogs.

A place of an answer says how far its partition was: all committed records before that offset, and
none that is not committed, are what the rows come from. A range is read some rows at a time, so its
rows may be from a later moment up to the `max_offset` of its place; never from an earlier one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.chaos.application import STORES
from tests.chaos.asked import Answer, AnsweredPlace, AnsweredRow, Asked, Calm, Followed, ToldChange
from tests.chaos.history import History, Record
from tests.chaos.verdict import Findings

_INF = 1 << 62
Read = Callable[[bytes], Any]


def _text(data: bytes) -> Any:
    return data.decode()


def _number(data: bytes) -> Any:
    return int.from_bytes(data, "big", signed=True)


READ: Mapping[str, Read] = {
    "counts": _number, "totals": orjson.loads, "accounts": _text, "regions": orjson.loads,
    "tiers": orjson.loads, "windows": _number, "sessions": _number,
}  # fmt: skip
"""How the values of a store that is asked for are read."""


def key_bytes(store: str, key: Any) -> bytes:
    """The key of a changelog's record, of a key that JSON has.

    >>> key_bytes("windows", {"key": "a", "window": {"start_ms": 1, "end_ms": 2}})[:9]
    b'a\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01'
    """
    if store not in ("windows", "sessions"):
        return str(key).encode()
    bare, window = key["key"].encode(), key["window"]
    start = int(window["start_ms"]).to_bytes(8, "big")
    if store == "windows":
        return bytes(bare + start + bytes(4))
    return bytes(bare + int(window["end_ms"]).to_bytes(8, "big") + start)


@dataclass(slots=True)
class _Versions:
    """The committed records of one key in one partition."""

    offsets: list[int] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def between(self, offset: int, max_offset: int) -> Iterator[Record | None]:
        """What the row was at an offset, and after each record from there to another offset."""
        index = bisect_left(self.offsets, offset)
        yield self.records[index - 1] if index else None
        yield from self.records[index : bisect_left(self.offsets, max_offset)]


class _Changelogs:
    """Committed records by store, partition and key."""

    def __init__(self, history: History, *, is_exact: bool) -> None:
        self._history = history
        self.is_exact = is_exact
        self._kept: dict[tuple[str, int], dict[bytes, _Versions]] = {}

    def of(self, store: str, partition: int) -> dict[bytes, _Versions]:
        """By key."""
        if (store, partition) not in self._kept:
            made: dict[bytes, _Versions] = defaultdict(_Versions)
            log = self._history.changelog_of(store).get(partition, ())
            for record in log:
                if record.committed and record.key is not None:
                    made[record.key].offsets.append(record.offset)
                    made[record.key].records.append(record)
            self._kept[store, partition] = dict(made)
        return self._kept[store, partition]

    def partitions(self, store: str) -> Iterator[int]:
        """Those of a store."""
        yield from self._history.changelog_of(store)

    def at(self, store: str, place: AnsweredPlace, key: bytes) -> list[Record | None]:
        """What a row may be at a place; what it ever was where records may be written twice.

        A worker that has been replaced may have written between the records of the one that has
        taken over, under at-least-once, and that one does not know of them.
        """
        bounds = (place.offset, place.max_offset) if self.is_exact else (0, _INF)
        found = self.of(store, place.partition).get(key)
        return [None] if found is None else [*found.between(*bounds)]


def check_asked(history: History, findings: Findings, *, drained: bool) -> None:
    """Check all answers, and all changes that were told."""
    asked = history.asked
    if asked is None:
        return
    is_exact = findings.guarantee == "exactly_once_v2"
    logs = _Changelogs(history, is_exact=is_exact)
    reached: dict[tuple[str, str, int], int] = {}
    counted = Counter[str]()
    for answer in asked.answers:
        counted[answer.question] += 1
        _check_answer(answer, logs, findings)
        _check_goes_on(answer, reached, findings)
        counted["hosts"] += _check_host(answer, asked.calm, findings)
    for followed in asked.followed:
        _check_followed(followed, logs, history, findings, drained=drained)
    _count(asked, counted, findings)


def _count(asked: Asked, counted: Mapping[str, int], findings: Findings) -> None:
    figures = findings.figures
    for question in ("key", "keys", "range", "windows"):
        figures[f"answers of the kind: {question}"] = counted.get(question, 0)
    figures["rows in answers"] = sum(
        row is not None for answer in asked.answers for row in answer.rows
    )
    figures["answers while no task moved"] = counted.get("hosts", 0)
    figures["questions without an answer in time"] = asked.refused
    for one in asked.followed:
        figures[f"changes told to follower {one.name}"] = len(one.changes)
        figures[f"resumptions of follower {one.name}"] = one.resumed


# -- answers -------------------------------------------------------------------------------------


def _check_answer(answer: Answer, logs: _Changelogs, findings: Findings) -> None:
    where = f"{answer.store} asked by {answer.client} at {answer.at_s:.3f}"
    if answer.error is not None:
        findings.add("wrong_answer", where, answer.error)
        return
    places = {place.partition: place for place in answer.places}
    if len(places) < len(answer.places):
        findings.add("wrong_answer", where, f"partitions are named twice: {answer.places}")
    for row in answer.rows:
        if row is not None:
            _check_row(answer, row, places.get(row.partition), logs, findings, where)
    if answer.question in ("key", "keys"):
        for key, row in zip(answer.keys, answer.rows, strict=True):
            if row is None:
                _check_none(answer, key, logs, findings, where)
            elif row.key != key:
                findings.add("wrong_answer", where, f"{key!r} was asked for, and {row.key!r} given")
    elif answer.question == "range":
        _check_range(answer, logs, findings, where)


def _check_row(
    answer: Answer,
    row: AnsweredRow,
    place: AnsweredPlace | None,
    logs: _Changelogs,
    findings: Findings,
    where: str,
) -> None:
    if place is None:
        findings.add("wrong_answer", where, f"{row} is of a partition that no place names")
        return
    key = key_bytes(answer.store, row.key)
    possible = logs.at(answer.store, place, key)
    if answer.question == "key":
        possible = possible[: 1 if logs.is_exact else None]
    if not any(_is_same(answer.store, row.value, row.timestamp, record) for record in possible):
        told = (row.value, row.timestamp)
        detail = f"{row.key!r} is {told} at {place}, and was {possible[0]} there"
        findings.add("wrong_answer", where, detail)


def _is_same(store: str, value: Any, timestamp: int, record: Record | None) -> bool:
    if record is None or record.value is None:
        return False
    return record.timestamp == timestamp and bool(_read(store, record.value) == value)


def _read(store: str, data: bytes) -> Any:
    """The value of a record; bytes that nobody can read stand for themselves."""
    try:
        return READ[store](data)
    except ValueError:
        return data


def _check_none(
    answer: Answer, key: Any, logs: _Changelogs, findings: Findings, where: str
) -> None:
    if not answer.places:
        findings.add("wrong_answer", where, f"no place says where {key!r} was looked for")
    for place in answer.places:
        found = logs.at(answer.store, place, key_bytes(answer.store, key))
        possible = found[:1] if answer.question == "key" and logs.is_exact else found
        if all(record is not None and record.value is not None for record in possible):
            detail = f"{key!r} is not there at {place}, and was {possible[0]}"
            findings.add("wrong_answer", where, detail)


def _check_range(answer: Answer, logs: _Changelogs, findings: Findings, where: str) -> None:
    """No row is left out, and they are in order."""
    given = [str(row.key) for row in answer.rows if row is not None]
    low, high = answer.keys
    if given != sorted(set(given)) or any(not low <= key <= high for key in given):
        findings.add("wrong_answer", where, f"rows from {low!r} to {high!r} were {given}")
    end = high if answer.is_whole else (given[-1] if given else low)
    for place in answer.places:
        for key, versions in logs.of(answer.store, place.partition).items():
            if not low <= key.decode() <= end or key.decode() in given:
                continue
            possible = versions.between(place.offset, place.max_offset if logs.is_exact else _INF)
            if all(r is not None and r.value is not None for r in possible):
                detail = f"{key!r} was there at {place}, and is left out from {low!r} to {end!r}"
                findings.add("wrong_answer", where, detail)
    partitions = {place.partition for place in answer.places}
    every = set(logs.partitions(answer.store))
    if every - partitions:
        findings.add("wrong_answer", where, f"partitions {every - partitions} are left out")


def _check_goes_on(
    answer: Answer, reached: dict[tuple[str, str, int], int], findings: Findings
) -> None:
    """No answer is earlier than the newest row of one before it to the same client."""
    for place in answer.places:
        at = (answer.client, answer.store, place.partition)
        before = reached.get(at, 0)
        if place.offset < before:
            where = f"{answer.store} asked by {answer.client} at {answer.at_s:.3f}"
            detail = f"{place} comes after an answer at offset {before}"
            findings.add("answer_went_back", where, detail)
    for place in answer.places:
        at = (answer.client, answer.store, place.partition)
        reached[at] = max(reached.get(at, 0), place.max_offset)


def _check_host(answer: Answer, calm: Calm | None, findings: Findings) -> bool:
    """While no task moves an answer is from its owner; whether it was such a time."""
    if calm is None or not calm.begin_s <= answer.at_s <= calm.end_s or answer.error:
        return False
    for place in answer.places:
        task = f"{STORES[answer.store]}_{place.partition}"
        if calm.owners.get(task) != place.host:
            detail = f"{place} is of task {task}, which {calm.owners.get(task)} had"
            findings.add("wrong_host", f"{answer.store} asked by {answer.client}", detail)
    return True


# -- changes -------------------------------------------------------------------------------------


def _check_followed(
    followed: Followed, logs: _Changelogs, history: History, findings: Findings, *, drained: bool
) -> None:
    """What was told is the committed records of the changelog, each once and in order."""

    def add(detail: str) -> None:
        findings.add("change_mistold", f"{followed.store} followed by {followed.name}", detail)

    for error in followed.errors:
        add(error)
    told: dict[int, list[ToldChange]] = defaultdict(list)
    for change in followed.changes:
        told[change.partition].append(change)
    for partition, log in history.changelog_of(followed.store).items():
        wanted = None if followed.key is None else key_bytes(followed.store, followed.key)
        there = {
            record.offset: record
            for record in log
            if record.committed and (wanted is None or record.key == wanted)
        }
        _check_told(followed.store, told[partition], there, add)
        last = told[partition][-1].offset if told[partition] else -1
        got = {change.offset for change in told[partition]}
        end = _INF if drained else last
        missing = [offset for offset in there if offset not in got and offset < end]
        if missing:
            add(f"{len(missing)} changes of partition {partition} were not told: {missing[:3]}")


def _check_told(
    store: str,
    told: list[ToldChange],
    there: Mapping[int, Record],
    add: Callable[[str], None],
) -> None:
    before = -1
    for change in told:
        if change.offset <= before:
            add(f"{change} was told after offset {before}")
        before = max(before, change.offset)
        record = there.get(change.offset)
        if record is None:
            add(f"{change} is no committed record")
            continue
        value = None if record.value is None else _read(store, record.value)
        key = key_bytes(store, change.key)
        if (record.key, value, record.timestamp) != (key, change.value, change.timestamp):
            add(f"{change} was told of {record}")
