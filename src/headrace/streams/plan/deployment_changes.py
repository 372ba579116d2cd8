"""Comparison of a changed topology with the deployed topology: effects on state and topics.

A change is refused at the start if stored data would be silently lost or misread: a renamed store
starts empty, a renamed repartition topic is not read to its end, and serdes such as string and long
cannot read each other's bytes. All other changes are logged, and the application starts: whether a
custom serde can read the bytes of another serde cannot be checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.streams.plan.deployment import (
    DeployedSink,
    DeployedStore,
    DeployedTopic,
    Deployment,
    digest,
    is_digest,
)
from headrace.topology.checks.dropped_fields import dropped_fields
from headrace.topology.checks.unnamed import is_generated
from headrace.topology.naming import repartition_topic
from headrace.topology.serdes.serde_schemas import EXCLUSIVE, unreadable

# The stores of joins of two streams: their names contain the kind of join and start with its name.
#
# Another kind of join has other stores, so the rows of a join are lost if its kind changes,
# regardless of its name.


_STEPS = frozenset({"KeepSide", "join of streams"})
_GIVEN = re.compile(r"(.+?)(?:-(outer|left))?-(this|other|shared)-join-store")
_GENERATED = re.compile(r"KSTREAM-(JOIN|OUTER)(THIS|OTHER|SHARED)-([0-9]{10})-store")


@dataclass(frozen=True, slots=True)
class JoinStores:
    """Join and the names of its stores.

    Args:
        base: the common prefix of the names; None if they are generated.
        number: the number of the join if the names are generated.
    """

    base: str | None
    number: int
    names: frozenset[str]

    @property
    def kind(self) -> str:
        """The kind with its article: "an inner", "a left" or "an outer"."""
        if any(re.search("-outer-this-join-store$|-OUTERTHIS-", name) for name in self.names):
            return "an outer"
        if any(re.search("-outer-other-join-store$|-OUTEROTHER-", name) for name in self.names):
            return "a left"
        return "an inner"


def join_of(store: DeployedStore) -> tuple[str | None, int] | None:
    """Return the name or the number of the join that a store belongs to, or None.

    >>> kept = DeployedStore("op-this-join-store", 0, "", "", "", "", True, (), step="KeepSide")
    >>> join_of(kept)
    ('op', 0)
    """
    if store.step not in _STEPS:
        return None
    generated = _GENERATED.fullmatch(store.name)
    if generated:
        # The two sides of a join have consecutive numbers.
        return None, int(generated[3]) - (generated[2] == "OTHER")
    given = _GIVEN.fullmatch(store.name)
    return (given[1], 0) if given else None


def changed_joins(
    before: Sequence[DeployedStore], after: Sequence[DeployedStore]
) -> Iterator[tuple[JoinStores, JoinStores]]:
    old, new = _joins(before), _joins(after)
    for join, was in old.items():
        now = new.get(join)
        if now is not None and now.kind != was.kind:
            yield was, now


def _joins(stores: Sequence[DeployedStore]) -> dict[tuple[str | None, int], JoinStores]:
    names: dict[tuple[str | None, int], set[str]] = {}
    for store in stores:
        join = join_of(store)
        if join is not None:
            names.setdefault(join, set()).add(store.name)
    return {join: JoinStores(*join, frozenset(found)) for join, found in names.items()}


_NUMBER = re.compile(r"[0-9]{10}")

T = TypeVar("T", DeployedStore, DeployedTopic)
"""Item that is compared by name and shape."""


@dataclass(frozen=True, slots=True)
class TopologyChange:
    """Difference between the deployed and the new topology.

    Args:
        refused: whether the start is refused, unless the change is accepted.
        what: the difference and its effect.
        way_out: the recommended action.
        lets_go: whether stored data is silently dropped although the application starts.
    """

    refused: bool
    what: str
    way_out: str
    lets_go: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.way_out}"


def changes(
    before: Deployment, after: Deployment, *, application_id: str = "<application.id>"
) -> list[TopologyChange]:
    """Compare the deployed topology with the topology about to start; refused changes come first.

    >>> from headrace.streams.plan.deployment import DeployedTopic, Deployment
    >>> one = Deployment(topics=(DeployedTopic("by-word-repartition", "string", "json"),))
    >>> print(*changes(one, Deployment()))
    repartition topic <application.id>-by-word-repartition is not read any more, and records \
