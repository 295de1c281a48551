"""Times several contestants of one task in turn, so that drift of the machine's speed affects all equally."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

Match = Callable[[str], object]

_FIRST_KEYS = 2


@dataclass(slots=True)
class Runner:
    """One contestant: its position among the keys, and the times of its slices. Units: microseconds per key."""

    match: Match
    keys: Sequence[str]
    at: int = 0
    batch: int = _FIRST_KEYS
    times_us: list[float] = field(default_factory=list)

    def lap(self) -> float:
        """Match the next batch of keys and return the CPU seconds that it took."""
        if self.at + self.batch > len(self.keys):
            self.at = 0
        batch = self.keys[self.at : self.at + self.batch]
        self.at += len(batch)
        match = self.match
        begun = time.process_time()
        for key in batch:
            match(key)
        return time.process_time() - begun

    def settle(self, slice_s: float) -> None:
        """Calibrate the number of keys in a slice."""
        while True:
            took_s = self.lap()
            if took_s > slice_s / 4 or self.batch >= len(self.keys):
                break
            self.batch = min(len(self.keys), self.batch * 2)
        share = slice_s / took_s if took_s else 1.0
        self.batch = max(1, min(len(self.keys), int(self.batch * share)))

    @property
    def us(self) -> float:
        """Return the median."""
        return median(self.times_us)


def race(
    contestants: Mapping[str, Match],
    keys: Sequence[str] | Mapping[str, Sequence[str]],
    rounds: int,
    slice_s: float,
) -> dict[str, Runner]:
    """Return the runners after `rounds` slices each, A B A B; keys may differ by contestant.

    A runner receives new keys while there are any: the race measures matching, not caching.
    """
    gc.collect()
    runners = {
        name: Runner(match, keys[name] if isinstance(keys, Mapping) else keys) for name, match in contestants.items()
    }
    for runner in runners.values():
        runner.settle(slice_s)
    for _ in range(rounds):
        for runner in runners.values():
            took_s = runner.lap()
            runner.times_us.append(took_s / runner.batch * 1e6)
    return runners
