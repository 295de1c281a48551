"""The common part of both schemes of subscription propagation: pattern tables, virtual times, and queries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from broker.overlay.aggregation import Aggregation
from broker.overlay.conjunction import EVERYTHING
from broker.overlay.packets import Conjunction, InterestPacket, Packet, Space, Vector
from broker.overlay.space_table import Change, SpaceTable
from broker.overlay.subscriptions import BindingBatch, Subscriptions
from broker.overlay.virtual_time import VirtualTime

WITHDRAW_AFTER_MS: Final = 30_000


@mypyc_attr(allow_interpreted_subclasses=True)  # the tests have others
class InterestScheme:
    """The interest in each direction of one logical broker: which patterns a tree node wants, and how much is known.

    A scheme decides what brokers tell each other, and so when a pattern or a virtual time changes. `version` rises with
    every change of what the queries below answer. Time is passed in, in ms.

    Invariant: the patterns of a direction match every message that an active subscription of a leaf behind it wants, if
    its virtual start time is not later than the leaf's time there. So a message may be left out in a direction where it
    matches nothing and `sufficient` holds.
    Source: the Gryphon paper, sections 3.3 to 3.5.
    """

    def __init__(
        self,
        own_node: str,
        neighbours: Sequence[str],
        aggregation: Aggregation,
        patterns_max: int,
        own_leaf: str | None = None,
        *,
        persisted_bound: int = 0,
        incarnation: int = 0,
        withdraw_after_ms: int = WITHDRAW_AFTER_MS,
        one_way: Collection[str] = (),
    ) -> None:
        """No patterns but `#` are announced to the neighbours in `one_way`; `incarnation` is that of virtual time."""
        self.version = 0
        self.rejected = 0  # updates that could not be applied
        self._own_node = own_node
        self._own_leaf = own_leaf
        self._neighbours = tuple(neighbours)
        self._aggregation = aggregation
        self._patterns_max = patterns_max
        self._withdraw_after_ms = withdraw_after_ms
        self._one_way = frozenset(one_way)
        self._widens = bool(one_way) and self._one_way.issuperset(neighbours)
        self._tables: dict[Space, SpaceTable] = {}
        self._times: dict[str, dict[str, int]] = {node: {} for node in (*neighbours, own_node)}  # V_b by tree node
        self._nodes: dict[str, str] = {}  # leaf -> tree node behind which it is
        self._touched: set[Space] = set()
        self._time = VirtualTime(persisted_bound, incarnation)
        kind = Aggregation.IDENTICAL if self._widens else aggregation
        self._subscriptions = Subscriptions(kind, self._time, joins=self._widens)
        self._batches = 0
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Prepare what the scheme keeps besides the tables."""

    # ---- links -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def connected(self, node: str, broker: str, session: int) -> None:
        """Begin a session with a broker of a neighbour node: `take_output` has all that it must be told.

        What the broker announced in earlier sessions holds on. Nothing of an earlier session may be passed on after
        this call.
        """

    @abstractmethod
    def lost(self, node: str, broker: str, now_ms: int) -> None:
        """Note that the link to a broker was lost. What it announced holds on until `take_output` withdraws it."""

    @abstractmethod
    def received(self, node: str, broker: str, packet: InterestPacket, now_ms: int) -> None:
        """Apply a packet of a connected broker."""

    @abstractmethod
    def take_output(self, now_ms: int) -> list[tuple[str, str, Packet]]:
        """Return the packets to send, each with tree node and broker, and withdraw what was lost for too long.

        Call it after each batch of events and with every tick. What it returns may be sent only after `time_bound` was
        persisted.
        """

    def observed(self, space: Space, time: int, now_ms: int) -> None:
        """Take the own leaf's entry in V_m of a message that it received."""

    def demanded(self, vector: Vector) -> None:
        """Take V_m of a message."""

    # ---- the leaf broker's own subscriptions -------------------------------------------------------------------------

    @abstractmethod
    def change(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str]) -> None:
        """Apply a batch: bindings with conjunction and durable flag, and bindings that are gone.

        A binding in both was replaced. The first batch must hold all bindings that were recovered: until then the leaf
        claims no virtual time.
        """

    def vst(self, binding: str) -> int:
        """Return the virtual start time of a binding: it gets what matches from the first V_m on that reaches it."""
        return self._subscriptions.start(binding)

    @property
    def time_bound(self) -> int:
        """Return the bound of virtual time to persist; a restart passes it as `persisted_bound`."""
        return self._time.bound

    def read_time(self, time: int) -> int | None:
        """Return a virtual time of this leaf that others name, None if its data folder knows nothing of it."""
        return self._time.read(time)

    @property
    def recovered_time(self) -> int:
        """Return the bound of virtual time with which the leaf began."""
        return self._time.recovered

    @abstractmethod
    def leave_time(self, time: int) -> None:
        """Continue above a virtual time that others have of this leaf and that it never had, and tell them."""

    def _apply_batch(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str]) -> BindingBatch:
        """Apply a batch of bindings to the leaf broker's own subscriptions, and return what that changes."""
        assert self._own_leaf is not None, "only a leaf broker has subscriptions"
        self._batches += 1
        if self._widens:  # all bindings of a space count as one, so that the second one has nothing to announce
            added = [(one, Conjunction(asked.space, EVERYTHING.text), durable) for one, asked, durable in added]
        return self._subscriptions.change(added, removed)

    # ---- what is known -----------------------------------------------------------------------------------------------

    def take_touched(self) -> set[Space]:
        """Return the spaces whose V_b, patterns or interested leaves have changed since the last call."""
        touched = self._touched
        self._touched = set()
        return touched

    def roots(self, node: str, space: Space) -> Collection[str]:
        """Return the patterns that a tree node wants."""
        table = self._tables.get(space)
        return () if table is None else table.patterns(node)

    def wanting(self, space: Space, key: str) -> tuple[str, ...]:
        """Return the neighbour nodes that want a message."""
        table = self._tables.get(space)
        return () if table is None else table.wanting(key)

    def answers(self, space: Space) -> dict[str, tuple[str, ...]]:
        """Return the cached results of `wanting` by key, which a change of the interest drops."""
        table = self._tables.get(space)
        return {} if table is None else table.answers

    def matches(self, node: str, space: Space, key: str) -> bool:
        """Return whether a tree node wants a message."""
        return node in self.wanting(space, key)

    @abstractmethod
    def vector(self, node: str, space: Space) -> dict[str, int]:
        """Return V_b of the leaves behind a tree node that are interested in a space."""

    def spaces(self, node: str) -> list[Space]:
        """Return the spaces with a pattern that a tree node wants."""
        return sorted(space for space, table in self._tables.items() if table.patterns(node))

    @abstractmethod
    def durable(self, node: str) -> Collection[str]:
        """Return the leaves behind a tree node that have durable bindings."""

    @abstractmethod
    def interested(self, node: str, broker: str, space: Space) -> frozenset[str]:
        """Return the leaves that one broker of a tree node named as interested in a space."""

    @abstractmethod
    def announced(self, node: str, broker: str) -> int:
        """Return the serial of the last announcement to a broker, 0 if it has not got everything yet."""

    @abstractmethod
    def applied(self, node: str, broker: str) -> int:
        """Return the serial of a broker's last announcement, 0 if there is none."""

    @abstractmethod
    def reachable(self, node: str, broker: str) -> frozenset[str]:
        """Return the leaves that are reachable over a broker now."""

    def time(self, leaf: str) -> int:
        """Return V_b of a leaf, interested or not; 0 if it is behind no direction."""
        node = self._nodes.get(leaf)
        return 0 if node is None else self._times[node][leaf]

    def sufficient(self, node: str, space: Space, vector: Vector) -> bool:
        """Return whether the patterns of a tree node are complete up to a vector.

        A leaf of the vector that is behind no direction counts as behind each.
        """
        times = self._times[node]
        nodes = self._nodes
        for leaf, wanted in vector.items():
            if times.get(leaf, 0) < wanted and nodes.get(leaf, node) == node:
                return False
        return True

    def leaves(self, node: str) -> frozenset[str]:
        """Return the leaves behind a tree node."""
        return frozenset(self._times[node])

    def direction(self, leaf: str) -> str | None:
        """Return the tree node behind which a leaf is, None if that is not known."""
        return self._nodes.get(leaf)

    # ---- changes -----------------------------------------------------------------------------------------------------

    def _reaches(self, node: str, leaf: str) -> bool:
        """Return whether a leaf is reachable over a tree node now, as far as the scheme knows."""
        return True

    @abstractmethod
    def forget(self, leaf: str) -> None:
        """Withdraw a leaf that is gone for good, where no broker announces it."""

    def _locate(self, leaf: str, node: str) -> None:
        """Note behind which tree node a leaf is that one of them lists or does not.

        Were there several, as after a leaf has moved, it is one that reaches it, and the latest of these.
        """
        if leaf not in self._nodes and leaf in self._times[node]:
            self._nodes[leaf] = node
            return
        times = [(times[leaf], node) for node, times in self._times.items() if leaf in times]
        if len(times) > 1:
            times = [one for one in times if self._reaches(one[1], leaf)] or times
        if times:
            self._nodes[leaf] = max(times)[1]
        else:
            self._nodes.pop(leaf, None)

    def _hold(self, node: str, broker: str, conjunction: Conjunction) -> Change | None:
        """Add a pattern; return the change of what neighbours are told, None if it is not new to the tree node."""
        table = self._tables.get(conjunction.space)
        if table is None:
            table = SpaceTable(self._own_node, self._neighbours, self._aggregation, self._patterns_max, self._one_way)
            self._tables[conjunction.space] = table
        return table.hold(node, broker, conjunction.pattern)

    def _release(self, node: str, broker: str, conjunction: Conjunction) -> Change | None:
        """Remove a pattern; return the change of what neighbours are told, None if the tree node wants it still."""
        table = self._tables.get(conjunction.space)
        if table is None:
            return None
        told = table.release(node, broker, conjunction.pattern)
        if not table:
            del self._tables[conjunction.space]
        return told

    def _announced_to(self, node: str) -> Iterable[Conjunction]:
        """Return the patterns that are announced to a neighbour node."""
        return (Conjunction(space, text) for space, table in self._tables.items() for text in table.announced(node))
