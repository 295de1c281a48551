"""The interest in each direction by the paper's constraint vectors: a set of patterns per tree node, not per sender."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from broker.overlay.expected_time import ExpectedTime
from broker.overlay.interest_scheme import InterestScheme
from broker.overlay.packets import Conjunction, Space, Vector
from broker.overlay.virtual_time import later

_NODE: Final = ""
"""The holder of a tree node's patterns: which of its brokers announced them is not kept."""


@dataclass(frozen=True, slots=True)
class Increment:
    """What one batch at one leaf changed; it may be applied where V_b equals the constraint in each of its elements.

    A `whole` constraint has an element for every leaf behind the sender: those that it does not name have 0.
    """

    leaf: str
    time: int
    added: tuple[Conjunction, ...]
    removed: tuple[Conjunction, ...]
    constraint: Vector
    whole: bool
    touched: tuple[Space, ...]


@dataclass(frozen=True, slots=True)
class FullState:
    """All that the sender announces, complete up to a vector.

    A leaf that sees no message with its last virtual time begins a refresh: every broker passes its own full state on
    once, news or not. `refresh` is the leaf, and its time and a count, by which a repetition is known.
    """

    patterns: tuple[Conjunction, ...]
    slice: Vector
    refresh: tuple[str, tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class Lagging:
    """An increment could not be applied, or a message has a later vector: send the full state."""


ConstraintPacket = Increment | FullState | Lagging


class ConstraintInterest(InterestScheme):
    """The interest in each direction of one logical broker, by constraint vectors. The interface is that of `Interest`.

    A tree node's patterns are merged from the increments of all its brokers. Two brokers that aggregated in different
    orders send different increments for one batch, so each carries the vector of the state that it was computed on.
    Simulations and tests use it; brokers use replicas, which reject nothing. The brokers of one tree node have to
    aggregate alike: an increment of one says nothing of patterns that another one announced and it did not.

    Reading: a constraint holds where its elements are *equal* to V_b. An increment whose time V_b has reached is a
    repetition. Otherwise the sender is asked for its full state: where an element of V_b is smaller the receiver lags
    behind, and where one is larger the increment was computed without knowing it. A full state replaces all patterns
    of its tree node where it is as late as V_b in each element, and is dropped where V_b is as late as it; where
    neither is, the patterns of both hold up to the later of both vectors.

    Invariant: as for `Interest`. Patterns that no one wants may stay until the next full state.
    Source: the Gryphon paper, sections 3.4 and 4.
    """

    def _begin(self) -> None:
        self.rejected = 0  # increments that could not be applied
        self._sessions: dict[tuple[str, str], int] = {}
        self._lost_ms: dict[str, int] = {}
        self._output: list[tuple[str, str, ConstraintPacket]] = []
        self._expected = ExpectedTime()
        self._refreshes = 0
        self._refreshed: dict[str, tuple[int, int]] = {}
        if self._own_leaf is not None:
            self._set_times(self._own_node, {self._own_leaf: 0})

    # ---- links -------------------------------------------------------------------------------------------------------

    def connected(self, node: str, broker: str, session: int) -> None:
        """Begin a session with a broker of a neighbour node: it gets the full state."""
        self._sessions[node, broker] = session
        self._lost_ms.pop(node, None)
        self._output = [packet for packet in self._output if packet[:2] != (node, broker)]
        self._send_full(node, broker)

    def lost(self, node: str, broker: str, now_ms: int) -> None:
        """Note that the link to a broker was lost; with the last one of a tree node its patterns begin to age."""
        if self._sessions.pop((node, broker), None) is not None:
            self._output = [packet for packet in self._output if packet[:2] != (node, broker)]
            if not any(other == node for other, _ in self._sessions):
                self._lost_ms[node] = now_ms

    def received(self, node: str, broker: str, packet: ConstraintPacket, now_ms: int) -> None:
        """Apply a packet of a connected broker."""
        if (node, broker) not in self._sessions:
            return
        if isinstance(packet, Lagging):
            self._send_full(node, broker)
        elif isinstance(packet, FullState):
            self._replace(node, packet)
        elif self._times[node].get(packet.leaf, 0) >= packet.time:
            return
        elif self._holds(packet, node):
            self._increment(node, packet)
        else:
            self.rejected += 1
            self.lags(node, broker)

    def lags(self, node: str, broker: str) -> None:
        """Ask a broker for its full state: what it sends is later than what this broker knows."""
        request = (node, broker, Lagging())
        if request not in self._output:
            self._output.append(request)

    def take_output(self, now_ms: int) -> list[tuple[str, str, ConstraintPacket]]:
        """Return the packets to send; a leaf repeats its full state when messages should long have its last time."""
        if self._expected.due(now_ms):
            assert self._own_leaf is not None
            self._refreshes += 1
            self._pass_on(self._own_node, (self._own_leaf, (self._time.now, self._refreshes)))
        for node, lost_ms in list(self._lost_ms.items()):
            if now_ms - lost_ms >= self._withdraw_after_ms:
                del self._lost_ms[node]
                self._set_times(node, {})
                self._swap(node, ())
        output = self._output
        self._output = []
        return output

    def observed(self, time: int, now_ms: int) -> None:
        """Note that a leaf has received a message whose V_m has this time for the leaf."""
        self._expected.observe(time, now_ms)

    # ---- the leaf broker's own subscriptions -------------------------------------------------------------------------

    def change(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str], now_ms: int = 0) -> None:
        """Apply a batch, as `Interest.change`; the first one is announced as the full state."""
        batch = self._apply_batch(added, removed)
        assert self._own_leaf is not None
        if self._batches > 1 and not batch.touched:
            return
        ended = self._time.advance()
        self._expected.expect(ended, now_ms)
        increment = Increment(
            self._own_leaf,
            ended,
            added=tuple(root for root, came in batch.roots.items() if came),
            removed=tuple(root for root, came in batch.roots.items() if not came),
            constraint={self._own_leaf: ended - 1},
            whole=False,
            touched=tuple(sorted(batch.touched)),
        )
        if self._batches > 1:
            self._increment(self._own_node, increment)
        else:
            self._replace(self._own_node, FullState(increment.added, {self._own_leaf: ended}))

    # ---- what is known -----------------------------------------------------------------------------------------------

    def vector(self, node: str, space: Space) -> dict[str, int]:
        """Return V_b of the leaves behind a tree node. Which of them are interested in the space is not known."""
        return dict(self._times[node])

    def interested(self, node: str, broker: str, space: Space) -> frozenset[str]:
        """Return the leaves behind a tree node."""
        return self.leaves(node)

    # ---- changes -----------------------------------------------------------------------------------------------------

    def _holds(self, increment: Increment, node: str) -> bool:
        """Return whether V_b equals the constraint in each of its elements; greater is not enough."""
        times = self._times[node]
        elements = {*increment.constraint, *(times if increment.whole else ())}
        return all(times.get(leaf, 0) == increment.constraint.get(leaf, 0) for leaf in elements)

    def _increment(self, node: str, increment: Increment) -> None:
        """Apply an increment, and send each neighbour the change that it makes there.

        Its constraint stays as it is where the increment only adds and nothing was merged. Otherwise it was computed on
        all that this broker knows.
        """
        before = {neighbour: self._slice(neighbour) for neighbour in self._neighbours}
        told = self._alter(node, increment.added, increment.removed)
        self._set_times(node, {**self._times[node], increment.leaf: increment.time})
        self._touched.update(increment.touched)
        for neighbour, broker in self._sessions:
            if neighbour == node:
                continue
            changes = told.get(neighbour, {})
            added = tuple(conjunction for conjunction, came in changes.items() if came)
            removed = tuple(conjunction for conjunction, came in changes.items() if not came)
            whole = bool(increment.whole or removed or increment.removed or set(added) != set(increment.added))
            constraint = before[neighbour] if whole else increment.constraint
            onward = replace(increment, added=added, removed=removed, constraint=constraint, whole=whole)
            self._output.append((neighbour, broker, onward))

    def _replace(self, node: str, full: FullState) -> None:
        """Apply a full state as far as it is news, and pass on the full states that follow from it."""
        times = self._times[node]
        is_late = all(full.slice.get(leaf, -1) >= time for leaf, time in times.items())
        if is_late:
            self._swap(node, full.patterns)
        is_news = any(times.get(leaf, -1) < time for leaf, time in full.slice.items())
        if is_news:
            if not is_late:
                self._alter(node, full.patterns, ())
            self._set_times(node, later(times, full.slice))
            self._touched.update(conjunction.space for conjunction in full.patterns)
        if full.refresh is not None and full.refresh[1] > self._refreshed.get(full.refresh[0], (0, 0)):
            self._refreshed[full.refresh[0]] = full.refresh[1]
            self._pass_on(node, full.refresh)
        elif is_news:
            self._pass_on(node, None)

    def _pass_on(self, node: str, refresh: tuple[str, tuple[int, int]] | None) -> None:
        """Send the full state to all brokers but those of one tree node."""
        for neighbour, broker in self._sessions:
            if neighbour != node:
                self._send_full(neighbour, broker, refresh)

    def _swap(self, node: str, patterns: Iterable[Conjunction]) -> None:
        """Let a tree node want these patterns and no others."""
        wanted = set(patterns)
        known = {Conjunction(space, text) for space, table in self._tables.items() for text in table.patterns(node)}
        self._touched.update(conjunction.space for conjunction in known ^ wanted)
        self._alter(node, wanted - known, known - wanted)

    def _alter(
        self, node: str, added: Iterable[Conjunction], removed: Iterable[Conjunction]
    ) -> dict[str, dict[Conjunction, bool]]:
        """Add and remove patterns of a tree node, and return what that is for each neighbour."""
        self.version += 1
        told: dict[str, dict[Conjunction, bool]] = {}
        for conjunction, comes in [*((one, True) for one in added), *((one, False) for one in removed)]:
            alter = self._hold if comes else self._release
            for neighbour, texts in (alter(node, _NODE, conjunction) or {}).items():
                changes = told.setdefault(neighbour, {})
                for text, came in texts.items():
                    root = Conjunction(conjunction.space, text)
                    if changes.pop(root, came) == came:
                        changes[root] = came
        return told

    def _set_times(self, node: str, times: dict[str, int]) -> None:
        """Set V_b of the leaves behind a tree node."""
        before = self._times[node]
        self._times[node] = times
        for leaf in before.keys() ^ times.keys():
            self._locate(leaf)

    def _slice(self, node: str) -> dict[str, int]:
        """Return V_b of the leaves in all directions but one."""
        return {leaf: time for other, times in self._times.items() if other != node for leaf, time in times.items()}

    def _send_full(self, node: str, broker: str, refresh: tuple[str, tuple[int, int]] | None = None) -> None:
        self._output.append((node, broker, FullState(tuple(self._announced_to(node)), self._slice(node), refresh)))
