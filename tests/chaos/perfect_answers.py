"""Answers and changes as a faultless application would have told them, of a perfect history."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tests.chaos.application import PARTITIONS, STORES
from tests.chaos.asked import Answer, AnsweredPlace, AnsweredRow, Asked, Calm, Followed, ToldChange
from tests.chaos.history import Place, Record

CALM_S = 1_000.0
"""The last answers are of this time, in which no task moves."""
HOSTS = ("a:1", "b:1")
_FOLLOWED = "totals"
Changelogs = Mapping[Place, list[Record]]


def host_of(partition: int) -> str:
    """Who has the tasks of a partition."""
    return HOSTS[partition % 2]


def perfect_asked(changelogs: Changelogs, seed: int) -> Asked:
    """All that was told."""
    made = _Answers(changelogs, random.Random(seed))
    answers = tuple(made.next(number) for number in range(60))
    owners = {
        f"{sub}_{partition}": host_of(partition)
        for sub in set(STORES.values())
        for partition in range(PARTITIONS)
    }
    key = next(iter(made.keys("totals")))
    followed = (made.followed("of-store", None), made.followed("of-key", key))
    return Asked(answers, followed, calm=Calm(CALM_S, 2 * CALM_S, owners))


@dataclass(slots=True)
class _Answers:
    changelogs: Changelogs
    rng: random.Random

    def keys(self, store: str) -> list[str]:
        """All that a store ever had."""
        found = (self.changelogs[Place(store, partition)] for partition in range(PARTITIONS))
        return sorted({(r.key or b"").decode() for log in found for r in log if r.committed})

    def next(self, number: int) -> Answer:
        """The next answer; all of a client are further than those before."""
        store = self.rng.choice(["counts", "totals"])
        places = tuple(self._place(store, p, number) for p in range(PARTITIONS))
        rows = self._rows(store, places)
        keys = [*self.keys(store), "none"]
        at_s = CALM_S * (0.5 if number < 30 else 1.5)
        given: dict[str, Any] = {"client": "c", "at_s": at_s, "store": store}
        question = self.rng.choice(["key", "keys", "range"])
        if question == "key":
            key = self.rng.choice(keys)
            row = rows.get(key)
            of = places if row is None else (places[row.partition],)
            return Answer(**given, question="key", keys=(key,), rows=(row,), places=of)
        if question == "keys":
            some = self.rng.sample(keys, 3)
            found = tuple(rows.get(key) for key in some)
            return Answer(**given, question="keys", keys=tuple(some), rows=found, places=places)
        low, high = sorted(self.rng.sample(keys[:-1], 2))
        between = tuple(row for key, row in sorted(rows.items()) if low <= key <= high)
        return Answer(**given, question="range", keys=(low, high), rows=between, places=places)

    def _place(self, store: str, partition: int, number: int) -> AnsweredPlace:
        log = self.changelogs[Place(store, partition)]
        end = log[-1].offset + 1 if log else 0
        offset = end * min(number, 50) // 50
        return AnsweredPlace(partition, offset, host_of(partition), offset)

    def _rows(self, store: str, places: tuple[AnsweredPlace, ...]) -> dict[str, AnsweredRow]:
        found: dict[str, AnsweredRow] = {}
        for place in places:
            for record in self.changelogs[Place(store, place.partition)]:
                if record.committed and record.offset < place.offset:
                    key = (record.key or b"").decode()
                    value = _value(store, record)
                    found[key] = AnsweredRow(place.partition, key, value, record.timestamp)
        return found

    def followed(self, name: str, key: str | None) -> Followed:
        """All changes of a store or of a key."""
        changes = tuple(
            ToldChange(
                partition, r.offset, (r.key or b"").decode(), _value(_FOLLOWED, r), r.timestamp
            )
            for partition in range(PARTITIONS)
            for r in self.changelogs[Place(_FOLLOWED, partition)]
            if r.committed and (key is None or r.key == key.encode())
        )
        return Followed(name, _FOLLOWED, key, changes, resumed=3)


def _value(store: str, record: Record) -> Any:
    data = record.value or b""
    return int.from_bytes(data, "big") if store == "counts" else orjson.loads(data)
