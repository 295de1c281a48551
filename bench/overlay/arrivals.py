"""The messages that subscribers received on one connection: times, losses, doubles and breaks of order."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

BUCKET_NS = 100_000_000
_DUE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Numbering:
    """How the messages of a run are numbered: by the time at which each was due, one every `step_ns`.

    Topics are published in turn, so a message's number modulo `topics` is the number of its topic.
    """

    start_ns: int
    step_ns: int
    topics: int

    def of(self, due_ns: int) -> int:
        """Return the number of a message that was due at a time."""
        return (due_ns - self.start_ns) // self.step_ns


@dataclass(frozen=True, slots=True)
class Faults:
    """How many messages subscribers lacked after their first one, got twice, or got after a later one."""

    missing: int = 0
    double: int = 0
    disordered: int = 0

    def __add__(self, other: Faults) -> Faults:
        return Faults(self.missing + other.missing, self.double + other.double, self.disordered + other.disordered)


class Arrivals:
    """The deliveries of one connection, whose subscribers have a topic each.

    Units: `buckets` has the number of deliveries in each BUCKET_NS since `start_ns`.
    """

    def __init__(self, start_ns: int) -> None:
        self.buckets: dict[int, int] = {}
        self._start_ns = start_ns
        self._dues = array("Q")

    def watch(self, buffer: bytes | bytearray, at: int, stride: int, count: int) -> None:
        """Note deliveries; a scanner calls this with their bodies."""
        bucket = (time.monotonic_ns() - self._start_ns) // BUCKET_NS
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        for number in range(count):
            place = at + number * stride
            self._dues.append(int.from_bytes(buffer[place : place + _DUE_BYTES], "big"))

    def by_topic(self, numbering: Numbering) -> dict[int, list[int]]:
        """Return the numbers of the messages of each topic, in the order of their arrival."""
        found: dict[int, list[int]] = {}
        for due_ns in self._dues:
            number = numbering.of(due_ns)
            found.setdefault(number % numbering.topics, []).append(number)
        return found

    def faults(self, numbering: Numbering, wanted: Collection[int], ends: Sequence[int]) -> Faults:
        """Return what is wrong with the deliveries; a wanted topic of which nothing came counts as one missing message.

        Shapes: topic T was published up to, but without, the number `ends[T % len(ends)]`.
        """
        topics = self.by_topic(numbering)
        found = Faults(missing=len(set(wanted) - topics.keys()))
        for topic, numbers in topics.items():
            found += faults_of(numbers, numbering.topics, ends[topic % len(ends)])
        return found


def faults_of(numbers: Sequence[int], step: int, end: int) -> Faults:
    """Return what is wrong with one topic's numbers, which should rise by `step` from the first one to before `end`."""
    distinct = set(numbers)
    first = min(distinct)
    due = len(range(first, end, step))
    later = 0
    disordered = 0
    for number in numbers:
        disordered += number < later
        later = max(later, number)
    return Faults(due - len(distinct), len(numbers) - len(distinct), disordered)


def longest_dip_s(counts: Sequence[int], due: float) -> float:
    """Return for how long at a stretch less than half of the due messages arrived."""
    longest = current = 0
    for count in counts:
        current = current + 1 if count < due / 2 else 0
        longest = max(longest, current)
    return longest * BUCKET_NS / 1e9
