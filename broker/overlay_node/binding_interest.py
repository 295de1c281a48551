"""The interest of one vhost: the conjunctions that the bindings of its overlay exchanges ask for."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from broker.core.arguments import typed_table
from broker.core.queue.queue import Queue
from broker.overlay.aggregation import conjunction
from broker.overlay.packets import Conjunction, Space
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange, MessageFields

Wanted = tuple[str, Conjunction, bool]
"""The id of a binding, the conjunction that it asks for, and whether it survives a restart."""

UNANNOUNCED: Final = 1 << 62  # the start point of a binding that was not announced yet
BATCH_BINDINGS: Final = 2000  # a few microseconds each
_Entry = tuple[bool, "Exchange", Any, str, Mapping[str, Any]]  # a binding that was added (true) or removed (false)
_Pair = tuple["Exchange", Hashable]  # a source and a destination


def binding_id(vhost: str, source: Exchange, destination: Any, key: str, arguments: Mapping[str, Any]) -> str:
    """Return the id of a binding: unchanged by a restart, but new for a queue that is declared again."""
    is_queue = isinstance(destination, Queue)
    target = f"q{destination.number}" if is_queue else f"x{destination.name}"
    table = json.dumps(typed_table(arguments), sort_keys=True) if arguments else ""
    return f"{vhost}\0{source.name}\0{source.kind_of_patterns}\0{target}\0{key}\0{table}"


class BindingInterest:
    """Collect the changes of a vhost's overlay bindings, and return them in batches to announce.

    A binding takes effect at once, but receives messages of other brokers only after it was announced. Bindings to
    queues and to exchanges are treated alike, because an exchange can forward only the messages that it receives.
    Invariant: the batches, in order, result in the existing bindings.
    Cost: one entry for each binding added or removed; a deleted queue's bindings are copied as references.
    """

    def __init__(self, vhost: str, takes_part: Callable[[str], bool], schedule: Callable[[], None]) -> None:
        """`takes_part` returns whether an exchange name is in the overlay; `schedule` requests a call of `take`."""
        self._vhost = vhost
        self._takes_part = takes_part
        self._schedule = schedule
        self._entries: deque[tuple[_Pair, Iterator[_Entry]]] = deque()
        self._unannounced: Counter[str] = Counter()  # how many entries `added` made for a binding
        self._pending: Counter[_Pair] = Counter()  # the number of entries of each pair
        self._announced: dict[str, Wanted] = {}
        self._new: list[tuple[str, _Pair]] = []  # announced bindings whose start points are not known yet
        self._latest: dict[_Pair, int] = {}  # the highest start point of a pair's bindings
        self._start_point: Callable[[str], int] = dict[str, int]().__getitem__

    @property
    def busy(self) -> bool:
        """Whether any change is waiting."""
        return bool(self._entries)

    def added(self, source: Exchange, destination: Any, key: str, arguments: Mapping[str, Any]) -> None:
        """Record a new binding."""
        if self._takes_part(source.name):
            self._unannounced[binding_id(self._vhost, source, destination, key, arguments)] += 1
            self._append((source, destination), iter([(True, source, destination, key, arguments)]))

    def removed(self, source: Exchange, destination: Any, key: str, arguments: Mapping[str, Any]) -> None:
        """Record a removed binding."""
        self._append((source, destination), iter([(False, source, destination, key, arguments)]))

    def added_all(self, bundle: Bundle[Exchange]) -> None:
        """Record all bindings from an exchange to one destination."""
        self._append((bundle.source, bundle.destination), _entries(bundle.copy(), added=True))

    def removed_all(self, bundle: Bundle[Exchange]) -> None:
        """Record the removal of all bindings from an exchange to one destination."""
        self._latest.pop((bundle.source, bundle.destination), None)
        self._append((bundle.source, bundle.destination), _entries(bundle.copy(), added=False))

    def _append(self, pair: _Pair, entries: Iterator[_Entry]) -> None:
        if self._takes_part(pair[0].name):
            self._entries.append((pair, entries))
            self._pending[pair] += 1
            self._schedule()

    def take(self, limit: int = BATCH_BINDINGS) -> tuple[list[Wanted], list[Wanted]]:
        """Return the next batch of added and removed bindings; one in both was replaced.

        A binding that was removed and added again is a new one, with a new start point.
        Cost: at most `limit` changes; `busy` says whether more are waiting.
        """
        changes: dict[str, Wanted | None] = {}
        pairs: dict[str, _Pair] = {}
        cut: set[str] = set()
        while self._entries and limit:
            pair, entries = self._entries[0]
            entry = next(entries, None)
            if entry is None:
                self._entries.popleft()
                _count_down(self._pending, pair)
                continue
            limit -= 1
            is_added, source, destination, key, arguments = entry
            binding = binding_id(self._vhost, source, destination, key, arguments)
            space = Space(self._vhost, source.name)
            durable = source.durable and destination.durable
            wanted_now = conjunction(space, source.kind_of_patterns, key)
            changes[binding] = (binding, wanted_now, durable) if is_added else None
            pairs[binding] = pair
            if is_added:
                _count_down(self._unannounced, binding)
            else:
                cut.add(binding)
        added: list[Wanted] = []
        removed: list[Wanted] = []
        for binding, wanted in changes.items():
            before = self._announced.get(binding)
            if wanted == before and (wanted is None or binding not in cut):
                continue
            if before is not None:
                removed.append(self._announced.pop(binding))
            if wanted is not None:
                self._announced[binding] = wanted
                added.append(wanted)
                self._new.append((binding, pairs[binding]))
        return added, removed

    def announced(self) -> list[str]:
        """Return the ids of all announced bindings. Cost: O(bindings)."""
        return list(self._announced)

    # -- start points -------------------------------------------------------------------------------------------------

    def note_start_points(self, start_point: Callable[[str], int]) -> None:
        """Record the start points of the last batch's bindings, which `start_point` returns until the next batch."""
        self._start_point = start_point
        new, self._new = self._new, []
        for binding, pair in new:
            source, destination = pair
            if destination in source.bundles:
                self._latest[pair] = max(self._latest.get(pair, 0), start_point(binding))

    def routes(
        self, source: Exchange, destination: Any, keys: Sequence[str], fields: MessageFields, virtual_time: int
    ) -> bool:
        """Return whether a binding that starts up to `virtual_time` routes a message to a destination that matches it.

        Cost: O(1) if all bindings of the pair are announced with such a start point, else O(bindings of the pair).
        """
        pair = source, destination
        if pair not in self._pending and self._latest.get(pair, UNANNOUNCED) <= virtual_time:
            return True
        bundle = source.bundles.get(destination)
        return bundle is not None and any(
            source.matches(key, arguments, keys, fields)
            and self._has_begun(binding_id(self._vhost, source, destination, key, arguments), virtual_time)
            for key, arguments in bundle.items()
        )

    def _has_begun(self, binding: str, virtual_time: int) -> bool:
        try:
            return binding not in self._unannounced and self._start_point(binding) <= virtual_time
        except KeyError:
            return False


def _count_down(counts: Counter[Any], key: Hashable) -> None:
    """Decrease a count, and remove it at zero."""
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]


def _entries(bundle: Bundle[Exchange], *, added: bool) -> Iterator[_Entry]:
    for key, arguments in bundle.items():
        yield added, bundle.source, bundle.destination, key, arguments
