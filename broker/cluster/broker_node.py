"""A broker as a node of a cluster: the parts of its vhosts' engines, and its reactions to the events of the node.

Messages and topology are in PostgreSQL. Each vhost's own store holds leased messages that are paged out; nothing in it
outlives the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from broker import __version__
from broker.amqp.errors import BrokerError, NotNow
from broker.cluster.caller import SharedCommitter
from broker.cluster.consumer_registry import ConsumerRegistry
from broker.cluster.data_path import DataPath
from broker.cluster.database import Database
from broker.cluster.database_rows import ClusterMember, LeasedRow
from broker.cluster.errors import ClusterError, DatabaseRefused, Fenced, NameTaken
from broker.cluster.hint import DEFINITIONS, LOOK, Hint
from broker.cluster.keeper import Keeper, SharedDelay
from broker.cluster.mailbox import Mailbox, SharedReplies
from broker.cluster.node import ClusterNode
from broker.cluster.queue_inquiries import QueueInquiries, UnusedQueues
from broker.cluster.shared_clients import SharedClients
from broker.cluster.shared_definitions import Follower, SharedDefinitions
from broker.cluster.shared_level import SharedLevel
from broker.cluster.shared_messages import SharedMessages
from broker.cluster.shared_producers import ProducerClaims, SharedProducers, producer_key
from broker.cluster.shared_queue import QueueParts, SharedHoldingQueue, SharedQueue
from broker.cluster.shared_retained import SharedRetained
from broker.cluster.shared_store import SharedStore
from broker.cluster.shared_topology import SharedJournal, SharedTopology
from broker.core.mqtt.mapping import MessageMapping
from broker.core.queue.kinds import is_holding_name
from broker.core.queue.level import Level
from broker.core.queue.level_owner import LevelOwner
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.delivery.committer import EngineCommitter
from broker.delivery.engine_parts import LocalParts
from broker.delivery.reader import SlotReader
from broker.delivery.timers import Timers
from broker.delivery.turn import Turn
from broker.settings import Settings
from broker.store.recorder import Recorder
from broker.tasks import Tasks

WATCH_S: Final = 0.1
HAS_MQTT: Final = "SELECT to_regproc('claim_clients') IS NOT NULL"
REPORTED_LEVELS_MAX: Final = 1000  # levels for which a heartbeat reports how many ready messages the node has


class NodeClients(Protocol):
    """The clients of a node. See `parts.definitions.ClusterClients`."""

    @property
    def count(self) -> int: ...
    def block(self, reason: str) -> None: ...
    def unblock(self) -> None: ...
    def drop(self, reason: str) -> None: ...


class BrokerNode:
    """One node, from its start to its end. It provides the parts of its vhosts' engines, and implements `NodeEvents`.

    `topology` decides changes of exchanges, queues and bindings, `claims` claims producers, `mailbox` exchanges direct
    replies and questions with other nodes; `queue_parts` are the parts that queues use.
    Raises: BrokerError from `start`, with one line.
    """

    clients: NodeClients

    def __init__(
        self,
        settings: Settings,
        turn: Turn,
        loop: asyncio.AbstractEventLoop,
        *,
        url: str,
        fail: Callable[[BaseException], None],
    ) -> None:
        """`url` is where clients connect to this node; `fail` ends the broker."""
        cluster = settings.cluster
        self._takes_mqtt = settings.mqtt.enabled
        self._turn = turn
        self._now_ms = 0.0
        self._blocked = False
        self._follows = False
        self._tasks = Tasks(fail)
        self._timers = Timers(loop, fail)
        database = self.database = Database(
            cluster.url.get_secret_value(), cluster.node, schema=cluster.schema_name, handle_hint=self._handle_hint
        )
        self.member = ClusterNode(
            database,
            self,
            url=url,
            lease_ms=cluster.lease_ms,
            report=self._report,
            applied_version=lambda: self.topology.log.reported,
            failed=fail,
        )
        give_up = self.member.give_up
        data = self.data = DataPath(database, loop, failed=give_up)
        self.topology = SharedTopology(database, flushed=data.drain, fail=give_up)
        self.inquiries = QueueInquiries(data, give_up)
        self.consumers = ConsumerRegistry(database, self._queue_of, give_up)
        self.claims = ProducerClaims(database, data.drain, give_up)
        self.mqtt_clients = SharedClients(database, give_up)
        self.mailbox = Mailbox(data, now_ms=lambda: turn.now_ms, fail=give_up)
        self.unused = UnusedQueues(database, give_up)
        self.queue_parts = QueueParts(data, self.inquiries, self.consumers, self.unused)
        data.caller.on_unused(self.claims.reread)
        self.keeper = Keeper(data, read_clock=turn.read_clock, fail=give_up)
        self.definitions = SharedDefinitions(database, self.topology.replace_limits)

    # -- for the server and its vhosts --------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be committed; publishers are paused when there are too many."""
        return self.data.caller.pending_bytes

    def retained(self, vhost: Vhost, mapping: MessageMapping, most: int, max_bytes: int) -> SharedRetained:
        return SharedRetained(vhost, mapping, most, max_bytes, self.database, self.member.give_up)

    def parts_of(self, vhost: str) -> SharedParts:
        return SharedParts(vhost, self)

    def deleting(self, vhost: str) -> None:
        """Stop applying changes to a vhost that is being deleted, and let PostgreSQL drop its queues' messages."""
        if (closed := self.topology.closed(vhost)) is not None:
            self.definitions.dropped(closed)

    async def start(self, clients: NodeClients) -> None:
        """Join the cluster. From now on turns run only while the node may act."""
        self.clients = clients
        try:
            await self.member.start()
            knows_mqtt = (await self.database.link.fetch("read", HAS_MQTT))[0][0]
        except (DatabaseRefused, NameTaken) as error:
            raise BrokerError(f"cannot join the cluster: {error}") from error
        except ClusterError as error:
            raise NotNow(f"cannot join the cluster: {error}") from error
        if self._takes_mqtt and not knows_mqtt:
            raise BrokerError("the functions in PostgreSQL do not support MQTT: stop all older nodes before this start")
        self._turn.act_while(self.member.may_act)
        self._turn.set_clock(self._clock_s)
        self._timers.every(lambda: WATCH_S, self._watch)

    def follow(self, follower: Follower) -> None:
        """Start to follow changes of the definitions by other nodes."""

        async def flushed() -> None:
            await follower.swept()
            await self.data.drain()

        self._follows = True
        self._tasks.start(self.definitions.run(follower, flushed))

    async def drain(self, timeout_s: float) -> None:
        """Wait until all accepted work is committed, the timeout expires or the epoch ends."""
        with suppress(TimeoutError, Fenced):
            async with asyncio.timeout(timeout_s):
                await self.data.drain()

    async def leave(self) -> None:
        """Return all leased messages, and leave the cluster."""
        self._timers.close()
        await self._tasks.stop()
        await self._end_epoch()
        await self.member.leave()
        await self.data.close()

    async def _end_epoch(self) -> None:
        """Stop the parts that belong to the epoch, without answering open questions: `lost` answers them."""
        parts = self.consumers, self.keeper, self.mailbox, self.unused, self.claims, self.mqtt_clients
        for stop in (self.topology.log.stop, *(part.stop for part in parts)):
            await stop()
        self.inquiries.forget()

    def _watch(self) -> None:
        """Block publishers while PostgreSQL cannot be reached, fails or does not answer."""
        if trouble := self.database.trouble:
            self._block(trouble)
        elif self._blocked and self.member.may_act():
            self._blocked = False
            self.clients.unblock()

    def _clock_s(self) -> float:
        """Return the time by the database's clock. Heartbeats correct it, but it never goes back here."""
        self._now_ms = max(self._now_ms, self.member.now_ms())
        return self._now_ms / 1000

    # -- events of the node -------------------------------------------------------------------------------------------

    async def joining(self) -> None:
        """Build the topology from its log, before the node joins."""
        await self.topology.log.load()

    async def joined(self, _version: int) -> None:
        """Catch up with the topology log, and start the parts. The node acts once this returns."""
        await self.topology.start()
        self.consumers.start()
        self.mqtt_clients.start()
        self.keeper.start()
        self.mailbox.start()

    def paused(self, reason: str) -> None:
        """Stop leasing and block publishers, because the lease has ended; turns have stopped, connections stay open."""
        self.data.leases.pause()
        self._block(reason)

    def activated(self) -> None:
        """Ask PostgreSQL for messages again, and schedule a turn for clients that connected while none could run."""
        self.data.leases.resume()
        self._turn.schedule()

    async def lost(self, reason: str) -> None:
        """Drop leased messages and the clients' connections; the node joins as a new epoch once this returns."""
        await self._end_epoch()
        self.clients.drop(f"this node was lost to the cluster: {reason}")
        self.topology.log.answer_lost()
        self.inquiries.answer_lost()
        self.data.forget_all()

    def members_seen(self, members: list[ClusterMember], *, changed: bool) -> None:
        """Record the reports of all members; look for orphaned queues if the membership has changed."""
        self.mailbox.members_seen({member.epoch for member in members})
        for member in members:
            self.topology.log.barrier.applied(member.epoch, member.applied_version)
        self.inquiries.record_reports(members)
        if changed and self._follows:  # the vhosts are open
            self.consumers.look_for_orphans()

    def reconcile(self, rows: Sequence[LeasedRow]) -> None:
        self.data.reconcile(rows)

    def _handle_hint(self, hint: Hint) -> None:
        self.topology.log.handle_hint(hint)
        if hint.kind in {LOOK, DEFINITIONS}:
            self.definitions.hint()
        self.data.leases.handle_hint(hint)
        self.keeper.handle_hint(hint)
        self.claims.handle_hint(hint)
        self.mqtt_clients.handle_hint(hint)
        self.mailbox.handle_hint(hint)
        self.consumers.handle_hint(hint)

    def _queue_of(self, number: int) -> SharedQueue | None:
        """Return the queue of a level, or None if it is not known here."""
        level = self.data.levels.by_number.get(number)
        return level.queue if level is not None and isinstance(level.queue, SharedQueue) else None

    def _block(self, reason: str) -> None:
        if not self._blocked:
            self._blocked = True
            self.clients.block(reason)

    def _report(self) -> dict[str, Any]:
        """Return the report for the next heartbeat."""
        ready: dict[int, int] = {}
        held = slots = 0
        for queue in self.consumers.registered:
            for level in queue.levels:
                manager = level.manager
                held += manager.ready + manager.unacked
                slots += len(manager.slots) - 1
                if manager.ready and len(ready) < REPORTED_LEVELS_MAX:
                    ready[level.number] = manager.ready
        return {"held": held, "slots": slots, "clients": self.clients.count, "version": __version__, "ready": ready}


