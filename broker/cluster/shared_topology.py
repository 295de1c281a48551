"""The exchanges, queues and bindings that all nodes share: the topology log, applied to the vhosts of this node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from broker.cluster.database import Database
from broker.cluster.database_rows import as_text
from broker.cluster.errors import Unreachable
from broker.cluster.shared_queue import SharedQueue, refuse_arguments
from broker.cluster.topology_changes import (
    ExchangeDeclared,
    ExchangeDeleted,
    ExclusiveOwners,
    ForeignOwner,
    QueueChanged,
    QueueDeclared,
    QueueDeleted,
    TopologyChange,
    VhostForgotten,
    all_changes,
    change_of,
)
from broker.cluster.topology_log import Extra, TopologyLog
from broker.core.arguments import read_typed
from broker.core.postponed import Postponed
from broker.core.queue.kinds import holding_name
from broker.core.queue.rules import QueueRules
from broker.core.topology.changes import Change, Journal
from broker.core.vhost import Vhost
from broker.core.vhost_limits import VhostLimits
from broker.event_log import get_logger

_log = get_logger()

DELAYED: Final = "x-delayed-message"
LEVEL_NUMBERS: Final = 1024  # in one range, the increment of the sequence in sql/topology.sql
CALLS_S: Final = 0.005  # between checks for the end of earlier calls
QUEUES_AT_ONCE: Final = 100  # queues whose limits are computed in one step of the loop
Limits = dict[str, Any]  # the arguments of set_level by name


class SharedTopology:
    """Apply the changes of the topology log to the open vhosts, and complete those that this node proposes. Invariant:
    the changes of a vhost that is not open here are kept, and applied when it is opened. ``is_applying`` is set while a
    change is applied: its consequences are not proposed, because they happen on every node.
    """

    def __init__(
        self, database: Database, *, flushed: Callable[[], Awaitable[None]], fail: Callable[[BaseException], None]
    ) -> None:
        """`flushed` and `fail` are those of `TopologyLog`."""
        self._database = database
        self.log = TopologyLog(database, self, flushed=flushed, fail=fail)
        self.is_applying = False
        self._vhosts: dict[str, Vhost] = {}
        self._unopened: dict[str, list[list[TopologyChange]]] = {}
        self._owners = ExclusiveOwners()
        self._numbers = range(0)
        self._dropped: list[int] = []

    # -- the node -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, because the node has joined; its vhosts may be opened later. Raises: Unreachable; Fenced."""
        await self.log.start()
        if set(await self.log.applied_by_member()) == {self._database.epoch}:
            self._delete_transient()

    # -- vhosts -------------------------------------------------------------------------------------------------------

    def opened(self, vhost: Vhost) -> None:
        """Apply the log's changes to a new vhost, now and in future."""
        self._vhosts[vhost.name] = vhost
        for changes in self._unopened.pop(vhost.name, ()):
            self._apply_to(vhost, changes)
        self._dropped.clear()  # the nodes that appended the changes drop these levels

    def closed(self, name: str) -> Vhost | None:
        """Stop applying changes to a vhost, because it is being deleted. Return it, or None if it was not open here."""
        vhost = self._vhosts.pop(name, None)
        if vhost is not None:
            self._unopened[name] = [[change] for change in self._all_changes(vhost)]
        return vhost

    # -- proposals ----------------------------------------------------------------------------------------------------

    def propose(
        self,
        changes: list[TopologyChange],
        done: Callable[[], None],
        *,
        unused: int | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Propose changes of one vhost; they are refused if it was deleted. See TopologyLog."""
        if changes[0].vhost in self._vhosts:
            self.log.propose(changes, done, unused=unused, refused=refused)
        else:
            asyncio.get_running_loop().call_soon(refused, f"vhost '{changes[0].vhost}' was deleted")

    def named(self, vhost: str, change: Change, *, durable: bool, owner: Any) -> TopologyChange:
        """Return a change of a vhost in the form of the log, with the owner's name and the limit that applies here."""
        named = change_of(change, vhost=vhost, durable=durable)
        if isinstance(named, QueueDeclared) and vhost in self._vhosts and named.name in self._vhosts[vhost].queues:
            return QueueChanged(vhost=vhost, name=named.name, number=named.number, arguments=named.arguments)
        named.limit_by(self._vhosts[vhost].limits if vhost in self._vhosts else VhostLimits())
        if owner is not None and isinstance(named, QueueDeclared):
            named.own(self._owners.name(owner, self._database.node, self._database.epoch))
        return named

    async def prepare(self, changes: Sequence[TopologyChange]) -> Extra:
        """Assign numbers to new queues, and return the levels and limits for PostgreSQL. Raises: Unreachable."""
        dropped: list[int] = []
        limits: list[Limits] = []
        for change in changes:
            vhost = self._vhosts.get(change.vhost)
            match change:
                case QueueDeclared():
                    change.set_number(await self._take_numbers(change.levels))
                    if vhost is not None:
                        found = vhost.policies.rules_for(change.name, read_typed(change.arguments))
                        limits += _limits(vhost.name, change.level_numbers, found[0])
                case ExchangeDeclared() if change.type == DELAYED:
                    change.set_number(await self._take_numbers(1))
                case QueueDeleted() if vhost is not None:
                    dropped += self._levels(vhost, change.name, change.number)
                case QueueDeleted():
                    dropped += self._unopened_levels(change)
                case ExchangeDeleted() if vhost is not None:
                    dropped += self._levels(vhost, holding_name(change.name))
        return Extra(dropped, limits)

    async def replace_limits(self, name: str) -> None:
        """Store the limits of all queues of a vhost in PostgreSQL, once every node has applied its policies.

        Raises: Unreachable; Fenced.
        """
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise Unreachable(f"vhost '{name}' is not open here: another node replaces its limits")
        limits: list[Limits] = []
        for number, queue in enumerate(list(vhost.queues.values()), 1):
            if number % QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not queue.is_internal:
                vhost.sweep.update(queue)  # at startup no sweep applies policies
                limits += _limits(name, queue.numbers, queue.rules)
        await replace_limits(self._database, name, limits)

    async def _take_numbers(self, count: int) -> int:
        """Reserve `count` consecutive level numbers, and return the first. Raises: Unreachable."""
        if len(self._numbers) < count:
            (row,) = await self._database.function("listen", "nextval", "level_number")
            self._numbers = range(row[0], row[0] + LEVEL_NUMBERS)
        first = self._numbers[0]
        self._numbers = self._numbers[count:]
        return first

    # -- applying -----------------------------------------------------------------------------------------------------

    def apply(self, changes: list[TopologyChange]) -> None:
        """Apply changes to their vhost, up to the first without effect; keep them if the vhost is not open here."""
        name = changes[0].vhost
        vhost = self._vhosts.get(name)
        if vhost is not None:
            self._apply_to(vhost, changes)
        elif isinstance(changes[0], VhostForgotten):
            for unopened in self._unopened.pop(name, ()):
                self._dropped += [level for change in unopened for level in change.level_numbers]
        else:
            self._unopened.setdefault(name, []).append(changes)

    def _apply_to(self, vhost: Vhost, changes: list[TopologyChange]) -> None:
        epoch = self._database.epoch
        for place, change in enumerate(changes):
            self.is_applying = True
            try:
                had_effect = change.apply(vhost, self._find_owner)
            finally:
                self.is_applying = False
            if not had_effect:  # the numbers of these queues stay unused
                self._dropped += [level for left_out in changes[place:] for level in left_out.level_numbers]
                break
            if isinstance(change, QueueDeclared) and change.owner and self._owners.has_ended(change.owner, epoch):
                vhost.queues.owner_gone(vhost.queues[change.name].exclusive_owner)

    def note_made(self, changes: Iterable[TopologyChange]) -> None:
        """Record the queues that changes of this node have just created."""
        for change in changes:
            vhost = self._vhosts.get(change.vhost)
            if vhost is not None and isinstance(change, QueueDeclared):
                queue = vhost.queues.get(change.name)
                if isinstance(queue, SharedQueue) and queue.number == change.number:
                    queue.note_made()
                    vhost.tally.created()

    def _find_owner(self, name: ForeignOwner) -> object:
        return self._owners.find(name, self._database.epoch)

    def note_dropped(self, vhost: str, name: str) -> None:
        """Record the levels of a queue that the current change deletes."""
        self._dropped += self._levels(self._vhosts[vhost], name)

    def _levels(self, vhost: Vhost, name: str, number: int | None = None) -> Sequence[int]:
        """Return the numbers of a queue's levels; none if the queue has another number than `number`."""
        queue = vhost.queues.get(name)
        if queue is None or number not in (None, queue.number):
            return []
        return queue.numbers

    def _unopened_levels(self, deleted: QueueDeleted) -> Sequence[int]:
        """Return the numbers of the levels of a queue whose vhost is not open here."""
        for changes in self._unopened.get(deleted.vhost, ()):
            for change in changes:
                if isinstance(change, QueueDeclared) and change.number == deleted.number:
                    return change.level_numbers
        return ()

    def take_dropped(self) -> Sequence[int]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def clear(self) -> None:
        """Delete everything in memory, because it is built again from the beginning of the log or from a snapshot."""
        self._unopened.clear()
        self._owners.clear()
        self._numbers = range(0)  # a database restored to an earlier state may assign them again
        for vhost in self._vhosts.values():
            self._apply_to(vhost, [VhostForgotten(vhost=vhost.name)])
        self._dropped.clear()

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Iterable[list[TopologyChange]]:
        """Return an iterator of the changes that create the whole topology; another thread may iterate it."""
        live = [self._all_changes(vhost) for vhost in self._vhosts.values()]
        kept = [changes for unopened in self._unopened.values() for changes in unopened]
        return chain(kept, ([change] for changes in live for change in changes))

    def _all_changes(self, vhost: Vhost) -> Iterator[TopologyChange]:
        """Copy mutable state, and return an iterator of the changes that create a vhost."""
        node, epoch = self._database.node, self._database.epoch
        return all_changes(vhost, {owner: self._owners.name(owner, node, epoch) for owner in vhost.queues.owners})

    # -- cleaning up --------------------------------------------------------------------------------------------------

    async def delete_orphans(self, alive: Callable[[], Awaitable[Iterable[int]]]) -> None:
        """Delete the exclusive queues of connections whose node is no longer a member. Raises: Unreachable."""
        self._owners.forget_ended()
        found = [
            (vhost, owner)
            for vhost in self._vhosts.values()
            for owner in vhost.queues.owners
            if isinstance(owner, ForeignOwner)
        ]
        if not found:
            return
        members = set(await alive())  # read after the owners: a node that joined later owns none of these queues
        if min(members, default=0) != self._database.epoch:
            return  # the oldest member deletes them
        for vhost, owner in found:
            if owner.epoch not in members:
                _log.info("exclusive_queues.deleted", vhost=vhost.name, node=owner.node, epoch=owner.epoch)
                vhost.queues.owner_gone(owner)

    def _delete_transient(self) -> None:
        """Propose to delete non-durable objects: this node is the only member, so no node has kept them."""
        for change in chain.from_iterable(self.snapshot()):
            deletion: TopologyChange
            match change:
                case QueueDeclared(durable=False):
                    deletion = QueueDeleted(vhost=change.vhost, name=change.name, number=change.number)
                case ExchangeDeclared(durable=False):
                    deletion = ExchangeDeleted(vhost=change.vhost, name=change.name)
                case _:
                    continue
            self.log.propose([deletion], lambda: None)


class Proposed(Postponed):
    """A method that is postponed until every node has applied its change."""

    def __init__(self, topology: SharedTopology, change: TopologyChange) -> None:
        super().__init__()
        self._topology = topology
        self._changes = [change]

    def begin(self, then: Callable[[], None]) -> None:
        """Propose the change, and those added by `combine_with`."""

        def refused(reason: str) -> None:
            if len(self._changes) == 1:
                self.refusal = reason
                then()
            else:  # another change may be the reason; the other methods propose theirs again
                del self._changes[1:]
                self.begin(then)

        self._topology.propose(self._changes, then, refused=refused)

    def combine_with(self, other: Postponed) -> bool:
        """Propose a change of the next method together with this one."""
        if not isinstance(other, Proposed):
            return False
        self._changes += other._changes  # noqa: SLF001 - the same class
        return True


class SharedJournal(Journal):
    """Propose the changes of one vhost, except those being applied."""

    def __init__(self, topology: SharedTopology, vhost: str) -> None:
        super().__init__()
        self._topology = topology
        self._vhost = vhost

    def decide(self, change: Change, *, durable: bool = True, owner: Any = None) -> None:
        """Allow changes being applied and those of producers; propose others. Raises: Postponed; ChannelError 406."""
        if self._topology.is_applying:
            if change["change"] == QueueDeleted.kind:
                self._topology.note_dropped(self._vhost, change["name"])
        elif not change["change"].startswith("producer_"):
            if change["change"] == QueueDeclared.kind:
                refuse_arguments(self._vhost, change["name"], read_typed(change["arguments"]))
            raise Proposed(self._topology, self._topology.named(self._vhost, change, durable=durable, owner=owner))

    def retire(self, change: Change, *, durable: bool) -> bool:
        """Propose to delete a queue unless it has consumers on any node; it stays until the change is applied."""
        named = self._topology.named(self._vhost, change, durable=durable, owner=None)
        self._topology.propose([named], lambda: None, unused=change["number"])
        return False


async def replace_limits(database: Database, vhost: str, limits: Sequence[Limits]) -> None:
    """Replace the limits of all queues of a vhost, and recount their messages. Calls that are running do not count the
    messages that they add, so the recount waits for their end. Raises: Unreachable; Fenced.
    """
    await database.acting("upkeep", "replace_limits", as_text(vhost), limits)
    if not limits:
        return
    newest = (await database.function("upkeep", "newest_call"))[0][0]
    while (await database.function("upkeep", "oldest_call"))[0][0] <= newest:  # noqa: ASYNC110 PostgreSQL does not report it
        await asyncio.sleep(CALLS_S)
    await database.acting("upkeep", "recount", [row["level"] for row in limits])


def _limits(vhost: str, levels: Sequence[int], rules: QueueRules) -> list[Limits]:
    """Return PostgreSQL's settings for a queue's levels if it has limits or a single active consumer, else none."""
    if not (rules.limited or rules.single_active):
        return []
    return [
        {
            "level": level,
            "vhost": as_text(vhost),
            "counter": levels[0],
            "max_length": rules.max_length,
            "max_bytes": rules.max_bytes,
            "overflow": rules.overflow,
            "single_active": rules.single_active,
            "buries": rules.dead_letter_exchange is not None,
        }
        for level in levels
    ]
