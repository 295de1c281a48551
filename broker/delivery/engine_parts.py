"""The parts in which the engine of a standalone broker differs from that of a cluster node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.core.delayed import Delay
from broker.core.publishing.local_store import LocalStore
from broker.core.publishing.message_store import MessageStore
from broker.core.publishing.producers import ProducerLimits, Producers
from broker.core.publishing.reply_to import ReplyConsumers
from broker.core.queue.consumer import ChannelConsumers
from broker.core.queue.kinds import kind_of
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.topology.changes import Change, Journal
from broker.core.vhost import Vhost
from broker.core.vhost_limits import VhostLimits
from broker.delivery.committer import Committer, EngineCommitter
from broker.delivery.queue_messages import LocalMessages
from broker.routing.cache import CacheLimits
from broker.routing.pattern import PatternLimits
from broker.store.recorder import Recorder

if TYPE_CHECKING:
    from broker.core.confirmable import Confirmer
    from broker.settings import Settings

CACHE_ROUNDS: Final = 4  # misses per entry of a route cache, after which it checks whether it is useful


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


class LocalParts:
    """Create the parts of a vhost's engine, here those of a standalone broker; a cluster node has a subclass.

    `lasting` is set if the messages in the vhost's store outlive the process. `delay` holds the delayed messages of
    an exchange, `producers` is the registry of numbered producers; `committer` confirms publishes and transactions,
    `journal` decides changes of the topology, `messages` shows and moves a queue's messages for operators.
    `kind_of` and `level_of` are those of `QueuePorts`.
    """

    lasting = True
    delay: Callable[..., Delay] = Delay
    producers: Callable[..., Producers] = Producers
    level_of: Callable[..., Level] = Level
    committer: Callable[..., EngineCommitter] = Committer
    journal: Callable[..., Journal] = Journal
    kind_of: Callable[[str], Callable[..., Queue]] = staticmethod(kind_of)
    messages: Callable[..., LocalMessages] = LocalMessages

    def replies(self, _vhost: str) -> ReplyConsumers:
        """Return the registry of direct reply consumers."""
        return ReplyConsumers()

    def store(self, recorder: Recorder, producer_of: Callable[[int], str]) -> MessageStore:
        """Return the message store; `producer_of` returns the name of a producer by its mark."""
        return LocalStore(recorder)

    def opened(self, vhost: Vhost) -> None:
        """Do nothing: a vhost that was restored from its store is complete."""
