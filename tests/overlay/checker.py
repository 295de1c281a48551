"""Checks the guarantees of a simulated overlay while it runs and at its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache

from broker.overlay.inner import Inner
from broker.overlay.leaf import Leaf
from broker.overlay.packets import Space, StreamName, VectorChange
from broker.overlay.sink import Delivery, StreamGap
from broker.routing.cover_set import CoverSet
from broker.routing.pattern import parse_pattern
from tests.overlay.faulty_leaf import FaultyLeaf, SimulatedBinding, SimulatedPublish
from tests.overlay.faulty_network import FaultyNetwork

MANY_PATTERNS = 100


class Broken(AssertionError):
    """A guarantee of the overlay was violated."""


class Checker:
    """Watches all leaves of a network. Raises: Broken.

    With `may_lose`, messages may be missing where the leaf reported a gap, because of limits and of leaves that were
    given up. Messages too large for a broker may always be missing where the leaf reported a gap.

    A leaf whose data folder was replaced by an older copy has lost the messages that it received since the copy and
    those published for its former incarnation. Later messages must arrive, from it and at it. Messages that the copy
    still retained for others may be delivered a second time.
    """

    def __init__(self, network: FaultyNetwork, *, may_lose: bool = False) -> None:
        self._network = network
        self._may_lose = may_lose
        self._limit_bytes = min(member.limit_bytes for member in network.members())
        self._last: dict[tuple[str, StreamName], int] = defaultdict(int)
        self.delivered = 0
        network.on_replace = self._replaced
        for leaf in network.leaves.values():
            leaf.on_commit = self._committed
            leaf.log.on_trim = self._watch_trim(leaf)

    def quiet(self) -> str:
        """Return a description of something that is not settled yet, or an empty string."""
        for leaf in self._network.leaves.values():
            for space, source in leaf.leaf.sources.items():
                if source.needed_from() <= leaf.log.streams[space].last or source.trimmed < source.last:
                    return f"{leaf.name} {space.exchange}: needed from {source.needed_from()}, last {source.last}"
                if self._network.cut_for_good:
                    continue
                if leaf.log.streams[space].bound == {"#"} != set(leaf.leaf.interest.roots(_only(leaf.leaf), space)):
                    return f"{leaf.name} floods {space.exchange}"
        return "" if self._network.cut_for_good else self._tables()

    def final(self) -> None:
        """Check all guarantees once nothing is in flight."""
        for publisher in self._network.leaves.values():
            for space, messages in publisher.published.items():
                self._check_vectors(publisher, space)
                for leaf in self._network.leaves.values():
                    if leaf is not publisher:
                        self._check_complete(publisher, space, messages, leaf)
        for leaf in self._network.leaves.values():
            times = leaf.virtual_times
            if times != sorted(times):
                raise Broken(f"the virtual time of {leaf.name} decreased: {times}")
            older = leaf.leaf.take_skipped_times(), leaf.leaf.take_rolled_back()
            if any(older) and not leaf.replaced:
                raise Broken(f"{leaf.name} takes its data folder for an older copy: {older}")
            for gap in leaf.gaps:
                if not (self._may_lose or self._is_too_large(gap) or (leaf.replaced and self._is_of_no_message(gap))):
                    raise Broken(f"{leaf.name} found a gap: {gap}")

    def _check_complete(
        self, publisher: FaultyLeaf, space: Space, messages: Iterable[SimulatedPublish], leaf: FaultyLeaf
    ) -> None:
        stream = StreamName(publisher.name, space)
        for message in messages:
            promised = message.vector.get(leaf.name, 0)
            if message.key in leaf.arrived and not _is_of_another_life(leaf, promised):
                time = leaf.arrived[message.key]
                if time != promised:
                    raise Broken(f"{leaf.name} took {message} of {stream} for one of its virtual time {time}")
            for binding in leaf.bindings.values():
                if message.key in binding.got or not _is_due_to(binding, leaf, space, message):
                    continue
                if not self._is_excused(leaf, stream, message):
                    raise Broken(f"{leaf.name} misses {message} of {stream} for {binding}")

    def _is_excused(self, leaf: FaultyLeaf, stream: StreamName, message: SimulatedPublish) -> bool:
        if not (self._may_lose or message.size_bytes > self._limit_bytes):
            return False
        publisher = self._network.leaves[stream.leaf]
        gaps = (gap for gap in leaf.gaps if gap.stream[:2] == stream[:2])
        return any(
            message.number is None
            or (_is_in(gap, message) and publisher.began(message.incarnation, gap.stream.incarnation))
            for gap in gaps
        )

    def _is_too_large(self, gap: StreamGap) -> bool:
        """Return whether all messages of a gap are too large for a broker."""
        space, incarnation = gap.stream.space, gap.stream.incarnation
        publisher = self._network.leaves[gap.stream.leaf]
        of_all_lives = [*publisher.published[space], *publisher.lost_life[space]]
        own = [message for message in of_all_lives if message.incarnation == incarnation and _is_in(gap, message)]
        found = own or [message for message in publisher.published[space] if _is_in(gap, message)]
        return bool(found) and all(message.size_bytes > self._limit_bytes for message in found)

    def _is_of_no_message(self, gap: StreamGap) -> bool:
        """Return whether a gap contains no message, only a vector change of another incarnation."""
        publisher, space = self._network.leaves[gap.stream.leaf], gap.stream.space
        messages = [*publisher.published[space], *publisher.lost_life[space]]
        return not any(_is_in(gap, message) for message in messages if message.incarnation == gap.stream.incarnation)

    def _check_vectors(self, publisher: FaultyLeaf, space: Space) -> None:
        before: VectorChange | None = None
        for message in publisher.log.streams[space].elements.values():
            if isinstance(message, VectorChange):
                for leaf, time in message.old.items():
                    if message.new.get(leaf, time) < time:
                        raise Broken(f"V_m of {publisher.name} decreases: {message}")
                if before is not None and dict(before.new) != dict(message.old):
                    raise Broken(f"V_m of {publisher.name} skips a change: {before} {message}")
                before = message

    def _committed(self, leaf: str, delivery: Delivery, getting: list[SimulatedBinding]) -> None:
        last = self._last[leaf, delivery.stream]
        number, key = delivery.data.number, id(delivery.data)
        publisher = self._network.leaves[delivery.stream.leaf]
        if number <= last and key not in publisher.copied:  # a folder may be restored twice
            raise Broken(f"{leaf} got {number} of {delivery.stream} after {last}")
        member = self._network.leaves[leaf]
        if key in member.arrived and key not in publisher.copied:
            raise Broken(f"{leaf} got {number} of {delivery.stream} twice")
        message = publisher.messages[key]
        promises_anew = _is_of_another_life(member, message.vector.get(leaf, 0))
        for binding in getting:
            if message.event < binding.made and not promises_anew:
                raise Broken(f"{leaf} got {number} of {delivery.stream}, from before it made {binding}")
        self._last[leaf, delivery.stream] = number
        self.delivered += 1

    def _replaced(self, leaf: FaultyLeaf) -> None:
        """Reset a leaf's last numbers to those in its copied data folder."""
        self._last = defaultdict(int, {place: last for place, last in self._last.items() if place[0] != leaf.name})
        for stream, numbers in leaf.received_numbers.items():
            self._last[leaf.name, stream] = max(numbers, default=0)

    def _watch_trim(self, publisher: FaultyLeaf) -> Callable[[Space, int, int], None]:
        def check(space: Space, trimmed: int, upto: int) -> None:
            if self._may_lose:
                return
            stream = StreamName(publisher.name, space)
            for message in publisher.published[space]:
                if message.number is not None and trimmed < message.number <= upto:
                    for leaf in self._network.leaves.values():
                        if leaf is publisher or message.key in leaf.arrived:
                            continue
                        if _is_due(leaf, space, message) and not self._is_excused(leaf, stream, message):
                            raise Broken(f"{stream} trims {message}, which {leaf.name} lacks")

        return check

    def _tables(self) -> str:
        """Return the first table that differs from the bindings of the leaves behind it, or an empty string."""
        network = self._network
        for member in network.members():
            broker = member.broker
            assert isinstance(broker, Leaf | Inner)
            for leaf in network.leaves.values():
                time = leaf.leaf.interest.time(leaf.name)
                if broker.interest.time(leaf.name) != time:
                    return f"{member.name} knows {leaf.name} up to {broker.interest.time(leaf.name)}, not {time}"
            for node in network.topology.neighbours[member.node]:
                behind = network.behind(member.node, node)
                for space in network.spaces:
                    known = broker.interest.roots(node, space)
                    wanted = _wanted(network, behind, space)
                    if "#" in known and network.patterns_max < MANY_PATTERNS:
                        continue  # the full feed: some broker had too many patterns
                    if not _equal(known, wanted):
                        return f"{member.name} knows {sorted(known)} of {node}, not {sorted(wanted)}"
        return ""


