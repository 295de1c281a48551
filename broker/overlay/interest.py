"""The interest of other brokers as far as one broker of the overlay knows it, and its announcements to neighbours."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from broker.overlay.aggregation import EVERYTHING, Aggregation, Change, SpaceTable
from broker.overlay.announcement import Announcement
from broker.overlay.packets import (
    Conjunction,
    Contradiction,
    InterestPacket,
    Packet,
    Resync,
    Space,
    Update,
    UpdateAck,
    Vector,
)  # fmt: skip
from broker.overlay.replica import Direction, Replica, ReplicaChange
from broker.overlay.subscriptions import BindingBatch, Subscriptions
from broker.overlay.virtual_time import VirtualTime

WITHDRAW_AFTER_MS: Final = 30_000


@mypyc_attr(allow_interpreted_subclasses=True)
class Interest:
    """The interest in each direction of one logical broker: the patterns that a tree node wants, and the virtual times
    up to which they are complete.

    Every broker of a tree node announces to every broker of each neighbour node the patterns of the other directions,
    with their virtual times. The receiver keeps one replica per sender. It matches messages against the union of a
    direction's replicas, and uses the latest time of each leaf, its V_b. A leaf broker is a sender to itself. `version`
    rises when the patterns, times, interested, durable or reachable leaves change. Time is passed in, in milliseconds.

    Invariant: the patterns of a direction match every message that an active subscription of a leaf beyond it wants, if
        its start point is not later than the leaf's time there. So a message need not be sent in a direction where no
        pattern matches it and `sufficient` holds.
    Source: the Gryphon paper, sections 3.3 to 3.5, with a replica per sender in place of constraint vectors.
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
        """To the neighbours in `one_way` only `#` is announced; `incarnation` is that of the virtual time."""
        self.version = 0
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
        self._nodes: dict[str, str] = {}  # leaf -> tree node through which it is reached
        self._touched: set[Space] = set()
        self.own_time = VirtualTime(persisted_bound, incarnation)
        kind = Aggregation.IDENTICAL if self._widens else aggregation
        self.subscriptions = Subscriptions(kind, self.own_time, joins=self._widens)
        self._batches = 0
        self._begin()

    def _begin(self) -> None:
        self._directions = {node: Direction(times) for node, times in self._times.items()}
        self._links: dict[str, dict[str, Announcement]] = {node: {} for node in self._neighbours}
        self._replies: dict[tuple[str, str], UpdateAck | Resync] = {}
        leaf = self._own_leaf
        if leaf is not None:
            own = self._directions[self._own_node].replicas[leaf] = Replica()
            self._apply(self._own_node, leaf, own.receive(Update(1, full=True, last=True, slice={leaf: 0})))

    # ---- links -------------------------------------------------------------------------------------------------------

    def connected(self, node: str, broker: str, session: int) -> None:
        """Begin a session with a broker of a neighbour node, unless it has begun, and queue a full update."""
        replica = self._directions[node].replicas.setdefault(broker, Replica())
        if broker in self._links[node] and replica.session == session:
            return
        replica.begin(session)
        self._reach(node, replica)
        self._links[node][broker] = Announcement()
        self._replies.pop((node, broker), None)

    def lost(self, node: str, broker: str, now_ms: int) -> None:
        """Record that the link to a broker was lost. Its announcements hold until `take_output` withdraws them."""
        if self._links[node].pop(broker, None) is not None:
            replica = self._directions[node].replicas[broker]
            replica.lose(now_ms)
            self._reach(node, replica)
            self._replies.pop((node, broker), None)

    def received(self, node: str, broker: str, packet: InterestPacket, now_ms: int) -> None:
        """Process a packet of a connected broker. Raises: Contradiction for a leaf that another node reaches."""
        link = self._links[node].get(broker)
        if link is None:
            return
        if isinstance(packet, UpdateAck):
            link.acknowledge(packet.serial)
        elif isinstance(packet, Resync):
            link.resync()
        else:
            replica = self._directions[node].replicas[broker]
            self._refuse_loop(node, replica, packet)
            before = replica.replaced_by(packet)
            if before is not None:
                self._retain(node, f"{broker} before session {replica.session}", before, now_ms)
            self._apply(node, broker, replica.receive(packet))
            known = replica.expected - 1
            self._replies[node, broker] = Resync() if known < 0 else UpdateAck(known, self.time(broker))

    def take_output(self, now_ms: int) -> list[tuple[str, str, Packet]]:
        """Return the packets to send, and withdraw replicas of lost links (see `_withdraw`)."""
        self._withdraw(now_ms)
        output: list[tuple[str, str, Packet]] = [(*receiver, reply) for receiver, reply in self._replies.items()]
        self._replies = {}
        for node, links in self._links.items():
            for broker, link in links.items():
                if link.ready:
                    self._enqueue(node, link)
                output += [(node, broker, update) for update in link.take(now_ms)]
        return output

    # ---- the leaf broker's own subscriptions -------------------------------------------------------------------------

    def change(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str]) -> None:
        """Apply a batch of bindings, and announce it if it is the first or concerns other brokers."""
        assert self._own_leaf is not None, "only a leaf broker has subscriptions"
        self._batches += 1
        if self._widens:  # all bindings of a space count as one, so that the second one has nothing to announce
            added = [(name, Conjunction(wanted.space, EVERYTHING.text), durable) for name, wanted, durable in added]
        batch = self.subscriptions.change(added, removed)
        ended = self._batches == 1 or bool(batch.touched)
        if ended or batch.durable:
            self._announce(batch, ended=ended)

    def skip_above(self, time: int) -> None:
        """Continue above a virtual time that other brokers know of this leaf from another run, and announce it."""
        self.own_time.skip_above(time)
        self._announce(BindingBatch(touched=set(self.subscriptions.spaces)), ended=True)

    def _announce(self, batch: BindingBatch, *, ended: bool) -> None:
        """Announce the changes of a batch to all neighbours. `ended` says whether it ends a virtual time."""
        assert self._own_leaf is not None
        own = self._directions[self._own_node].replicas[self._own_leaf]
        leaf = (self._own_leaf,)
        spaces = set(self.subscriptions.spaces)
        update = Update(
            own.expected,
            full=False,
            last=True,
            added=tuple(root for root, added in batch.roots.items() if added),
            removed=tuple(root for root, added in batch.roots.items() if not added),
            slice={self._own_leaf: self.own_time.advance()} if ended else {},
            interested=tuple((space, leaf if space in spaces else ()) for space in sorted(batch.touched)),
            durable=leaf if self.subscriptions.durable else (),
        )
        self._apply(self._own_node, self._own_leaf, own.receive(update))

    # ---- queries -----------------------------------------------------------------------------------------------------

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
        """Return the cached results of `wanting` by key. A change of the interest clears them."""
        table = self._tables.get(space)
        return {} if table is None else table.answers

    def matches(self, node: str, space: Space, key: str) -> bool:
        """Return whether a tree node wants a message."""
        return node in self.wanting(space, key)

    def vector(self, node: str, space: Space) -> dict[str, int]:
        """Return V_b of the leaves reached through a tree node that are interested in a space."""
        direction = self._directions[node]
        return {leaf: direction.times[leaf] for leaf in direction.interested.get(space, ())}

    def spaces(self, node: str) -> list[Space]:
        """Return the spaces with a pattern that a tree node wants."""
        return sorted(space for space, table in self._tables.items() if table.patterns(node))

    def durable(self, node: str) -> Collection[str]:
        """Return the leaves reached through a tree node that have durable bindings."""
        return self._directions[node].durable

    def interested(self, node: str, broker: str, space: Space) -> frozenset[str]:
        """Return the leaves that one broker of a tree node named as interested in a space."""
        replica = self._directions[node].replicas.get(broker)
        return frozenset() if replica is None else replica.interested.get(space, frozenset())

    def announced(self, node: str, broker: str) -> int:
        """Return the serial of the last update sent to a broker, or 0 if there is no link or a change is unsent."""
        link = self._links[node].get(broker)
        return 0 if link is None else link.announced

    def applied(self, node: str, broker: str) -> int:
        """Return the serial of the last applied update of a broker, or 0 if there is no link or none in its session."""
        return max(0, self._directions[node].replicas[broker].expected - 1) if broker in self._links[node] else 0

    def reachable(self, node: str, broker: str) -> frozenset[str]:
        """Return the leaves that are reached through a broker now."""
        replica = self._directions[node].replicas.get(broker)
        if replica is None or replica.lost_ms is not None:
            return frozenset()
        return frozenset(replica.times.keys() - replica.unreachable)

    def time(self, leaf: str) -> int:
        """Return V_b of a leaf, interested or not, or 0 if the leaf is unknown."""
        node = self._nodes.get(leaf)
        return 0 if node is None else self._times[node][leaf]

    def sufficient(self, node: str, space: Space, vector: Vector) -> bool:
        """Return whether the patterns of a tree node are complete up to a vector.

        A leaf of the vector whose direction is unknown may be in any direction.
        """
        times = self._times[node]
        nodes = self._nodes
        for leaf, wanted in vector.items():
            if times.get(leaf, 0) < wanted and nodes.get(leaf, node) == node:
                return False
        return True

    def leaves(self, node: str) -> frozenset[str]:
        """Return the leaves reached through a tree node."""
        return frozenset(self._times[node])

    def direction(self, leaf: str) -> str | None:
        """Return the tree node through which a leaf is reached, or None if unknown."""
        return self._nodes.get(leaf)

    def forget(self, leaf: str) -> None:
        """Withdraw a leaf that will not return from the replicas of lost brokers."""
        for node in self._neighbours:
            for broker, replica in self._directions[node].replicas.items():
                if replica.lost_ms is not None and leaf in replica.times:
                    self._apply(node, broker, replica.forget(leaf))

    # ---- changes -----------------------------------------------------------------------------------------------------

    def _locate(self, leaf: str, node: str) -> None:
        """Update the tree node of a leaf. Prefer the nodes that reach it now, then the one with its latest time."""
        if leaf not in self._nodes and leaf in self._times[node]:
            self._nodes[leaf] = node
            return
        candidates = [(times[leaf], node) for node, times in self._times.items() if leaf in times]
        if len(candidates) > 1:
            candidates = [entry for entry in candidates if self._directions[entry[1]].reaches(leaf)] or candidates
        if candidates:
            self._nodes[leaf] = max(candidates)[1]
        else:
            self._nodes.pop(leaf, None)

    def _hold(self, node: str, broker: str, conjunction: Conjunction) -> Change | None:
        """Add a pattern; return the change to announce, or None if the tree node already wanted it."""
        table = self._tables.get(conjunction.space)
        if table is None:
            table = SpaceTable(self._own_node, self._neighbours, self._aggregation, self._patterns_max, self._one_way)
            self._tables[conjunction.space] = table
        return table.hold(node, broker, conjunction.pattern)

    def _release(self, node: str, broker: str, conjunction: Conjunction) -> Change | None:
        """Remove a pattern; return the change to announce, or None if the tree node's patterns stay the same."""
        table = self._tables.get(conjunction.space)
        if table is None:
            return None
        change = table.release(node, broker, conjunction.pattern)
        if not table:
            del self._tables[conjunction.space]
        return change

    def _announced_to(self, node: str) -> Iterable[Conjunction]:
        """Return the patterns that are announced to a neighbour node."""
        return (Conjunction(space, text) for space, table in self._tables.items() for text in table.announced(node))

    def _refuse_loop(self, node: str, replica: Replica, update: Update) -> None:
        """Check that an update gives no leaf a second tree node. Raises: Contradiction. Cost: O(leaves * replicas)."""
        unreachable = replica.unreachable if update.unreachable is None else frozenset(update.unreachable)
        regained = () if update.unreachable is None else replica.unreachable - unreachable
        for leaf in {*update.slice, *regained} - unreachable:
            for other, direction in self._directions.items():
                if other != node and any(
                    known.reaches(leaf) and known.expected for known in direction.replicas.values()
                ):
                    where = "this broker is" if other == self._own_node else f"tree node '{other}' reaches"
                    raise Contradiction(
                        f"{where} leaf '{leaf}', which tree node '{node}' announces: "
                        "the links make a loop, or two leaves have one name"
                    )

    def _apply(self, node: str, broker: str, change: ReplicaChange | None) -> None:
        """Merge a change of one replica into its direction, and record the changes to announce on the other links."""
        if change is None:
            return
        merged = self._directions[node].refresh(change)
        for leaf in merged.leaves | change.reached:
            self._locate(leaf, node)
        touched = set(merged.spaces)
        for conjunction in change.added:
            if self._note(conjunction.space, self._hold(node, broker, conjunction)):
                touched.add(conjunction.space)
        for conjunction in change.removed:
            if self._note(conjunction.space, self._release(node, broker, conjunction)):
                touched.add(conjunction.space)
        if merged.leaves:
            touched |= change.touched
        if not (touched or merged.leaves or merged.durable or change.reached):
            return
        self.version += 1
        self._touched |= touched
        for link in self._other_links(node):
            link.mark(merged.leaves, merged.spaces, touched, durable=merged.durable, unreachable=merged.unreachable)

    def _reach(self, node: str, replica: Replica) -> None:
        """Update the reachable leaves after the link of a replica was lost or restored."""
        self.version += 1
        for leaf in replica.times:
            self._locate(leaf, node)
        if self._directions[node].review_reach(replica.times):
            for link in self._other_links(node):
                link.mark((), (), (), unreachable=True)

    def _other_links(self, node: str) -> list[Announcement]:
        """Return the links to all neighbours but the brokers of one tree node."""
        return [link for other, links in self._links.items() if other != node for link in links.values()]

    def _note(self, space: Space, change: Change | None) -> bool:
        """Record the change of a pattern on the links that announce it; return whether there is a change."""
        for node, texts in (change or {}).items():
            for link in self._links[node].values():
                for text, added in texts.items():
                    link.note(Conjunction(space, text), added=added)
        return change is not None

    def _retain(self, node: str, name: str, before: Replica, now_ms: int) -> None:
        """Retain the state of a broker from before its restart as another replica, marked as lost."""
        before.lose(now_ms)
        self._directions[node].replicas[name] = before
        for space, texts in before.patterns.items():
            for text in texts:
                conjunction = Conjunction(space, text)
                self._note(space, self._hold(node, name, conjunction))

    def _withdraw(self, now_ms: int) -> None:
        """Withdraw the announcements of lost brokers at once if live brokers know as much. Otherwise do so after
        `withdraw_after_ms`, unless they are the latest of a leaf with durable bindings.
        """
        for node in self._neighbours:
            direction = self._directions[node]
            for broker, replica in list(direction.replicas.items()):
                if replica.lost_ms is None:
                    continue
                late = now_ms - replica.lost_ms >= self._withdraw_after_ms
                if direction.knows(replica, replica.times) or (late and direction.knows(replica, replica.durable)):
                    self._apply(node, broker, replica.withdraw())
                    del direction.replicas[broker]

    def _enqueue(self, node: str, link: Announcement) -> None:
        """Queue the changed interest of the other directions on a link, or all of it if a full update is due."""
        others = [direction for other, direction in self._directions.items() if other != node]
        times: dict[str, int] = {}
        for direction in others:
            for leaf in direction.times if link.full else link.leaves & direction.times.keys():
                times[leaf] = max(times.get(leaf, 0), direction.times[leaf])
        spaces = {space for direction in others for space in direction.interested} if link.full else link.spaces
        interested = [
            (space, tuple(sorted({leaf for direction in others for leaf in direction.interested.get(space, ())})))
            for space in sorted(spaces)
        ]
        durable = unreachable = None
        if link.full or link.durable:
            durable = tuple(sorted({leaf for direction in others for leaf in direction.durable}))
        if link.full or link.unreachable:
            lost = {leaf for direction in others for leaf in direction.unreachable}
            unreachable = tuple(sorted(leaf for leaf in lost if not any(other.reaches(leaf) for other in others)))
        update = Update(
            0,
            full=False,
            last=True,
            slice=times,
            gone=() if link.full else tuple(sorted(link.leaves - times.keys())),
            interested=tuple(interested),
            touched=tuple(sorted(spaces if link.full else link.touched)),
            durable=durable,
            unreachable=unreachable,
        )
        link.enqueue(self._announced_to(node) if link.full else (), update)
