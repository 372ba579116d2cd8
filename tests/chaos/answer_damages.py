"""Faults of answers and of told changes, put into correct histories as those of `damages` are."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.chaos.asked import Answer, Asked, Followed
from tests.chaos.damages import deserves
from tests.chaos.history import Place
from tests.chaos.perfect import Draft
from tests.chaos.perfect_answers import CALM_S, HOSTS


def _asked(draft: Draft) -> Asked:
    assert draft.asked is not None
    return draft.asked


def _answer(
    draft: Draft,
    rng: random.Random,
    change: Callable[[Answer], Answer],
    suits: Callable[[Answer], bool],
) -> None:
    asked = _asked(draft)
    index = rng.choice([n for n, answer in enumerate(asked.answers) if suits(answer)])
    answers = [*asked.answers]
    answers[index] = change(answers[index])
    draft.asked = replace(asked, answers=tuple(answers))


def _has_rows(answer: Answer) -> bool:
    return any(row is not None for row in answer.rows)


def _with_row(draft: Draft, rng: random.Random, **changed: object) -> None:
    def change(answer: Answer) -> Answer:
        index = rng.choice([n for n, row in enumerate(answer.rows) if row is not None])
        rows = [*answer.rows]
        row = rows[index]
        assert row is not None
        rows[index] = row._replace(**changed)  # type: ignore[arg-type]
        return replace(answer, rows=tuple(rows))

    _answer(draft, rng, change, _has_rows)


@deserves("wrong_answer")
def an_answer_has_a_value_that_never_was(draft: Draft, rng: random.Random) -> None:
    _with_row(draft, rng, value=-7)


@deserves("wrong_answer")
def an_answer_has_the_time_of_another_value(draft: Draft, rng: random.Random) -> None:
    _with_row(draft, rng, timestamp=3)


@deserves("wrong_answer")
def an_answer_is_of_a_partition_that_it_does_not_name(draft: Draft, rng: random.Random) -> None:
    _with_row(draft, rng, partition=99)


@deserves("wrong_answer")
def an_answer_is_of_another_key(draft: Draft, rng: random.Random) -> None:
    def change(answer: Answer) -> Answer:
        return replace(answer, keys=("another",))

    _answer(draft, rng, change, lambda a: a.question == "key" and _has_rows(a))


@deserves("wrong_answer")
def an_answer_is_older_than_it_says(draft: Draft, rng: random.Random) -> None:
    """The row of a count that has risen since, at the place of the later one."""

    def change(answer: Answer) -> Answer:
        (row,) = answer.rows
        assert row is not None
        return replace(answer, rows=(row._replace(value=row.value - 1),))

    _answer(
        draft,
        rng,
        change,
        lambda a: a.store == "counts" and a.question == "key" and _has_rows(a),
    )


@deserves("wrong_answer")
def an_answer_has_what_was_aborted(draft: Draft, rng: random.Random) -> None:
    """The record that its row is from is none that a reader of committed records gets."""
    answers = [a for a in _asked(draft).answers if a.question == "key" and _has_rows(a)]
    answer = rng.choice(answers)
    ((row,), (place,)) = answer.rows, answer.places
    assert row is not None
    log = draft.changelogs[Place(answer.store, place.partition)]
    key = str(row.key).encode()
    index = max(n for n, r in enumerate(log) if r.key == key and r.committed
                and r.offset < place.offset)  # fmt: skip
    log[index] = log[index]._replace(committed=False)


@deserves("wrong_answer")
def a_row_is_left_out_of_a_range(draft: Draft, rng: random.Random) -> None:
    def change(answer: Answer) -> Answer:
        rows = [*answer.rows]
        del rows[rng.randrange(len(rows))]
        return replace(answer, rows=tuple(rows))

    _answer(draft, rng, change, lambda a: a.question == "range" and _has_rows(a))


@deserves("wrong_answer")
def a_row_is_there_and_said_not_to_be(draft: Draft, rng: random.Random) -> None:
    def change(answer: Answer) -> Answer:
        return replace(answer, rows=(None,) * len(answer.rows))

    _answer(draft, rng, change, lambda a: a.question != "range" and _has_rows(a))


@deserves("wrong_answer")
def a_range_lacks_a_partition(draft: Draft, rng: random.Random) -> None:
    def change(answer: Answer) -> Answer:
        gone = rng.choice(answer.places)
        rows = tuple(r for r in answer.rows if r is not None and r.partition != gone.partition)
        places = tuple(place for place in answer.places if place != gone)
        return replace(answer, rows=rows, places=places)

    _answer(draft, rng, change, lambda a: a.question == "range")


@deserves("wrong_answer")
def an_answer_is_an_error(draft: Draft, rng: random.Random) -> None:
    _answer(draft, rng, lambda a: replace(a, error="ValueError: no JSON"), lambda _: True)


@deserves("answer_went_back")
def a_later_answer_is_earlier(draft: Draft, rng: random.Random) -> None:
    asked = _asked(draft)
    last = next(a for a in reversed(asked.answers) if a.question == "range")
    places = tuple(place._replace(offset=place.offset // 4) for place in last.places)
    draft.asked = replace(asked, answers=(*asked.answers, replace(last, places=places)))


@deserves("answer_went_back")
def a_later_answer_is_earlier_than_the_newest_row(draft: Draft, rng: random.Random) -> None:
    """All rows were that old, but for some of an answer before."""
    asked = _asked(draft)
    index = rng.choice([n for n, answer in enumerate(asked.answers[:-1]) if answer.places])
    answers = [*asked.answers]
    places = tuple(place._replace(max_offset=1 << 40) for place in answers[index].places)
    answers[index] = replace(answers[index], places=places)
    same = replace(answers[index], places=asked.answers[index].places)
    draft.asked = replace(asked, answers=(*answers[: index + 1], same, *answers[index + 1 :]))


@deserves("wrong_answer")
def an_answer_names_a_partition_twice(draft: Draft, rng: random.Random) -> None:
    """Nobody can tell which of the two its rows are from."""

    def change(answer: Answer) -> Answer:
        place = answer.places[0]
        return replace(answer, places=(place._replace(offset=0), *answer.places))

    _answer(draft, rng, change, lambda a: bool(a.places))


@deserves("wrong_answer")
def a_row_is_newer_than_its_answer_says(draft: Draft, rng: random.Random) -> None:
    """The places of a long range name an end that some of its rows are beyond."""

    def change(answer: Answer) -> Answer:
        places = tuple(place._replace(offset=0, max_offset=0) for place in answer.places)
        return replace(answer, places=places)

    _answer(draft, rng, change, lambda a: a.question == "range" and _has_rows(a))


@deserves("wrong_host")
def an_answer_is_from_a_host_that_has_not_the_task(draft: Draft, rng: random.Random) -> None:
    def change(answer: Answer) -> Answer:
        place, *others = answer.places
        other = HOSTS[place.host == HOSTS[0]]
        return replace(answer, places=(place._replace(host=other), *others))

    _answer(draft, rng, change, lambda a: a.at_s > CALM_S and bool(a.places))


def _follower(
    draft: Draft, rng: random.Random, change: Callable[[Followed], Followed], *, longer: int = 2
) -> None:
    asked = _asked(draft)
    index = rng.choice([n for n, f in enumerate(asked.followed) if len(f.changes) >= longer])
    followed = [*asked.followed]
    followed[index] = change(followed[index])
    draft.asked = replace(asked, followed=tuple(followed))


@deserves("change_mistold")
def a_change_is_told_twice(draft: Draft, rng: random.Random) -> None:
    def change(followed: Followed) -> Followed:
        n = rng.randrange(len(followed.changes))
        return replace(followed, changes=(*followed.changes[: n + 1], *followed.changes[n:]))

    _follower(draft, rng, change)


@deserves("change_mistold")
def a_change_is_not_told(draft: Draft, rng: random.Random) -> None:
    def change(followed: Followed) -> Followed:
        n = rng.randrange(len(followed.changes))
        return replace(followed, changes=(*followed.changes[:n], *followed.changes[n + 1 :]))

    _follower(draft, rng, change)


@deserves("change_mistold")
def a_change_is_told_too_early(draft: Draft, rng: random.Random) -> None:
    def change(followed: Followed) -> Followed:
        changes = [*followed.changes]
        n = next(
            n for n in range(len(changes) - 1) if changes[n].partition == changes[n + 1].partition
        )
        changes[n], changes[n + 1] = changes[n + 1], changes[n]
        return replace(followed, changes=tuple(changes))

    _follower(draft, rng, change)


@deserves("change_mistold")
def a_change_is_told_with_another_value(draft: Draft, rng: random.Random) -> None:
    def change(followed: Followed) -> Followed:
        n = rng.randrange(len(followed.changes))
        wrong = followed.changes[n]._replace(value={"count": -1})
        return replace(followed, changes=(*followed.changes[:n], wrong, *followed.changes[n + 1 :]))

    _follower(draft, rng, change)


@deserves("change_mistold")
def an_aborted_change_is_told(draft: Draft, rng: random.Random) -> None:
    change = rng.choice(_asked(draft).followed[0].changes)
    log = draft.changelogs[Place("totals", change.partition)]
    index = next(n for n, record in enumerate(log) if record.offset == change.offset)
    log[index] = log[index]._replace(committed=False)


@deserves("change_mistold")
def a_follower_is_told_that_something_is_missing(draft: Draft, rng: random.Random) -> None:
    _follower(draft, rng, lambda f: replace(f, errors=("compacted: {}",)))
