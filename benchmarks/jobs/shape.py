"""Input shapes: number, skew and lateness of keys; fixed or random."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

SEED = 20_240_229
START_MS = 1_700_000_000_000
LATE_MS = 9_000
"""Maximum lateness. It is less than the grace period, so no record may be dropped."""
NOTES = 64
_STEPS = 60


@dataclass(frozen=True, slots=True)
class Shape:
    """Input of a job, reproducible by its fields.

    Args:
        name: name within the job.
        records: number of records in all input topics together.
        keys: number of distinct keys; words, users and customers are keys.
        skew: exponent of a Zipf distribution of the keys; 0 is uniform.
        late: share of the records that arrive up to 9 s late.
        rows: new rows per record of a window, session or join; 0 if the job has none of these.
        value_bytes: size of the note in each value, half of it random hex digits.
        seed: seed of all random numbers.
    """

    name: str
    records: int
    keys: int
    skew: float = 0.0
    late: float = 0.0
    rows: float = 0.0
    value_bytes: int = 0
    seed: int = SEED

    def scaled(self, records: int) -> Shape:
        """Return the shape with another number of records, and keys in proportion."""
        keys = max(1, round(self.keys * records / self.records))
        return replace(self, records=records, keys=keys)

    def describe(self) -> str:
        """Return all fields except the name as a line of text."""
        return f"{self.summary()}, seed {self.seed}"

    def summary(self) -> str:
        """Describe the shape without its seed."""
        spread = f"Zipf {self.skew:.2f}" if self.skew else "uniform"
        parts = [f"{self.records:,} records", f"{self.keys:,} keys", spread]
        parts += [f"{self.late:.0%} late" if self.late else "in order"]
        parts += [f"{self.rows:.2f} new rows per record"] if self.rows else []
        parts += [f"notes of {self.value_bytes:,} B"] if self.value_bytes else []
        return ", ".join(parts)

    def generator(self) -> Random:
        """Return a generator in its first state."""
        return Random(self.seed)

    def weights(self) -> list[tuple[float, int]]:
        """Return probabilities of keys, and the number of keys with each probability."""
        if not self.skew:
            return [(1 / self.keys, self.keys)]
        ranked = [(rank + 1) ** -self.skew for rank in range(self.keys)]
        total = sum(ranked)
        return [(weight / total, 1) for weight in ranked]

    def draw_keys(self, rng: Random, count: int) -> list[int]:
        """Draw key numbers; frequent keys are spread over the whole range."""
        if not self.skew:
            return rng.choices(range(self.keys), k=count)
        numbers = list(range(self.keys))
        rng.shuffle(numbers)
        cumulative = list(accumulate(weight for weight, _ in self.weights()))
        return rng.choices(numbers, cum_weights=cumulative, k=count)

    def times(self, rng: Random, count: int, step_ms: float) -> list[int]:
        """Return a timestamp for each record in order of arrival, of which some are late."""
        times = [START_MS + int(number * step_ms) for number in range(count)]
        if self.late:
            for number in range(count):
                if rng.random() < self.late:
                    times[number] -= rng.randrange(1, LATE_MS)
        return times

    def notes(self, rng: Random) -> list[bytes]:
        """Return `NOTES` JSON fields to append to values, empty if values have no note."""
        if not self.value_bytes:
            return [b""] * NOTES
        half = self.value_bytes // 2
        return [
            b',"note":"%b"' % rng.randbytes(half // 2).hex().encode().ljust(self.value_bytes, b".")
            for _ in range(NOTES)
        ]


def rows_in_windows(shape: Shape, density: float) -> float:
    """Return the expected new rows per record if a window has `density` records."""
    return sum(m * -math.expm1(-density * p) for p, m in shape.weights()) / density


def first_of_key_share(shape: Shape, density: float) -> float:
    """Return the share of records whose key is not among the previous `density` records."""
    return sum(m * p * math.exp(-density * p) for p, m in shape.weights())


def interval_ms_for(
    shape: Shape, span_ms: int, rows: Callable[[Shape, float], float], target: float
) -> float:
    """Return the record interval in ms that yields `target` new rows per record.

    Args:
        shape: the keys and their distribution.
        span_ms: length of a window or gap.
        rows: rows per record by the number of records in a span; a decreasing function.
        target: new rows per record.
    """
    low, high = math.log(1e-3), math.log(1e8)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rows(shape, math.exp(middle)) > target else (low, middle)
    return span_ms / math.exp(low)


def same_key_probability(shape: Shape) -> float:
    """Return the probability that two records have the same key."""
    return sum(m * p * p for p, m in shape.weights())


def within(times: list[int], low: int, high: int) -> range:
    """Return the indexes of sorted times from `low` to `high`, both included."""
    return range(bisect_right(times, low - 1), bisect_right(times, high))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges from which a random shape of a job is drawn.

    Args:
        records: number of records.
        keys: lowest and highest number of keys.
        rows: lowest and highest number of new rows per record, if the job has such rows.
        skewed_rows: highest number of rows per record with skewed keys.
        late: whether records may be late.
        value_bytes: largest note.
    """

    records: int
    keys: tuple[int, int]
    rows: tuple[float, float] | None = None
    skewed_rows: float = 2.0
    late: bool = False
    value_bytes: int = 0

    def draw(self, job: str, seed: int) -> Shape:
        """Draw a shape; the same job and seed yield the same shape."""
        rng = Random(f"{job} {seed}")
        low, high = map(math.log, self.keys)
        skew = round(rng.uniform(0.7, 1.2), 2) if rng.random() < 0.5 else 0.0
        late = round(rng.uniform(0.01, 0.2), 2) if self.late and rng.random() < 0.5 else 0.0
        keys, rows, size = round(math.exp(rng.uniform(low, high))), 0.0, 0
        if self.rows is not None:
            fewest, most = self.rows
            rows = round(rng.uniform(fewest, min(most, self.skewed_rows) if skew else most), 2)
        if self.value_bytes and rng.random() < 0.5:
            size = round(math.exp(rng.uniform(math.log(20), math.log(self.value_bytes))))
        return Shape("random", self.records, keys, skew, late, rows, size, seed)