that are still in it are lost: let the deployed version read it to its end, with its input \
stopped, and accept the change then
    """
    differences = [*_store_changes(before.stores, after.stores, application_id)]
    differences += _topic_changes(before.topics, after.topics, application_id)
    differences += _filling_changes(before, after, application_id)
    differences += _sink_changes(before.sinks, after)
    return sorted(differences, key=lambda change: not change.refused)


def _store_changes(
    before: Sequence[DeployedStore], after: Sequence[DeployedStore], application_id: str
) -> Iterator[TopologyChange]:
    gone, new, both = _by_name(before, after)
    for old, same in both:
        yield from _differences(old, same, application_id)
    for was, now in changed_joins(before, after):
        gone = [store for store in gone if store.name not in was.names]
        new = [store for store in new if store.name not in now.names]
        yield _join_change(was, now)
    for old, renamed in _pairs(gone, new):
        yield TopologyChange(
            True,
            f"store {old.name} is called {renamed.name} now, so its state begins empty"
            f"{_or_with_older(renamed, application_id)}",
            _way_back(old),
        )
    for old in gone:
        kept = f"; its topic {_changelog(old, application_id)} stays" if old.logged else ""
        yield TopologyChange(
            False, f"store {old.name} is gone{kept}", "headrace reset --all-internal deletes it"
        )
    for fresh in new:
        yield TopologyChange(
            False,
            f"store {fresh.name} is new and starts empty{_or_with_older(fresh, application_id)}, "
            "after input that is already committed",
            "reset the application if it must contain all of the input",
        )


def _changelog(store: DeployedStore, application_id: str) -> str:
    return f"{application_id}-{store.name}-changelog"


def _or_with_older(store: DeployedStore, application_id: str) -> str:
    """Return a note that rows may come from a changelog that an older version has left."""
    if not store.logged or store.source:
        return ""
    topic = _changelog(store, application_id)
    return f", or with the rows that an older version has left in {topic}"


def _join_change(was: JoinStores, now: JoinStores) -> TopologyChange:
    join = f'store="{was.base}"' if was.base else f"{', '.join(sorted(was.names))}"
    return TopologyChange(
        True,
        f"the stream join with {join} was {was.kind} join and is {now.kind} join, which has other "
        f"stores ({', '.join(sorted(now.names))}), so it starts with empty windows",
        "no name keeps them: rename the join and accept the change, or reset the application",
    )


_BUFFERS = (("suppress", "-store"), ("join with a table", "-Buffer"))
"""Kinds of operators that have no argument `store`, and the endings of their stores' names."""


def _way_back(old: DeployedStore) -> str:
    buffer = next((ending for step, ending in _BUFFERS if old.step.startswith(step)), None)
    if buffer is not None and not is_generated(old.name):
        return f'give it the name that is deployed, name="{old.name.removesuffix(buffer)}"'
    join = join_of(old)
    if join is None and buffer is None:
        return f'give it the name that is deployed, store="{old.name}"'
    if join is None or join[0] is None:
        what = "a join" if buffer is None else "this operator"
        return (
            f"no name gives {what} this store back: keep the number of operators before it, or "
            "name it and accept the change, or reset the application"
        )
    return f'give the join the name that is deployed, store="{join[0]}"'


