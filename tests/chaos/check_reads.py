"""Transactions that hang, offsets that are off, and reads that went back or left things out."""

from __future__ import annotations

from itertools import compress, islice

from tests.chaos.application import INPUTS, OUTPUTS, REPARTITIONS
from tests.chaos.history import History, Log, Observations, Place, digest
from tests.chaos.verdict import Findings


def check_hanging(history: History, findings: Findings) -> None:
    """No transaction is open, and what is written at the end can be read."""
    changelogs = {Place(f"{p.topic}-changelog", p.partition): log
                  for p, log in history.changelogs.items()}  # fmt: skip
    for place, log in {**history.logs, **changelogs}.items():
        if log.stable_end < log.end:
            detail = f"a transaction is open from here to the end at {log.end}"
            findings.add("hanging_transaction", f"{place}@{log.stable_end}", detail)
    for place, marker in history.markers.items():
        if not marker.read_back:
            detail = "a marker written at the end is not handed out"
            findings.add("hanging_transaction", f"{place}@{marker.offset}", detail)
    if history.markers:
        outputs = [place for place in history.logs if place.topic in OUTPUTS]
        for place in outputs:
            if place not in history.markers:
                findings.add("hanging_transaction", str(place), "no marker could be written")


def check_offsets(history: History, findings: Findings, *, drained: bool) -> None:
    """The group's offsets are within the logs, and at their ends when all was to be processed."""
    for place, log in history.logs.items():
        if place.topic not in INPUTS and place.topic not in REPARTITIONS:
            continue
        committed = history.committed.get(place)
        offset = 0 if committed is None else committed.offset
        if offset > log.end:
            detail = f"the committed offset is beyond the end {log.end}"
            findings.add("offset_without_output", f"{place}@{offset}", detail)
        if not drained:
            continue
        left = [o for o in compress(log.offsets, log.committed) if o >= offset]
        if left:
            detail = f"{len(left)} records were never processed; the committed offset is {offset}"
            findings.add("lost", f"{place}@{left[0]}", detail)


def check_observed(history: History, findings: Findings) -> None:
    """A reader that was there all along got what is there now: once, in order, without a gap."""
    for place, seen in history.observed.items():
        log = history.logs.get(place)
        if log is not None:
            _check_observed(place, seen, log, findings)


def _check_observed(place: Place, seen: Observations, log: Log, findings: Findings) -> None:
    def add(offset: int, detail: str) -> None:
        findings.add("non_monotonic_read", f"{place}@{offset}", detail)

    there = {
        offset: digest(key, value, timestamp)
        for committed, offset, key, value, timestamp in zip(
            log.committed, log.offsets, log.keys, log.values, log.timestamps, strict=True
        )
        if committed and offset >= seen.start
    }
    if _is_a_prefix(seen, there):
        return
    before = -1
    for offset, known_by in zip(seen.offsets, seen.digests, strict=True):
        if offset <= before:
            add(offset, f"was handed out after {before}")
        before = max(before, offset)
        if offset not in there:
            if offset >= log.start:
                add(offset, "was handed out and is not there at the end")
        elif there[offset] != known_by:
            add(offset, "was handed out with other bytes than are there at the end")
    got = set(seen.offsets)
    for offset in there:
        if offset < before and offset not in got:
            add(offset, f"was left out, while {before} was handed out")


def _is_a_prefix(seen: Observations, there: dict[int, int]) -> bool:
    count = len(seen.offsets)
    return (
        count <= len(there)
        and seen.offsets.tolist() == list(islice(there, count))
        and seen.digests.tolist() == list(islice(there.values(), count))
    )