class SharedParts(LocalParts):
    """The parts of one vhost of a node."""

    lasting = False
    delay = SharedDelay

    def __init__(self, vhost: str, node: BrokerNode) -> None:
        self._vhost = vhost
        self._node = node

    def producers(self, *arguments: Any) -> SharedProducers:
        return SharedProducers(*arguments, claims=self._node.claims)

    def replies(self, vhost: str) -> SharedReplies:
        return SharedReplies(self._node.mailbox, vhost)

    def kind_of(self, name: str) -> Callable[..., Queue]:
        """Return the constructor of a queue with this name."""
        kind = SharedHoldingQueue if is_holding_name(name) else SharedQueue
        return partial(kind, parts=self._node.queue_parts, vhost_name=self._vhost)

    def level_of(
        self, queue: LevelOwner, level: int, number: int, ports: QueuePorts[Level, Queue], _persists_all: bool
    ) -> SharedLevel:
        """Return a new level of a queue; its number is never used again."""
        return SharedLevel(queue, level, number, ports, self._node.data.levels)

    def committer(self, *_: object) -> SharedCommitter:
        return SharedCommitter(self._node.data.caller)

    def journal(self, _record: Callable[[dict[str, Any]], None]) -> SharedJournal:
        return SharedJournal(self._node.topology, self._vhost)

    def store(self, _recorder: Recorder, producer_of: Callable[[int], str]) -> SharedStore:
        return SharedStore(self._node.data.levels, lambda mark: producer_key(self._vhost, producer_of(mark)))

    def messages(self, vhost: Vhost, queue: Queue, reader: SlotReader, committer: EngineCommitter) -> SharedMessages:
        """Return the free messages of a queue, and the ready ones on this node, for an operator."""
        return SharedMessages(vhost, queue, reader, committer, self._node.data)

    def opened(self, vhost: Vhost) -> None:
        """Create the exchanges, queues and bindings that the vhost has in the topology log."""
        self._node.topology.opened(vhost)