def _is_in(gap: StreamGap, message: SimulatedPublish) -> bool:
    """Return whether a message's number is in a gap."""
    return message.number is not None and gap.first <= message.number <= gap.last


def _is_due(leaf: FaultyLeaf, space: Space, message: SimulatedPublish) -> bool:
    """Return whether a message must reach some binding of a leaf."""
    return any(_is_due_to(binding, leaf, space, message) for binding in leaf.bindings.values())


def _is_due_to(binding: SimulatedBinding, leaf: FaultyLeaf, space: Space, message: SimulatedPublish) -> bool:
    if not (binding.durable or leaf.is_running):
        return False
    time = message.vector.get(leaf.name, 0)
    return not _is_of_another_life(leaf, time) and binding.gets(space, message.keys, time)


def _is_of_another_life(leaf: FaultyLeaf, time: int) -> bool:
    """Return whether a leaf may have announced a virtual time before its data folder was replaced."""
    if not leaf.replaced:
        return False
    if not leaf.is_running:
        return True
    interest = leaf.leaf.interest
    return time <= interest.own_time.recovered or interest.own_time.recognize(time) is None


def _wanted(network: FaultyNetwork, behind: Iterable[str], space: Space) -> set[str]:
    return {
        binding.conjunction.pattern
        for name in behind
        if name in network.leaves
        for binding in network.leaves[name].bindings.values()
        if binding.conjunction.space == space
    }


def _equal(known: Iterable[str], wanted: Iterable[str]) -> bool:
    """Return whether two sets of patterns have the same closure by covering."""
    return _closure(frozenset(known)) == _closure(frozenset(wanted))


@lru_cache(maxsize=10_000)
def _closure(texts: frozenset[str]) -> frozenset[str]:
    patterns = CoverSet()
    for text in texts:
        patterns.add(parse_pattern(text))
    return frozenset(root.text for root in patterns.roots)


def _only(leaf: Leaf) -> str:
    (node,) = leaf.peers.nodes
    return node
