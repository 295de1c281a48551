"""The parts in which the engine of a standalone broker differs from that of a cluster node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from broker.core.delayed import Delay
from broker.core.publishing.local_store import LocalStore
from broker.core.publishing.message_store import MessageStore
from broker.core.publishing.producers import ProducerLimits, Producers
from broker.core.publishing.reply_to import ReplyConsumers
from broker.core.queue.consumer import ChannelConsumers
from broker.core.queue.kinds import kind_of
from broker.core.queue.level import Level
from broker.core.queue.level_owner import LevelOwner
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.topology.changes import Change, Journal
from broker.core.vhost import Vhost
from broker.core.vhost_limits import VhostLimits
from broker.delivery.committer import Committer, EngineCommitter
from broker.delivery.queue_messages import LocalMessages, QueueMessages
from broker.delivery.reader import SlotReader
from broker.routing.cache import CacheLimits
from broker.routing.pattern import PatternLimits
from broker.store.message_log import MessageLog
from broker.store.recorder import Recorder

if TYPE_CHECKING:
    from broker.core.confirmable import Confirmer
    from broker.settings import Settings

CACHE_ROUNDS: Final = 4  # a route cache checks whether it is useful after this many times its size in misses


def new_vhost(
    name: str,
    settings: Settings,
    ports: QueuePorts[Level, Queue],
    committer: Confirmer,
    *,
    share: Callable[[ChannelConsumers], None],
    journal_of: Callable[[Callable[[Change], None]], Journal],
    record: Callable[[Change], None],
    store_of: Callable[[Callable[[int], str]], MessageStore],
    generate: Callable[[], str],
    delay: Callable[..., Delay] = Delay,
    producers: Callable[..., Producers] = Producers,
    replies: Callable[[str], ReplyConsumers] = lambda _name: ReplyConsumers(),
) -> Vhost:
    """Return an empty vhost."""
    routing, limits = settings.routing, settings.limits
    return Vhost(
        name,
        ports=ports,
        share=share,
        committer=committer,
        journal_of=journal_of,
        record=record,
        store_of=store_of,
        generate=generate,
        pattern_limits=PatternLimits(routing.hashes_max, routing.words_max),
        cache_limits=CacheLimits(routing.cache_entries, routing.cache_bytes, routing.cache_entries * CACHE_ROUNDS + 1),
        topic_index=routing.topic_index,
        limits=limits_of(settings),
        producer_limits=ProducerLimits(limits.producers_max, limits.producer_expiry_ms, limits.producer_max_bytes),
        delay=delay,
        producers=producers,
        replies=replies,
    )


def limits_of(settings: Settings) -> VhostLimits:
    """Return the limits on exchanges, queues and bindings of a vhost."""
    limits = settings.limits
    return VhostLimits(
        limits.exchanges_max,
        limits.queues_max,
        limits.bindings_max,
        transient_shared_queues=limits.transient_shared_queues,
        in_cluster=settings.cluster.is_on,
    )


class EngineParts(Protocol):
    """Create the parts of the engine of one vhost. ``lasting`` is set if the messages in the vhost's store outlive the
    process. ``delay`` creates the holder of an exchange's delayed messages, ``producers`` the registry of numbered
    producers, ``replies`` that of direct reply consumers; ``kind_of`` and ``level_of`` are those of `QueuePorts`.
    """

    @property
    def lasting(self) -> bool: ...
    @property
    def delay(self) -> Callable[..., Delay]: ...
    @property
    def producers(self) -> Callable[..., Producers]: ...
    @property
    def replies(self) -> Callable[[str], ReplyConsumers]: ...
    @property
    def kind_of(self) -> Callable[[str, bool], Callable[..., Queue]]: ...
    @property
    def level_of(self) -> Callable[[LevelOwner, int, int, QueuePorts[Level, Queue], bool], Level]: ...

    def committer(
        self,
        log: MessageLog,
        loop: asyncio.AbstractEventLoop,
        schedule: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> EngineCommitter:
        """Return the committer, which confirms publishes and transactions."""

    def journal(self, record: Callable[[Change], None]) -> Journal:
        """Return the journal, which decides changes of the topology; `record` appends one to the vhost's log."""

    def store(self, recorder: Recorder, producer_of: Callable[[int], str]) -> MessageStore:
        """Return the message store; `producer_of` returns the name of a producer by its mark."""

    def messages(self, vhost: Vhost, queue: Queue, reader: SlotReader, committer: EngineCommitter) -> QueueMessages:
        """Return the messages of a queue, for an operator."""

    def opened(self, vhost: Vhost) -> None:
        """Handle a vhost that was restored from its store."""

    def closed(self) -> None:
        """Stop acting on the vhost, because it is being deleted."""


class LocalParts:
    """The parts of a standalone broker: its log has the messages and the topology."""

    lasting = True
    delay = Delay
    producers = Producers
    level_of = Level
    committer = Committer
    journal = Journal
    kind_of = staticmethod(kind_of)
    messages = LocalMessages

    def replies(self, _vhost: str) -> ReplyConsumers:
        """Return the registry of direct reply consumers."""
        return ReplyConsumers()

    def store(self, recorder: Recorder, _producer_of: Callable[[int], str]) -> LocalStore:
        """Return the message store."""
        return LocalStore(recorder)

    def opened(self, vhost: Vhost) -> None:
        """Do nothing: the vhost has everything."""

    def closed(self) -> None:
        """Do nothing: no other broker has the vhost."""
