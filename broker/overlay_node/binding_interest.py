"""The interest of one vhost: each binding of an overlay exchange asks the overlay for a conjunction."""

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
"""The id of a binding, what it asks for, and whether it outlives a restart."""

NEVER: Final = 1 << 62  # the start point of a binding that was not announced yet
BATCH_BINDINGS: Final = 2000  # of some microseconds
_Entry = tuple[bool, "Exchange", Any, str, Mapping[str, Any]]  # whether the binding was made or removed
_Pair = tuple["Exchange", Hashable]  # a source and a destination


def binding_id(vhost: str, source: Exchange, destination: Any, key: str, arguments: Mapping[str, Any]) -> str:
    """Return the id of a binding: the same after a restart, another one for a queue that is declared again."""
    is_queue = isinstance(destination, Queue)
    place = f"q{destination.number}" if is_queue else f"x{destination.name}"
    table = json.dumps(typed_table(arguments), sort_keys=True) if arguments else ""
    return f"{vhost}\0{source.name}\0{source.kind_of_patterns}\0{place}\0{key}\0{table}"


class BindingInterest:
    """Collect the interest of a vhost's overlay bindings, and announce it in batches. Bindings of queues and of
    exchanges count alike, because an exchange can pass on only the messages that it gets. Invariant: the batches, in
    order, result in the existing bindings, however often one was added and removed meanwhile. A binding takes effect
    before it is announced; until then it gets no messages of other brokers. Cost: one entry for each binding added or
    removed; a deleted queue's bindings are copied as references.
    """

    def __init__(self, vhost: str, takes_part: Callable[[str], bool], schedule: Callable[[], None]) -> None:
        """`takes_part` tells whether an exchange of that name is in the overlay, `schedule` asks for a `take`."""
        self._vhost = vhost
        self._takes_part = takes_part
        self._schedule = schedule
        self._entries: deque[tuple[_Pair, Iterator[_Entry]]] = deque()
        self._untold: Counter[str] = Counter()  # how often each binding was made since it was told
        self._pending: Counter[_Pair] = Counter()  # between which two there are entries
        self._told: dict[str, Wanted] = {}
        self._fresh: list[tuple[str, _Pair]] = []  # told, and their start points are not known yet
        self._latest: dict[_Pair, int] = {}  # the highest start point between the two
        self._start_point: Callable[[str], int] = dict[str, int]().__getitem__

    @property
    def busy(self) -> bool:
        """Whether any change is waiting."""
        return bool(self._entries)

    def made(self, source: Exchange, destination: Any, key: str, arguments: Mapping[str, Any]) -> None:
        """Record a new binding."""
        if self._takes_part(source.name):
            self._untold[binding_id(self._vhost, source, destination, key, arguments)] += 1
            self._note((source, destination), iter([(True, source, destination, key, arguments)]))

    def removed(self, source: Exchange, destination: Any, key: str, arguments: Mapping[str, Any]) -> None:
        """Record a removed binding."""
        self._note((source, destination), iter([(False, source, destination, key, arguments)]))

    def began(self, bundle: Bundle[Exchange]) -> None:
        """Record the bindings from an exchange to one destination."""
        self._note((bundle.source, bundle.destination), _entries(bundle.copy(), made=True))

    def ended(self, bundle: Bundle[Exchange]) -> None:
        """Record the removal of the bindings from an exchange to one destination."""
        self._latest.pop((bundle.source, bundle.destination), None)
        self._note((bundle.source, bundle.destination), _entries(bundle.copy(), made=False))

    def _note(self, pair: _Pair, entries: Iterator[_Entry]) -> None:
        if self._takes_part(pair[0].name):
            self._entries.append((pair, entries))
            self._pending[pair] += 1
            self._schedule()

    def take(self, left: int = BATCH_BINDINGS) -> tuple[list[Wanted], list[Wanted]]:
        """Return the next batch: new bindings and removed ones; one in both was replaced.

        A binding that was removed and made again is another one, which starts over.
        Cost: at most `left` changes; `busy` tells whether there are more.
        """
        changes: dict[str, Wanted | None] = {}
        ends: dict[str, _Pair] = {}
        cut: set[str] = set()
        while self._entries and left:
            pair, entries = self._entries[0]
            entry = next(entries, None)
            if entry is None:
                self._entries.popleft()
                _count_down(self._pending, pair)
                continue
            left -= 1
            made, source, destination, key, arguments = entry
            one = binding_id(self._vhost, source, destination, key, arguments)
            space = Space(self._vhost, source.name)
            durable = source.durable and destination.durable
            asked = conjunction(space, source.kind_of_patterns, key)
            changes[one] = (one, asked, durable) if made else None
            ends[one] = pair
            if made:
                _count_down(self._untold, one)
            else:
                cut.add(one)
        added: list[Wanted] = []
        removed: list[Wanted] = []
        for one, wanted in changes.items():
            before = self._told.get(one)
            if wanted == before and (wanted is None or one not in cut):
                continue
            if before is not None:
                removed.append(self._told.pop(one))
            if wanted is not None:
                self._told[one] = wanted
                added.append(wanted)
                self._fresh.append((one, ends[one]))
        return added, removed

    def known(self) -> list[str]:
        """Return the ids of all announced bindings. Cost: O(bindings)."""
        return list(self._told)

    # -- start points -------------------------------------------------------------------------------------------------

    def note_start_points(self, start_point: Callable[[str], int]) -> None:
        """Record the start points of the bindings of the last batch. Raises: KeyError from `start_point` for a binding
        that was not announced.
        """
        self._start_point = start_point
        fresh, self._fresh = self._fresh, []
        for one, pair in fresh:
            source, destination = pair
            if destination in source.bundles:
                self._latest[pair] = max(self._latest.get(pair, 0), start_point(one))

    def gets(
        self, source: Exchange, destination: Any, keys: Sequence[str], fields: MessageFields, virtual_time: int
    ) -> bool:
        """Return whether a binding that began up to a virtual time routes a message to a destination.

        Cost: the bindings between the two, unless all of them have reached it.
        """
        pair = source, destination
        if pair not in self._pending and self._latest.get(pair, NEVER) <= virtual_time:
            return True
        bundle = source.bundles.get(destination)
        return bundle is not None and any(
            source.matches(key, arguments, keys, fields)
            and self._has_begun(binding_id(self._vhost, source, destination, key, arguments), virtual_time)
            for key, arguments in bundle.items()
        )

    def _has_begun(self, binding: str, virtual_time: int) -> bool:
        try:
            return binding not in self._untold and self._start_point(binding) <= virtual_time
        except KeyError:
            return False


def _count_down(counts: Counter[Any], one: Hashable) -> None:
    """Decrease a count, and forget it at zero."""
    counts[one] -= 1
    if counts[one] <= 0:
        del counts[one]


def _entries(bundle: Bundle[Exchange], *, made: bool) -> Iterator[_Entry]:
    for key, arguments in bundle.items():
        yield made, bundle.source, bundle.destination, key, arguments
