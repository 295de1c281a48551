"""The history of a set of numbers: a ring of samples at equal intervals."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

AGE_MAX_S: Final = 3600
SAMPLES_MAX: Final = 3600  # samples in one answer


class History:
    """The samples of the last hour.

    Shapes: a sample contains one integer for each of `names`; the first `counters` of these only grow. `_ring` contains
        the time of each sample before its integers; `_next` is the index of the next sample to write.
    Units: times are in milliseconds since 1970.
    Cost: one array. Sample objects would keep arenas of 1 MiB in use for an hour after a peak of memory use.
    """

    def __init__(self, names: Sequence[str], counters: int, interval_ms: int) -> None:
        self.names = tuple(names)
        self.counters = counters
        self._length = max(2, AGE_MAX_S * 1000 // interval_ms)
        self._ring = array("q")
        self._next = 0

    def __len__(self) -> int:
        return len(self._ring) // (1 + len(self.names))

    def add(self, at_ms: int, values: Sequence[int]) -> None:
        """Add a sample; if the ring is full, it replaces the oldest one."""
        sample = array("q", (at_ms, *values))
        first = self._next * len(sample)
        self._ring[first : first + len(sample)] = sample
        self._next = (self._next + 1) % self._length

    def _newest(self) -> Iterator[int]:
        """Yield the positions of the samples in the ring, the newest first."""
        count, width = len(self), 1 + len(self.names)
        for back in range(1, count + 1):
            yield (self._next - back) % count * width

    def _samples_at(self, places: Iterable[int]) -> list[tuple[int, list[int]]]:
        """Return the samples at these positions with their times, in reverse order."""
        ring, names = self._ring, len(self.names)
        return [(ring[place], ring[place + 1 : place + 1 + names].tolist()) for place in places][::-1]

    def last(self, count: int) -> list[tuple[int, list[int]]]:
        """Return up to `count` of the newest samples, oldest first. Cost: O(count)."""
        return self._samples_at(islice(self._newest(), count))

    def rates(self, values: Sequence[int], at_ms: int, window_ms: int) -> list[float] | None:
        """Return the rates of the first numbers, given their current `values`, or None if all are 0 or unknown.

        Units: per second, since the newest sample that is at least `window_ms` old, or since the oldest one.
        """
        ring, place = self._ring, -1
        for place in self._newest():
            if at_ms - ring[place] >= window_ms:
                break
        if place < 0 or at_ms <= ring[place]:
            return None
        window_s = (at_ms - ring[place]) / 1000
        rates = [round((value - ring[at]) / window_s, 2) for at, value in enumerate(values, place + 1)]
        return rates if any(rates) else None

    def details(self, name: str, wanted: SampleRange, now_ms: int) -> dict[str, Any]:
        """Return the samples of one number as in RabbitMQ's API: newest first, with averages.

        The value at each time is that of the latest sample up to then, or 0 before the first sample. Cost: O(samples).
        """
        place = self.names.index(name)
        values: list[tuple[int, int]] = []
        newest_ms = now_ms - now_ms % wanted.step_ms
        known = list(self._newest())
        at = 0
        for back in range(wanted.samples):
            time_ms = newest_ms - back * wanted.step_ms
            while at < len(known) and self._ring[known[at]] > time_ms:
                at += 1
            values.append((self._ring[known[at] + 1 + place] if at < len(known) else 0, time_ms))
        numbers = [value for value, _time_ms in values]
        span_s = max(1, (len(values) - 1) * wanted.step_ms) / 1000
        last_s = wanted.step_ms / 1000
        return {
            "avg": sum(numbers) / len(numbers),
            "avg_rate": (numbers[0] - numbers[-1]) / span_s,
            "rate": (numbers[0] - numbers[1]) / last_s if len(numbers) > 1 else 0.0,
            "samples": [{"sample": value, "timestamp": time_ms} for value, time_ms in values],
        }


class SampleRange(NamedTuple):
    """The requested number of samples and the interval between them."""

    samples: int
    step_ms: int


def sample_range(query: Mapping[str, str], kind: str) -> SampleRange | None:
    """Return the range of a request's KIND_age and KIND_incr, or None if they are missing or invalid.

    Shapes: `kind` is lengths, msg_rates, data_rates or node_stats, as in RabbitMQ.
    """
    age, step = query.get(f"{kind}_age", ""), query.get(f"{kind}_incr", "")
    if not (age.isascii() and age.isdigit() and step.isascii() and step.isdigit()):
        return None
    age_s, step_s = int(age[:9]), int(step[:9])
    if not 0 < step_s <= age_s or age_s // step_s > SAMPLES_MAX:
        return None
    return SampleRange(min(age_s, AGE_MAX_S * 24) // step_s + 1, step_s * 1000)