def _differences(
    old: DeployedStore, new: DeployedStore, application_id: str
) -> Iterator[TopologyChange]:
    name = old.name
    if is_generated(name) and old.reads and not set(old.reads) & set(new.reads):
        yield TopologyChange(
            True,
            f"store {name} belonged to an operator downstream of {', '.join(old.reads)} and now "
            f"belongs to an operator downstream of {', '.join(new.reads)}, which would take over "
            "the other's rows",
            'name both operators, store="..."',
        )
    if old.layout != new.layout:
        yield TopologyChange(
            True,
            f"store {name} has rows of a {old.layout} store and would read them as a {new.layout} "
            "store",
            _RENAME,
        )
    yield from _serde_changes(f"store {name}", old, new, _RENAME)
    yield from _step_changes(old, new)
    yield from _schema_changes(f"store {name}", old, new)
    if old.logged != new.logged:
        lost = "has no changelog any more" if old.logged else "has a changelog now, which is empty"
        yield TopologyChange(
            True, f"store {name} {lost}, so its state begins empty", "keep logged= as it was"
        )
    elif old.source and not new.source:
        yield TopologyChange(
            True,
            f"store {name} was restored from its source topic, and now has its own changelog, "
            "which is empty or old, so its state starts wrong",
            "keep reuse.ktable.source.topics in topology.optimization, or reset the application",
        )
    elif new.source and not old.source:
        yield TopologyChange(
            False,
            f"store {name} is restored from the topic that it is read from; its topic "
            f"{_changelog(old, application_id)} is not written any more",
            "headrace reset --all-internal deletes it",
        )
    elif not new.logged and (old.kind, old.sub) != (new.kind, new.sub):
        yield TopologyChange(
            True,
            f"store {name} has no changelog, and its rows of {old.kind} in tasks {old.sub}_* are "
            f"not found as {new.kind} in tasks {new.sub}_*",
            "keep the store's kind and the order of the operators before it, or log the store",
        )
    elif old.sub != new.sub:
        yield TopologyChange(
            False,
            f"store {name} is in tasks {new.sub}_* instead of {old.sub}_*",
            "no action is needed; its local rows are restored from its changelog once",
        )


def is_other_application(before: Deployment, after: Deployment) -> bool:
    """Return whether no store and no topic is the same, as if another application had started."""
    old = {store.name for store in before.stores} | {topic.name for topic in before.topics}
    new = {store.name for store in after.stores} | {topic.name for topic in after.topics}
    shared = {t for s in before.stores for t in s.reads} & {
        t for s in after.stores for t in s.reads
    }
    return bool(old) and not (old & new or shared)


_READ_TO_ITS_END = (
    "let the deployed version read it to its end, with its input stopped, and accept the change "
    "then"
)


def _topic_changes(
    before: Sequence[DeployedTopic], after: Sequence[DeployedTopic], application_id: str
) -> Iterator[TopologyChange]:
    gone, new, both = _by_name(before, after)
    for old, same in both:
        where = f"repartition topic {application_id}-{old.name}"
        yield from _serde_changes(where, old, same, _READ_TO_ITS_END)
        yield from _schema_changes(where, old, same)
    for old, renamed in _pairs(gone, new):
        yield TopologyChange(
            True,
            f"repartition topic {application_id}-{old.name} is called {renamed.name} now, and "
            "records that are still in the old topic are lost",
            f'give the step the name that is deployed, name="{old.name}"',
        )
    for old in gone:
        yield TopologyChange(
            True,
            f"repartition topic {application_id}-{old.name} is not read any more, and records "
            "that are still in it are lost",
            _READ_TO_ITS_END,
        )


def _filling_changes(
    before: Deployment, after: Deployment, application_id: str
) -> Iterator[TopologyChange]:
    """Yield a change for each store whose old input topic is now read by another operator only."""
    topics = {topic.name for topic in before.topics}
    kept = topics & {topic.name for topic in after.topics}
    now = {store.name: store for store in after.stores}
    for old in before.stores:
        new = now.get(old.name)
        filled_from = topics.intersection(old.reads)
        # If no topic is new, only another input of the same operator was removed, as in a join.
        if new is None or filled_from.intersection(new.reads) or {*new.reads} <= {*old.reads}:
            continue
        for name in sorted(filled_from & kept):
            yield TopologyChange(
                True,
                f"store {old.name} was filled from repartition topic {application_id}-{name} and "
                f"is filled from {', '.join(new.reads)} now, and records that are still in the old "
                "topic are lost for it",
                _READ_TO_ITS_END,
            )


