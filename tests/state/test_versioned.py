"""A store that keeps several versions of each key, against a slow model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state.buffer import ABSENT, Coding
from headrace.state.codec import TIMESTAMP
from headrace.state.errors import ValueEncodingError
from headrace.state.layout import LAYOUTS, LatestVersions, key_and_time, prefix
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.state.versioned import IS_LATEST, NOT_PUT, VersionedBuffer
from tests.support.examples import examples

SPEC = StoreSpec("v", kind="memory", layout="versioned", retention_ms=100)
HISTORY_MS = 100
Change = tuple[bytes, "bytes | None", int]


class Store:
    """A buffer over rows in memory, with its changelog, and commits."""

    def __init__(self, hold: Literal["objects", "bytes"] = "objects") -> None:
        self.state = MemoryTaskState([SPEC])
        self.hold = hold
        self.changelog: list[Change] = []
        self.time = -1
        self.buffer = self._opened()

    def _opened(self) -> VersionedBuffer:
        coding = Coding(encode=str.encode, decode=bytes.decode, stored_form=self.hold)
        return VersionedBuffer("v", self.state.store("v"), coding)

    def put(self, key: bytes, value: str | None, time: int) -> int:
        """Put as a task does that knows the time."""
        self.time = max(self.time, time)
        self.buffer.expire(self.time - HISTORY_MS)
        return self.buffer.put_version(key, value, time)

    def commit(self) -> None:
        changes = self.buffer.delta()
        self.changelog += changes
        self.state.write({"v": self.buffer.local_rows(changes)}, {})
        self.buffer.committed()

    def abort(self, time: int) -> None:
        self.time = time
        self.buffer = self._opened()
        self.buffer.expire(self.time - HISTORY_MS)

    def restore(self, changelog: Sequence[Change]) -> None:
        self.state = MemoryTaskState([SPEC])
        self.state.write({"v": list(dict(LAYOUTS["versioned"].rows(changelog)).items())}, {})
        self.abort(self.time)

    def rows(self) -> list[tuple[bytes, int]]:
        """Key and time of every version on disk."""
        return [key_and_time(k) for k, _ in self.state.store("v").scan(b"\x00", b"\x01")]


class Model:
    """All versions that ever were, in a dictionary."""

    def __init__(self) -> None:
        self.versions: dict[bytes, dict[int, str | None]] = {}
        self.time = -1

    def put(self, key: bytes, value: str | None, time: int) -> int:
        self.time = max(self.time, time)
        if time < self.time - HISTORY_MS:
            return NOT_PUT
        versions = self.versions.setdefault(key, {})
        later = [t for t in versions if t > time]
        versions[time] = value
        return min(later, default=IS_LATEST)

    def get(self, key: bytes) -> str | None:
        versions = self.versions.get(key)
        return versions[max(versions)] if versions else None

    def get_as_of(self, key: bytes, time: int) -> str | None:
        versions = self.versions.get(key, {})
        earlier = [t for t in versions if t <= time]
        if not earlier or (time < self.time - HISTORY_MS and max(earlier) != max(versions)):
            return None
        return versions[max(earlier)]

    def copy(self) -> Model:
        other = Model()
        other.versions = {key: dict(v) for key, v in self.versions.items()}
        other.time = self.time
        return other


KEYS = [b"", b"a", b"a\x00", b"a\x00\xff", b"b"]
puts = st.tuples(
    st.just("put"),
    st.sampled_from(KEYS),
    st.none() | st.sampled_from(["x", "y"]),
    st.integers(0, 40) | st.integers(0, 400),
)
steps = st.lists(puts | st.sampled_from([("commit",), ("abort",), ("restore",)]), max_size=40)


def same(store: Store, model: Model) -> None:
    for key in KEYS:
        assert store.buffer.get(key)[0] == model.get(key)
        for time in range(0, 410, 7):
            assert store.buffer.get_as_of(key, time)[0] == model.get_as_of(key, time), (key, time)
    found = [(key, value) for key, value, _ in store.buffer.scan()]
    assert found == [(k, model.get(k)) for k in sorted(KEYS) if model.get(k) is not None]
    assert list(store.buffer.scan(reverse=True)) == list(store.buffer.scan())[::-1]
    bounded = [key for key, _, _ in store.buffer.scan(b"a", b"a\x00\xff")]
    assert bounded == [k for k, _ in found if b"a" <= k < b"a\x00\xff"]


@pytest.mark.parametrize("hold", ["objects", "bytes"])
@settings(deadline=None, max_examples=examples(150))
@given(steps)
def test_a_versioned_store_is_as_a_dictionary_of_all_versions(
    hold: Literal["objects", "bytes"], done: Sequence[Any]
) -> None:
    """Over commits, aborts and restores; trap 7: also for versions that come out of order."""
    store, model = Store(hold), Model()
    kept = model.copy()
    for step in done:
        if step[0] == "put":
            assert store.put(*step[1:]) == model.put(*step[1:])
        elif step[0] == "commit":
            store.commit()
            kept = model.copy()
        elif step[0] == "abort":
            model = kept.copy()
            store.abort(model.time)
        else:
            model = kept.copy()
            store.time = model.time
            store.restore(store.changelog)
        same(store, model)


def test_a_deletion_stays_where_what_it_ends_is_written_by_the_commit_that_lets_it_go() -> None:
    store = Store()
    store.put(b"k", None, 21)
    store.commit()
    store.put(b"k", "older", 10)
    store.put(b"k", "new", 157)
    store.commit()
    assert store.buffer.get_as_of(b"k", 63) == (None, 21)
    store.commit()
    assert store.buffer.get_as_of(b"k", 63)[0] is None
    assert store.rows() == [(b"k", 157)]


@settings(deadline=None)
@given(steps)
def test_what_nobody_can_ask_for_is_deleted_from_disk(done: Sequence[Any]) -> None:
    store, model = Store(), Model()
    for step in done:
        if step[0] == "put":
            store.put(*step[1:])
            model.put(*step[1:])
        else:
            store.commit()
    store.commit()
    store.commit()  # what was written by the first one may have gone as well
    horizon = max(model.time - HISTORY_MS, 0)
    wanted = set()
    for key, versions in model.versions.items():
        old = max((t for t in versions if t <= horizon), default=None)
        wanted |= {(key, t) for t in versions if t > horizon}
        if old is not None and versions[old] is not None:
            wanted.add((key, old))
    assert set(store.rows()) == wanted
    index = [entry for entry, _ in store.state.store("v").scan(b"\x01")]
    assert all(TIMESTAMP.unpack_from(entry, 1)[0] > horizon for entry in index)


@settings(deadline=None)
@given(steps)
def test_the_record_that_compaction_keeps_is_the_last_version(done: Sequence[Any]) -> None:
    """Trap 21: compaction goes by the order of writing, and Kafka Streams loses versions to it."""
    store, model = Store(), Model()
    for step in done:
        if step[0] == "put":
            store.put(*step[1:])
            model.put(*step[1:])
        else:
            store.commit()
    store.commit()
    compacted = {key: (value, time) for key, value, time in store.changelog}
    assert {key: None if v is None else v.decode() for key, (v, _) in compacted.items()} == {
        key: model.get(key) for key in model.versions
    }


def test_a_put_tells_until_when_the_version_is_valid() -> None:
    store = Store()
    assert store.put(b"k", "c", 30) == IS_LATEST
    assert store.put(b"k", "a", 10) == 30
    store.commit()
    assert store.put(b"k", "b", 20) == 30
    assert store.put(b"k", None, 15) == 20
    assert store.put(b"k", "C", 30) == IS_LATEST
    assert [store.buffer.get_as_of(b"k", t)[0] for t in (9, 10, 15, 20, 30)] == [
        None, "a", None, "b", "C",
    ]  # fmt: skip


@pytest.mark.parametrize("hold", ["objects", "bytes"])
def test_a_version_that_replaces_one_of_the_same_time_is_found(
    hold: Literal["objects", "bytes"],
) -> None:
    """Of the row on disk and the one that is not written yet."""
    store = Store(hold)
    store.put(b"k", "old", 10)
    store.put(b"k", "later", 20)
    store.commit()
    store.put(b"k", "new", 10)
    assert store.buffer.get_as_of(b"k", 15) == ("new", 10)
    store.commit()
    assert store.buffer.get_as_of(b"k", 15) == ("new", 10)


def test_the_last_version_goes_to_the_changelog_again_behind_an_older_one() -> None:
    store = Store()
    store.put(b"k", "last", 20)
    store.commit()
    store.put(b"k", "late", 10)
    store.commit()
    assert store.changelog[1:] == [(b"k", b"late", 10), (b"k", b"last", 20)]


def test_the_history_reaches_back_to_its_very_end() -> None:
    store = Store()
    store.put(b"j", "now", 1000)
    assert store.put(b"k", "edge", 900) == IS_LATEST
    assert store.put(b"k", "late", 899) == NOT_PUT
    assert store.buffer.get_as_of(b"k", 899) == ABSENT


def test_a_last_version_is_found_however_old_it_is() -> None:
    store = Store()
    store.put(b"k", "old", 10)
    store.put(b"j", "now", 1000)
    store.commit()
    assert store.buffer.get_as_of(b"k", 20) == ("old", 10)
    store.put(b"k", "new", 950)
    assert store.buffer.get_as_of(b"k", 20) == ABSENT
    assert store.buffer.get_as_of(b"k", 949) == ("old", 10)


def test_versions_that_are_written_late_wait_for_the_next_commit_to_go() -> None:
    """They are not on disk yet when it looks for what has gone."""
    store = Store()
    store.put(b"k", "b", 98)
    store.put(b"j", "x", 190)
    store.commit()
    store.put(b"k", "a", 95)
    store.put(b"j", "y", 300)
    store.commit()
    store.commit()
    assert store.rows() == [(b"j", 190), (b"j", 300), (b"k", 98)]


def test_many_expired_versions_go_in_several_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.state.versioned.EXPIRED_PER_COMMIT", 5)
    store = Store()
    for number in range(20):
        store.put(bytes([number]), "x", number)
        store.put(bytes([number]), None, number + 20)
    store.commit()
    store.put(b"j", "now", 1000)
    counts = []
    for _ in range(12):
        store.commit()
        counts.append(len(store.rows()))
    assert counts[0] > counts[1] > counts[-1] == 1


def test_keys_that_begin_alike_do_not_mix() -> None:
    store = Store()
    store.put(b"a", "short", 1)
    store.put(b"a" + TIMESTAMP.pack(5), "long", 2)
    store.commit()
    assert store.buffer.get(b"a") == ("short", 1)
    assert store.buffer.get_as_of(b"a", 100) == ("short", 1)


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_rows_have_the_order_of_the_keys_and_none_begins_with_another(a: bytes, b: bytes) -> None:
    assert (prefix(a) < prefix(b)) == (a < b)
    assert a == b or not prefix(b).startswith(prefix(a))
    assert key_and_time(prefix(a) + TIMESTAMP.pack(7)) == (a, 7)


def test_a_value_that_cannot_be_encoded_is_named_at_the_commit() -> None:
    store = Store()
    store.put(b"k", 5, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueEncodingError) as caught:
        store.buffer.delta()
    assert caught.value.store == "v"


def test_the_committed_rows_read_like_those_of_a_plain_store() -> None:
    store = Store()
    for change in ((b"k", "a", 1), (b"k", "b", 5), (b"j", "x", 3), (b"j", None, 4)):
        store.put(*change)
    store.commit()
    latest = LatestVersions(store.state.store("v"))
    row = TIMESTAMP.pack(5) + b"b"
    assert list(latest.scan()) == [(b"k", row)]
    assert latest.get_many([b"k", b"j", b"i"]) == [row, None, None]
