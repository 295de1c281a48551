"""Samples in the row of one object, as RabbitMQ's page asks for them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.manage.columns import Row
from broker.manage.history import sample_range

if TYPE_CHECKING:
    from broker.manage.samples import Read, Samples

__all__ = ["Sampled"]


class Sampled:
    """An object of which samples can be asked for: its history begins then.

    Shapes: `names` are those of the numbers that `read` returns, the first `counters` of which only grow; `key` names
        the object among all others.
    """

    __slots__ = ("_counters", "_key", "_names", "_read")

    def __init__(self, key: Hashable, names: Sequence[str], counters: int, read: Read) -> None:
        self._key = key
        self._names = names
        self._counters = counters
        self._read = read

    def add_to(self, table: Row, kind: str, names: Sequence[str], query: Mapping[str, str], samples: Samples) -> None:
        """Add to a table the samples of some of the numbers, if the query asks for that kind of them."""
        wanted = sample_range(query, kind)
        if wanted is None:
            return
        history = samples.watch(self._key, self._names, self._counters, self._read)
        for name in names:
            table[f"{name}_details"] = history.details(name, wanted, samples.now_ms)