def _sink_changes(before: Sequence[DeployedSink], after: Deployment) -> Iterator[TopologyChange]:
    """Yield a change for each sink that restarts at the group's offset and may write rows again."""
    same = {sink.name for sink in after.sinks}
    gone = [sink for sink in before if sink.name not in same]
    new = [sink for sink in after.sinks if sink.name not in {one.name for one in before}]
    fronts = {topic.name for topic in after.topics}
    for sink in gone:
        reads = ", ".join(sink.reads)
        renamed = next((one.name for one in new if one.reads == sink.reads), None)
        if repartition_topic(sink.name) in fronts:
            now = f"to_sink({sink.name!r}) read {reads} itself, and reads an internal topic now"
        elif renamed is not None:
            now = f"to_sink({sink.name!r}), which reads {reads} itself, is called {renamed!r} now"
        else:
            continue
        yield TopologyChange(
            True,
            f"{now}, so it starts at the committed offset of the group, and may repeat rows that "
            "were written since the last commit",
            "keep it as it is, or stop the deployed version in order, so that its last commit has "
            "all rows, and accept the change",
        )


def _serde_changes(
    where: str, old: DeployedStore | DeployedTopic, new: DeployedStore | DeployedTopic, else_: str
) -> Iterator[TopologyChange]:
    for what, one, other in (("keys", old.key, new.key), ("values", old.value, new.value)):
        if one == other:
            continue
        text = f"the {what} of {where} were written by serde {one} and are read by {other}"
        if _exclude(one, other):
            # Keys in another encoding do not match, although they can be read.
            then = "does not find them" if what == "keys" else "cannot read their bytes"
            yield TopologyChange(
                True, f"{text}, which {then}", f"keep serdes.{one} there, or {else_}"
            )
        else:
            yield TopologyChange(
                False, text, f"make sure that it can read the old bytes, or keep {one}, or {else_}"
            )


_TOLD_BY_OP = frozenset({"count", "reduce", "aggregate", "TableSource"})
_RENAME = "rename the store, or reset the application"


def _step_changes(old: DeployedStore, new: DeployedStore) -> Iterator[TopologyChange]:
    before, after = _kind(old), _kind(new)
    if before and after and before != after and old.layout == new.layout:
        yield TopologyChange(
            True,
            f"store {old.name} was filled by {before} in the version that started last, and is "
            f"filled by {after} now, which would misread the rows that the other has written",
            f"go back to {before}, {_RENAME}; if that version has written no row, for example "
            "because it failed at its start, accept the change",
        )
        return
    unrecorded = dict(new.unrecorded)
    was, now = unrecorded | dict(old.spans), unrecorded | dict(new.spans)
    # Compare missing spans only if both descriptions have them: older releases did not store any.
    is_whole = bool(before and after) and old.layout == new.layout
    for span in sorted(was.keys() | now.keys() if is_whole else was.keys() & now.keys()):
        if was.get(span) != now.get(span):
            yield _span_change(new, span, was.get(span), now.get(span))


def _kind(store: DeployedStore) -> str:
    """Return the kind of operator that writes a store, or "" if an older description lacks it."""
    return store.step or (store.op if store.op in _TOLD_BY_OP else "")


