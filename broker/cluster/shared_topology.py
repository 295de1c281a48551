"""The exchanges, queues and bindings that this node shares with all others: its live vhosts, as the log has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from broker.cluster.exclusive_owners import ExclusiveOwners, ForeignOwner
from broker.cluster.hint import APPLIED, LOOK, TOPOLOGY, Hint
from broker.cluster.shared_journal import SharedJournal
from broker.cluster.topology_log import Extra, TopologyLog
from broker.core.applied_topology import FORGOTTEN, all_changes, apply
from broker.core.queue.holding_queue import holding_name
from broker.core.queue.rules import QueueRules, queue_rules
from broker.core.topology.changes import arguments_from_json
from broker.core.vhost_limits import VhostLimits
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.cluster.topology_database import Limits, TopologyDatabase
    from broker.core.vhost import Vhost

__all__ = ["SharedTopology"]

_log = get_logger()

Change = dict[str, Any]
DELAYED: Final = "x-delayed-message"


def _nothing() -> None:
    """Wait for nothing."""


class SharedTopology:
    """Applies the changes of the topology log to the live vhosts, and completes those that this node proposes.

    Invariant: the changes of a vhost that is not open here are kept, and are applied when it is opened.
        ``is_applying`` while a change is applied: what follows from it happens on every node, and is not proposed.
    """

    def __init__(
        self,
        database: TopologyDatabase,
        *,
        flushed: Callable[[], Awaitable[None]],
        hint: Callable[[int], Awaitable[None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Take the arguments of the TopologyLog."""
        self._database = database
        self.log = TopologyLog(database, self, flushed=flushed, fail=fail, hint=hint)
        self.is_applying = False
        self._vhosts: dict[str, Vhost] = {}
        self._unopened: dict[str, list[list[Change]]] = {}
        self._owners = ExclusiveOwners()
        self._numbers = range(0)
        self._dropped: list[int] = []

    # -- the node -----------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Make the topology from the log; call it before the node joins. Raises: Unreachable."""
        await self.log.load()

    async def start(self) -> None:
        """Take part, because the node has joined; its vhosts may be opened later. Raises: Unreachable; Fenced."""
        await self.log.start()
        if set(await self._database.applied()) == {self._database.epoch}:
            self._delete_transient()

    async def stop(self) -> None:
        """Take part no more, because the node leaves or is lost."""
        await self.log.stop()

    def heard(self, hint: Hint) -> None:
        """Take a hint about the topology from another node."""
        if hint.kind == APPLIED:
            self.log.heard_applied(hint.number, hint.streams[0])
        if hint.kind in (APPLIED, TOPOLOGY):
            self.log.heard(hint.number)
        elif hint.kind == LOOK:
            self.log.look()

    # -- vhosts -------------------------------------------------------------------------------------------------------

    def journal(self, vhost: str) -> SharedJournal:
        """Return the journal for a vhost that is about to be made."""
        return SharedJournal(self, vhost)

    def opened(self, vhost: Vhost) -> None:
        """Make in a new vhost what the log has for it, and keep it up to date from now on."""
        self._vhosts[vhost.name] = vhost
        for changes in self._unopened.pop(vhost.name, ()):
            self._apply_to(vhost, changes)
        self._dropped.clear()  # the nodes that appended the changes sweep these streams

    def closed(self, name: str) -> None:
        """Leave a vhost alone, because it goes offline or is being deleted."""
        vhost = self._vhosts.pop(name, None)
        if vhost is not None:
            self._unopened[name] = [[change] for change in self._with_owners(vhost)]

    # -- proposals ----------------------------------------------------------------------------------------------------

    def propose(
        self,
        changes: list[Change],
        done: Callable[[], None],
        *,
        unused: int | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Propose changes of one open vhost; see TopologyLog."""
        if changes[0]["vhost"] in self._vhosts:
            self.log.propose(changes, done, unused=unused, refused=refused)

    def named(self, vhost: str, change: Change, *, durable: bool, owner: Any) -> Change:
        """Return a change of a vhost as the log has it: with its owner, and with the limit that holds here."""
        named = {"vhost": vhost, **change}
        limits = self._vhosts[vhost].limits if vhost in self._vhosts else VhostLimits()
        match change["change"]:
            case "queue_declared":
                named["limit"] = limits.queue_limit
                if owner is not None:
                    named["owner"] = self._owners.name(owner, self._database.node, self._database.epoch)
            case "exchange_declared":
                named["limit"] = limits.exchanges_max
            case "bound":
                named["limit"] = limits.bindings_max
        return named if durable else {**named, "durable": False}

    async def prepare(self, changes: Sequence[Change]) -> Extra:
        """Give new queues their numbers. Raises: Unreachable."""
        dropped: list[int] = []
        limits: list[Limits] = []
        for change in changes:
            vhost = self._vhosts.get(change["vhost"])
            match change["change"]:
                case "queue_declared":
                    levels = _levels(change)
                    change["number"] = number = await self._take_numbers(levels)
                    if vhost is not None:
                        found = vhost.policies.rules_for(change["name"], arguments_from_json(change["arguments"]))
                        limits += _limits(vhost.name, number, levels, found[0])
                case "exchange_declared" if change["type"] == DELAYED:
                    change["holding"] = await self._take_numbers(1)
                case "queue_deleted" if vhost is not None:
                    dropped += self._streams(vhost, change["name"], change["number"])
                case "queue_deleted":
                    dropped += self._unopened_streams(change["vhost"], change["number"])
                case "exchange_deleted" if vhost is not None:
                    dropped += self._streams(vhost, holding_name(change["name"]))
        return Extra(dropped, limits)

    async def replace_limits(self, name: str) -> None:
        """Tell PostgreSQL the limits of all queues of a vhost; call it when every node has applied its policies.

        Raises: Unreachable; Fenced.
        """
        vhost = self._vhosts.get(name)
        queues = () if vhost is None else vhost.queues.values()
        found = [_limits(name, queue.number, len(queue.streams), queue.rules) for queue in queues if not queue.kept]
        await self._database.replace_limits(name, [row for rows in found for row in rows])

    async def _take_numbers(self, count: int) -> int:
        """Return the first of some consecutive stream numbers. Raises: Unreachable."""
        if len(self._numbers) < count:
            self._numbers = await self._database.stream_numbers()
        first = self._numbers[0]
        self._numbers = self._numbers[count:]
        return first

    # -- applying -----------------------------------------------------------------------------------------------------

    def apply(self, changes: list[Change]) -> None:
        """Apply the next changes to their vhost, if that is open here; the first without effect is the last."""
        name = changes[0]["vhost"]
        vhost = self._vhosts.get(name)
        if vhost is not None:
            self._apply_to(vhost, changes)
        elif changes[0]["change"] == FORGOTTEN:
            for kept in self._unopened.pop(name, ()):
                self._dropped += [stream for change in kept for stream in _declared_streams(change)]
        else:
            self._unopened.setdefault(name, []).append(changes)

    def _apply_to(self, vhost: Vhost, changes: list[Change]) -> None:
        for place, change in enumerate(changes):
            self.is_applying = True
            try:
                had_effect = apply(vhost, change, self._find_owner)
            finally:
                self.is_applying = False
            if not had_effect:  # nothing has the numbers of these queues
                self._dropped += [stream for left_out in changes[place:] for stream in _declared_streams(left_out)]
                break
            if "owner" in change and self._owners.has_ended(change["owner"], self._database.epoch):
                vhost.queues.owner_gone(vhost.queues[change["name"]].exclusive_owner)

    def note_made(self, changes: Iterable[Change]) -> None:
        """Note the queues that changes of this node have just made."""
        for change in changes:
            vhost = self._vhosts.get(change["vhost"])
            if vhost is not None and change["change"] == "queue_declared":
                queue = vhost.queues.get(change["name"])
                if queue is not None and queue.number == change["number"]:
                    queue.note_made()
                    vhost.tally.created()

    def _find_owner(self, name: Sequence[str | int]) -> object:
        return self._owners.find(name, self._database.epoch)

    def note_dropped(self, vhost: str, name: str) -> None:
        """Note the streams of a queue that is deleted by a change which is being applied."""
        self._dropped += self._streams(self._vhosts[vhost], name)

    def _streams(self, vhost: Vhost, name: str, number: int | None = None) -> list[int]:
        """Return the numbers of the streams of a queue, if it is the queue with that number."""
        queue = vhost.queues.get(name)
        if queue is None or number not in (None, queue.number):
            return []
        return [stream.number for stream in queue.streams]

    def _unopened_streams(self, vhost: str, number: int) -> Iterable[int]:
        """Return the numbers of the streams of a queue whose vhost is not open here."""
        for changes in self._unopened.get(vhost, ()):
            for change in changes:
                if change.get("number") == number and change["change"] == "queue_declared":
                    return _declared_streams(change)
        return ()

    def take_dropped(self) -> Sequence[int]:
        """Return streams of queues that are deleted, and forget them."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def clear(self) -> None:
        """Delete everything in memory: the log is read from its beginning, as its node is not a member."""
        self._unopened.clear()
        self._owners.clear()
        self._numbers = range(0)  # a database that went back in time may give them again
        for vhost in self._vhosts.values():
            self._apply_to(vhost, [{"change": FORGOTTEN}])
        self._dropped.clear()

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Iterable[list[Change]]:
        """Return the changes that make everything, and that may be iterated in a thread."""
        pieces = [self._with_owners(vhost) for vhost in self._vhosts.values()]
        kept = [changes for unopened in self._unopened.values() for changes in unopened]
        return chain(kept, ([change] for piece in pieces for change in piece))

    def _with_owners(self, vhost: Vhost) -> Iterator[Change]:
        """Copy what may change, and return an iterator of the changes that make a vhost."""
        node, epoch = self._database.node, self._database.epoch
        names = {owner: self._owners.name(owner, node, epoch) for owner in vhost.queues.owners}
        return (_owned({"vhost": vhost.name, **change}, names) for change in all_changes(vhost))

    # -- cleaning up --------------------------------------------------------------------------------------------------

    async def look(self, alive: Callable[[], Awaitable[Iterable[int]]]) -> None:
        """Delete the exclusive queues of connections whose node is no member any more. Raises: Unreachable."""
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
            return  # the oldest member does it
        for vhost, owner in found:
            if owner.epoch not in members:
                _log.info("exclusive_queues.deleted", vhost=vhost.name, node=owner.node, epoch=owner.epoch)
                vhost.queues.owner_gone(owner)

    def _delete_transient(self) -> None:
        """Delete what is not durable, because this node is the first member: no node has kept it."""
        kept = [change for unopened in self._unopened.values() for changes in unopened for change in changes]
        live = [change for vhost in self._vhosts.values() for change in self._with_owners(vhost)]
        for change in (*kept, *live):
            if change.get("durable", True):
                continue
            deletion = {"vhost": change["vhost"], "name": change["name"]}
            if change["change"] == "queue_declared":
                self.log.propose([{**deletion, "change": "queue_deleted", "number": change["number"]}], _nothing)
            elif change["change"] == "exchange_declared":
                self.log.propose([{**deletion, "change": "exchange_deleted"}], _nothing)


def _owned(change: Change, names: Mapping[object, ForeignOwner]) -> Change:
    """Return a change with the name of its owner."""
    return {**change, "owner": names[change["owner"]]} if "owner" in change else change


def _limits(vhost: str, number: int, levels: int, rules: QueueRules) -> list[Limits]:
    """Return what PostgreSQL has to know of the streams of a queue, if it has limits or a single active consumer."""
    if not (rules.limited or rules.single_active):
        return []
    return [
        {
            "stream": stream,
            "vhost": vhost,
            "counter": number,
            "max_length": rules.max_length,
            "max_bytes": rules.max_bytes,
            "overflow": rules.overflow,
            "single_active": rules.single_active,
            "buries": rules.dead_letter_exchange is not None,
        }
        for stream in range(number, number + levels)
    ]


def _declared_streams(change: Change) -> Sequence[int]:
    """Return the numbers of the streams that a change declares."""
    if change["change"] == "exchange_declared" and "holding" in change:
        return (change["holding"],)
    if change["change"] != "queue_declared":
        return ()
    return range(change["number"], change["number"] + _levels(change))


def _levels(change: Change) -> int:
    """Return how many streams the queue of a declaration has."""
    return queue_rules(arguments_from_json(change["arguments"])).max_priority + 1
