"""The interest in each direction by the paper's constraint vectors: a set of patterns per tree node, not per sender."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from broker.overlay.aggregation import checksum
from broker.overlay.interest import Interest
from broker.overlay.packets import Conjunction, InterestPacket, Packet, Space, Vector
from broker.overlay.virtual_time import later
from tests.overlay.reference.packets import FullState, Increment, InterestSummary, Lagging

SUMMARY_MS: Final = 1000
FIRST_MS: Final = 1000.0  # until an announced virtual time is expected in a message, before any was measured
MIN_MS: Final = 200.0
MAX_MS: Final = 30_000.0
_NO_SUMMARY: Final = InterestSummary(0, {}, 0)
_NO_SPACES: Final[frozenset[Space]] = frozenset()
_NODE: Final = ""
"""The holder of a tree node's patterns: the announcing broker is not kept."""

_Receiver = tuple[str, str]


class Summaries:
    """The last summary of each sender in its session, by tree node and broker."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], InterestSummary] = {}

    def receive(self, node: str, broker: str, summary: InterestSummary) -> bool:
        """Keep a summary, unless a later one came before, and return whether its serial differs."""
        before = self.of(node, broker)
        if summary.serial >= before.serial:
            self._last[node, broker] = summary
        return summary.serial > before.serial

    def end(self, node: str, broker: str) -> None:
        """Forget the summary of a sender whose session has ended."""
        self._last.pop((node, broker), None)

    def of(self, node: str, broker: str) -> InterestSummary:
        """Return the last summary of a sender, with serial 0 if there is none."""
        return self._last.get((node, broker), _NO_SUMMARY)

    def interested(self, node: str, broker: str, space: Space) -> frozenset[str]:
        """Return the leaves that a sender named as interested in a space."""
        return frozenset(dict(self.of(node, broker).interested).get(space, ()))

    def reachable(self, node: str) -> set[str]:
        """Return the leaves that are reachable over any broker of a tree node."""
        return {leaf for (there, _), summary in self._last.items() if there == node for leaf in summary.reachable}

    def lists(self, node: str, leaf: str) -> bool:
        """Return whether a broker of a tree node lists a leaf."""
        return any(there == node and leaf in summary.slice for (there, _), summary in self._last.items())


class LeafInterests:
    """By leaf broker: the spaces of its bindings, and whether any binding is durable, both as of its virtual time."""

    __slots__ = ("_durable", "_spaces")

    def __init__(self) -> None:
        self._spaces: dict[str, frozenset[Space]] = {}
        self._durable: set[str] = set()

    def note(self, leaf: str, spaces: Collection[Space], *, durable: bool) -> frozenset[Space]:
        """Note the interest of a leaf, and return its former and present spaces."""
        before = self.spaces(leaf)
        self._spaces[leaf] = frozenset(spaces)
        (self._durable.add if durable else self._durable.discard)(leaf)
        return before | self._spaces[leaf]

    def learn(self, leaves: Iterable[str], full: FullState) -> set[Space]:
        """Note the interest of some leaves in a full state, and return the former and present spaces."""
        touched: set[Space] = set()
        for leaf in leaves:
            spaces = [space for space, names in full.interested if leaf in names]
            touched |= self.note(leaf, spaces, durable=leaf in full.durable)
        return touched

    def drop(self, leaf: str) -> None:
        """Forget a leaf."""
        self._spaces.pop(leaf, None)
        self._durable.discard(leaf)

    def spaces(self, leaf: str) -> frozenset[Space]:
        """Return the spaces in which a leaf is interested."""
        return self._spaces.get(leaf, _NO_SPACES)

    def durable(self, leaves: Iterable[str]) -> frozenset[str]:
        """Return which of some leaves have durable bindings."""
        return frozenset(self._durable.intersection(leaves))

    def by_space(self, leaves: Iterable[str]) -> tuple[tuple[Space, tuple[str, ...]], ...]:
        """Return which of some leaves are interested in which spaces."""
        found: dict[Space, list[str]] = {}
        for leaf in sorted(leaves):
            for space in self.spaces(leaf):
                found.setdefault(space, []).append(leaf)
        return tuple((space, tuple(names)) for space, names in sorted(found.items()))


class ExpectedTime:
    """Estimates how long a virtual time takes to come back in a message, and tells when it is overdue.

    Source: the Gryphon paper, section 4; RFC 6298 for the estimate.
    """

    __slots__ = ("_due_ms", "_expected", "_smoothed_ms", "_timeout_ms", "_variation_ms", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int]] = deque()  # virtual times with when they were announced
        self._smoothed_ms: float | None = None
        self._variation_ms = 0.0
        self._timeout_ms = FIRST_MS
        self._expected = 0
        self._due_ms = 0.0

    def expect(self, time: int, now_ms: int) -> None:
        """Expect messages with a virtual time that was announced now."""
        self._waiting.append((time, now_ms))
        self._expected = time
        self._due_ms = now_ms + self._timeout_ms

    def is_late(self, time: int, now_ms: int) -> bool:
        """Take the virtual time of a message, and return whether the announcement should be repeated.

        The time to the next repetition grows.
        """
        while self._waiting and self._waiting[0][0] <= time:
            self._measure(now_ms - self._waiting.popleft()[1])
        if time >= self._expected or now_ms < self._due_ms:
            return False
        self._timeout_ms = min(2 * self._timeout_ms, MAX_MS)
        self._due_ms = now_ms + self._timeout_ms
        return True

    def _measure(self, took_ms: int) -> None:
        if self._smoothed_ms is None:
            self._smoothed_ms, self._variation_ms = took_ms, took_ms / 2
        else:
            self._variation_ms = 0.75 * self._variation_ms + 0.25 * abs(self._smoothed_ms - took_ms)
            self._smoothed_ms = 0.875 * self._smoothed_ms + 0.125 * took_ms
        self._timeout_ms = min(max(self._smoothed_ms + 4 * self._variation_ms, MIN_MS), MAX_MS)


class ConstraintInterest(Interest):
    """The interest in each direction of one logical broker, by constraint vectors. The interface is that of `Interest`.

    A tree node's patterns are merged from the increments of all its brokers. Two brokers that aggregated in different
    orders send different increments for one batch, so each carries the vector of the state that it was computed on.
    Simulations and tests use this scheme; brokers use replicas, which reject nothing.

    Reading: a constraint holds where its elements are *equal* to V_b. An increment whose time V_b has reached is a
    repetition. Otherwise the sender is asked for its full state: where an element of V_b is smaller the receiver lags
    behind, and where one is larger the increment was computed without knowing it. A full state replaces all patterns
    of its tree node where it is as late as V_b in each element, and is dropped where V_b is as late as it; where
    neither is, the patterns of both hold up to the later of both vectors.

    Beyond the paper: increments that only add may reach a broker in another order than its sibling, which leaves an
    unwanted pattern there. Two states of one vector differ then, and an increment that was merged into one of them says
    too little for the other. So a whole constraint has a checksum of the patterns, too.

    A summary goes to each neighbour broker when the leaves whose acks count change, and every second. A receiver
    that lacks something, or has other patterns at the same vector, asks for the full state.

    Invariant: as for `Interest`.
    Source: the Gryphon paper, sections 3.4 and 4.
    """

    def _begin(self) -> None:
        nodes = self._times
        self._sessions: dict[_Receiver, int] = {}
        self._summaries = Summaries()
        self._sent = dict.fromkeys(self._neighbours, InterestSummary(0, {}, 0))
        self._unsummarized: set[_Receiver] = set()
        self._is_summary_due = True  # what acks count for may have changed
        self._summary_ms = -SUMMARY_MS
        self._interests = LeafInterests()
        self._checksums = dict.fromkeys(nodes, 0)  # of the patterns that a tree node wants
        self._told = dict.fromkeys(self._neighbours, 0)  # of the patterns that it is told
        self._agreed: dict[str, set[int]] = {node: set() for node in nodes}  # checksums of full states at this V_b
        self._forgotten: set[str] = set()
        self._unlisted_ms: dict[str, int] = {}  # since when no broker of its tree node has listed a leaf
        self._output: list[tuple[str, str, Packet]] = []
        self._expected: dict[Space, ExpectedTime] = {}
        self._expectations: list[tuple[Space, int]] = []
        self._refreshes = 0
        self._refreshed: dict[str, tuple[int, int]] = {}
        if self._own_leaf is not None:
            self._set_times(self._own_node, {self._own_leaf: 0})

    # ---- links -------------------------------------------------------------------------------------------------------

    def connected(self, node: str, broker: str, session: int) -> None:
        """Begin a session with a broker of a neighbour node: it gets the full state."""
        if self._sessions.get((node, broker)) == session:
            return
        self._end(node, broker)
        self._sessions[node, broker] = session
        self._unsummarized.add((node, broker))
        self._send_full(node, broker)

    def lost(self, node: str, broker: str, now_ms: int) -> None:
        """Note that the link to a broker was lost. A leaf that no other broker lists begins to age."""
        if self._sessions.pop((node, broker), None) is not None:
            self._end(node, broker)
            for leaf in self._times[node]:
                if not self._summaries.lists(node, leaf):
                    self._unlisted_ms.setdefault(leaf, now_ms)

    def received(self, node: str, broker: str, packet: InterestPacket, now_ms: int) -> None:
        """Apply a packet of a connected broker."""
        if (node, broker) not in self._sessions:
            return
        if isinstance(packet, Lagging):
            self._send_full(node, broker)
        elif isinstance(packet, FullState):
            self._replace(node, packet)
        elif isinstance(packet, InterestSummary):
            self._compare(node, broker, packet)
        else:
            assert isinstance(packet, Increment)
            if self._times[node].get(packet.leaf, 0) >= packet.time:
                return
            if self._holds(packet, node):
                self._increment(node, packet)
            else:
                self.rejected += 1
                self.lags(node, broker)

    def lags(self, node: str, broker: str) -> None:
        """Ask a broker for its full state: what it sends is later than what this broker knows."""
        request = (node, broker, Lagging())
        if request not in self._output:
            self._output.append(request)

    def take_output(self, now_ms: int) -> list[tuple[str, str, Packet]]:
        """Return the packets to send, and withdraw the leaves that no broker has listed for too long."""
        for space, time in self._expectations:
            self._expected.setdefault(space, ExpectedTime()).expect(time, now_ms)
        self._expectations = []
        is_regular = now_ms >= self._summary_ms + SUMMARY_MS
        if is_regular:
            self._summary_ms = now_ms
            self._withdraw(now_ms)
        if is_regular or self._is_summary_due or self._unsummarized:
            self._summarize(to_all=is_regular)
        output = self._output
        self._output = []
        return output

    def observed(self, space: Space, time: int, now_ms: int) -> None:
        """Take the own leaf's entry in V_m of a message, and begin a refresh if it should long be a later one."""
        expected = self._expected.get(space)
        if expected is not None and expected.is_late(time, now_ms):
            assert self._own_leaf is not None
            self._refreshes += 1
            self._pass_on(self._own_node, (self._own_leaf, (self._time.now, self._refreshes)))

    def demanded(self, vector: Vector) -> None:
        """Take V_m of a message, and ask for what this broker lacks of it."""
        behind = {self._nodes.get(leaf) for leaf, time in vector.items() if self.time(leaf) < time}
        for node, broker in self._sessions:
            if node in behind:
                self.lags(node, broker)

    # ---- the leaf broker's own subscriptions -------------------------------------------------------------------------

    def change(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str]) -> None:
        """Apply a batch, as `Interest.change`; the first one is announced as the full state."""
        batch = self._apply_batch(added, removed)
        leaf = self._own_leaf
        assert leaf is not None
        if self._batches > 1 and not batch.touched and not batch.durable:
            return
        ended = self._time.advance()
        self._expectations += [(space, ended) for space in batch.touched]
        spaces = tuple(sorted(self._subscriptions.spaces))
        durable = self._subscriptions.durable
        roots = tuple(root for root, came in batch.roots.items() if came)
        if self._batches == 1:
            interested = tuple((space, (leaf,)) for space in spaces)
            self._replace(self._own_node, FullState(roots, {leaf: ended}, interested, (leaf,) if durable else ()))
            return
        increment = Increment(
            leaf,
            ended,
            roots,
            removed=tuple(root for root, came in batch.roots.items() if not came),
            constraint={leaf: ended - 1},
            spaces=spaces,
            durable=durable,
            touched=tuple(sorted(batch.touched)),
        )
        self._increment(self._own_node, increment)

    def leave_time(self, time: int) -> None:
        """Continue above a time that others have of this leaf and that it never had, as with a new full state."""
        leaf = self._own_leaf
        assert leaf is not None
        self._time.leave(time)
        ended = self._time.advance()
        spaces = tuple(sorted(self._subscriptions.spaces))
        self._expectations += [(space, ended) for space in spaces]
        patterns = tuple(Conjunction(space, text) for space in spaces for text in self.roots(self._own_node, space))
        interested = tuple((space, (leaf,)) for space in spaces)
        durable = (leaf,) if self._subscriptions.durable else ()
        self._replace(self._own_node, FullState(patterns, {leaf: ended}, interested, durable))

    # ---- what is known -----------------------------------------------------------------------------------------------

    def vector(self, node: str, space: Space) -> dict[str, int]:
        """Return V_b of the leaves behind a tree node that are interested in a space."""
        spaces = self._interests.spaces
        return {leaf: time for leaf, time in self._times[node].items() if space in spaces(leaf)}

    def durable(self, node: str) -> frozenset[str]:
        """Return the leaves behind a tree node that have durable bindings."""
        return self._interests.durable(self._times[node])

    def interested(self, node: str, broker: str, space: Space) -> frozenset[str]:
        """Return the leaves that one broker of a tree node named as interested in a space."""
        return self._summaries.interested(node, broker, space)

    def announced(self, node: str, broker: str) -> int:
        """Return the serial of the last summary sent to a broker, 0 if it was not told everything yet."""
        told = (node, broker) in self._sessions and (node, broker) not in self._unsummarized
        return self._sent[node].serial if told and not self._is_summary_due else 0

    def applied(self, node: str, broker: str) -> int:
        """Return the serial of the last summary of a broker, 0 if there is none."""
        return self._summaries.of(node, broker).serial

    def reachable(self, node: str, broker: str) -> frozenset[str]:
        """Return the leaves that are reachable over a broker now."""
        return frozenset(self._summaries.of(node, broker).reachable)

    def forget(self, leaf: str) -> None:
        """Withdraw a leaf that is gone for good, if no broker of its tree node lists it."""
        node = self._nodes.get(leaf)
        if node is not None and node != self._own_node and not self._summaries.lists(node, leaf):
            self._forgotten.add(leaf)
            self._drop(node, leaf)

    # ---- summaries ---------------------------------------------------------------------------------------------------

    def _summarize(self, *, to_all: bool) -> None:
        """Send summaries: to all brokers, or to new ones and those whose acks count for other leaves now."""
        due = set(self._sessions) if to_all else self._unsummarized
        self._unsummarized = set()
        self._is_summary_due = False
        reachable = {node: self._summaries.reachable(node) for node in self._neighbours}
        reachable[self._own_node] = set(self._times[self._own_node])
        for node in self._neighbours:
            before = self._sent[node]
            times = self._slice(node)
            summary = InterestSummary(
                before.serial,
                times,
                self._told[node],
                self._interests.by_space(times),
                tuple(sorted(leaf for other, leaves in reachable.items() if other != node for leaf in leaves)),
                tuple(sorted(self._forgotten)),
            )
            is_other = (summary.interested, summary.reachable) != (before.interested, before.reachable)
            if is_other or not before.serial:
                summary = replace(summary, serial=before.serial + 1)
            self._sent[node] = summary
            for receiver in self._sessions:
                if receiver[0] == node and (is_other or receiver in due):
                    self._output.append((*receiver, summary))

    def _compare(self, node: str, broker: str, summary: InterestSummary) -> None:
        """Take a summary, and ask for the full state if something is missing or differs."""
        if self._summaries.receive(node, broker, summary):
            self.version += 1
            self._is_summary_due = True
        for leaf in summary.forgotten:
            if self._nodes.get(leaf) == node:
                self.forget(leaf)
        times = self._times[node]
        lags = any(times.get(leaf, -1) < time for leaf, time in summary.slice.items())
        checksum = summary.checksum
        differs = checksum != self._checksums[node] and checksum not in self._agreed[node]
        if lags or (differs and summary.slice == times):
            self.lags(node, broker)

    def _end(self, node: str, broker: str) -> None:
        """Forget what was received and not sent in the last session with a broker."""
        self._summaries.end(node, broker)
        self._unsummarized.discard((node, broker))
        self._output = [packet for packet in self._output if packet[:2] != (node, broker)]
        self._is_summary_due = True
        self.version += 1

    def _withdraw(self, now_ms: int) -> None:
        """Withdraw the leaves without durable bindings that no broker has listed for too long."""
        for node in self._neighbours:
            durable = self.durable(node)
            for leaf in list(self._times[node]):
                if self._summaries.lists(node, leaf):
                    self._unlisted_ms.pop(leaf, None)
                    continue
                since_ms = self._unlisted_ms.setdefault(leaf, now_ms)
                if now_ms - since_ms >= self._withdraw_after_ms and leaf not in durable:
                    self._drop(node, leaf)

    def _drop(self, node: str, leaf: str) -> None:
        """Withdraw a leaf; its patterns go with the next full state, and at once if it was the last leaf."""
        times = {other: time for other, time in self._times[node].items() if other != leaf}
        self._touched |= self._interests.spaces(leaf)
        self._set_times(node, times)
        self._unlisted_ms.pop(leaf, None)
        if not times:
            self._swap(node, ())

    # ---- changes -----------------------------------------------------------------------------------------------------

    def _holds(self, increment: Increment, node: str) -> bool:
        """Return whether V_b equals the constraint in each of its elements; greater is not enough."""
        if increment.whole and increment.checksum != self._checksums[node]:
            return False
        times = self._times[node]
        elements = {*increment.constraint, *(times if increment.whole else ())}
        return all(times.get(leaf, 0) == increment.constraint.get(leaf, 0) for leaf in elements)

    def _increment(self, node: str, increment: Increment) -> None:
        """Apply an increment, and send each neighbour the change that it makes there.

        Its constraint stays as it is where the increment only adds and nothing was merged. Otherwise it was computed on
        all that this broker knows.
        """
        checksums = dict(self._told)
        told = self._alter(node, increment.added, increment.removed)
        for neighbour in self._neighbours:
            if neighbour == node:
                continue
            changes = told.get(neighbour, {})
            added = tuple(conjunction for conjunction, came in changes.items() if came)
            removed = tuple(conjunction for conjunction, came in changes.items() if not came)
            onward = replace(increment, added=added, removed=removed, checksum=checksums[neighbour])
            if increment.whole or removed or increment.removed or set(added) != set(increment.added):
                onward = replace(onward, whole=True, constraint=self._slice(neighbour))
            self._send_increment(neighbour, onward)
        self._interests.note(increment.leaf, increment.spaces, durable=increment.durable)
        self._set_times(node, {**self._times[node], increment.leaf: increment.time})
        self._touched.update(increment.touched)

    def _send_increment(self, node: str, increment: Increment) -> None:
        """Send an increment to all brokers of a neighbour node, before the own state has its virtual time."""
        self._output += [(*receiver, increment) for receiver in self._sessions if receiver[0] == node]

    def _replace(self, node: str, full: FullState) -> None:
        """Apply a full state as far as it is news, and pass on the full states that follow from it."""
        times = self._times[node]
        is_late = all(full.slice.get(leaf, -1) >= time for leaf, time in times.items())
        if is_late:
            self._swap(node, full.patterns)
        news = [leaf for leaf, time in full.slice.items() if times.get(leaf, -1) < time]
        if news:
            if not is_late:
                self._alter(node, full.patterns, ())
            self._touched |= self._interests.learn(news, full)
            self._set_times(node, later(times, full.slice))
        if is_late:
            self._agreed[node].add(self._checksums[node])
        if full.refresh is not None and full.refresh[1] > self._refreshed.get(full.refresh[0], (0, 0)):
            self._refreshed[full.refresh[0]] = full.refresh[1]
            self._pass_on(node, full.refresh)
        elif news:
            self._pass_on(node, None)

    def _pass_on(self, node: str, refresh: tuple[str, tuple[int, int]] | None) -> None:
        """Send the full state to all brokers but those of one tree node."""
        for neighbour, broker in self._sessions:
            if neighbour != node:
                self._send_full(neighbour, broker, refresh)

    def _swap(self, node: str, patterns: Iterable[Conjunction]) -> None:
        """Replace the patterns of a tree node by these."""
        wanted = set(patterns)
        known = {Conjunction(space, text) for space, table in self._tables.items() for text in table.patterns(node)}
        self._touched.update(conjunction.space for conjunction in known ^ wanted)
        self._alter(node, wanted - known, known - wanted)

    def _alter(
        self, node: str, added: Iterable[Conjunction], removed: Iterable[Conjunction]
    ) -> dict[str, dict[Conjunction, bool]]:
        """Add and remove patterns of a tree node, and return the change for each neighbour."""
        self.version += 1
        told: dict[str, dict[Conjunction, bool]] = {}
        for conjunction, comes in [*((one, True) for one in added), *((one, False) for one in removed)]:
            change = (self._hold if comes else self._release)(node, _NODE, conjunction)
            if change is None:
                continue
            self._checksums[node] ^= checksum(conjunction)
            for neighbour, texts in change.items():
                changes = told.setdefault(neighbour, {})
                for text, came in texts.items():
                    root = Conjunction(conjunction.space, text)
                    self._told[neighbour] ^= checksum(root)
                    if changes.pop(root, came) == came:
                        changes[root] = came
        return told

    def _set_times(self, node: str, times: dict[str, int]) -> None:
        """Set V_b of the leaves behind a tree node."""
        self._is_summary_due = True
        self._agreed[node].clear()
        before = self._times[node]
        self._times[node] = times
        for leaf in before.keys() ^ times.keys():
            self._locate(leaf, node)
            if leaf not in self._nodes:
                self._interests.drop(leaf)
        self._forgotten -= times.keys()

    def _slice(self, node: str) -> dict[str, int]:
        """Return V_b of the leaves in all other directions."""
        return {leaf: time for other, times in self._times.items() if other != node for leaf, time in times.items()}

    def _send_full(self, node: str, broker: str, refresh: tuple[str, tuple[int, int]] | None = None) -> None:
        times = self._slice(node)
        durable = tuple(sorted(self._interests.durable(times)))
        full = FullState(tuple(self._announced_to(node)), times, self._interests.by_space(times), durable, refresh)
        self._output.append((node, broker, full))