def _span_change(
    store: DeployedStore, span: str, before: int | None, after: int | None
) -> TopologyChange:
    was, now = ("not given" if ms is None else f"{ms} ms" for ms in (before, after))
    text = f"the {span} of store {store.name} was {was} and is {now}"
    # Without `before`, the deployed version may have had the span without storing it.
    if span in store.fixed and before is not None:
        return TopologyChange(True, f"{text}, so its rows would be misread", _RENAME)
    if before is None or after is None:
        return TopologyChange(
            False,
            f"{text}; existing rows stay as they are",
            "no action is needed if this is intended",
        )
    if after > before:
        return TopologyChange(
            False,
            f"{text}; rows that were already dropped do not come back",
            "no action is needed, unless late records must find all rows: then reset the "
            "application",
        )
    return TopologyChange(
        False, f"{text}; older rows are dropped", "no action is needed if this is intended"
    )


def _schema_changes(
    where: str, old: DeployedStore | DeployedTopic, new: DeployedStore | DeployedTopic
) -> Iterator[TopologyChange]:
    parts = (
        ("keys", old.key_schema, new.key_schema),
        ("values", old.value_schema, new.value_schema),
    )
    for what, before, after in parts:
        if is_digest(before):
            if after != before and digest(after) != before:
                yield TopologyChange(
                    False,
                    (
                        f"the schema of the {what} of {where} has changed, and the deployed "
                        "schema was too large to be stored"
                    ),
                    "make sure that it can read the old bytes",
                )
            continue
        why = None if is_digest(after) else unreadable(after, before)
        if why is not None:
            yield TopologyChange(
                True,
                f"not all {what} of {where} can be read any more: {why}",
                "make the class or schema read the old data, for example by a default, or rename "
                "it",
            )
        elif not is_digest(after):
            yield from _field_changes(what, where, before, after)


def _field_changes(what: str, where: str, before: str, after: str) -> Iterator[TopologyChange]:
    """Yield a change for each field that is dropped without an error, or that changes key bytes."""
    gone = ", ".join(f"`{name}`" for name in dropped_fields(after, before))
    if what == "keys":
        new = ", ".join(f"`{name}`" for name in dropped_fields(before, after))
        if gone or new:
            text = f"have no field {gone} any more" if gone else f"have a new field {new}"
            yield TopologyChange(
                bool(gone),
                f"the keys of {where} {text}, so equal keys are encoded differently and do not "
                "match rows that are stored under the old bytes",
                "keep the fields of the keys, or reset the application",
                lets_go=True,
            )
    elif gone:
        when = (
            "as they are read"
            if where.startswith("repartition")
            else ("at the next write of each row")
        )
        yield TopologyChange(
            False,
            f"the values of {where} have no field {gone} any more: its stored content is dropped "
            f"{when}",
            "no action is needed if this is intended; a field with another name keeps its values "
            "by msgspec.field(name=...) of a Struct, or an alias in Avro",
            lets_go=True,
        )


def _exclude(written: str, read: str) -> bool:
    return written != read and {written, read} <= EXCLUSIVE


def _by_name(before: Sequence[T], after: Sequence[T]) -> tuple[list[T], list[T], list[tuple[T, T]]]:
    """Return removed items, new items, and pairs of items with the same name."""
    old, new = {x.name: x for x in before}, {x.name: x for x in after}
    both = [(old[name], new[name]) for name in old if name in new]
    return (
        [x for x in before if x.name not in new],
        [x for x in after if x.name not in old],
        both,
    )


def _pairs(gone: list[T], new: list[T]) -> Iterator[tuple[T, T]]:
    """Remove renamed items from both lists and yield them, items that differ by number first."""
    for alike in (_differ_by_number, _have_one_shape):
        for old in list(gone):
            match = next((fresh for fresh in new if alike(old, fresh)), None)
            if match is not None:
                gone.remove(old)
                new.remove(match)
                yield old, match


def _have_one_shape(a: T, b: T) -> bool:
    return a.shape == b.shape


def _differ_by_number(a: T, b: T) -> bool:
    return _have_one_shape(a, b) and _NUMBER.sub("", a.name) == _NUMBER.sub("", b.name)
