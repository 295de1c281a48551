"""Make a vhost as the settings say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.core.delay.delayed import Delay
from broker.core.publishing.message_store import MessageStore
from broker.core.publishing.producers import ProducerLimits, Producers
from broker.core.publishing.reply_to import ReplyConsumers
from broker.core.queue.consumer import ChannelConsumers
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.topology.changes import Journal
from broker.core.vhost import Vhost
from broker.core.vhost_limits import VhostLimits
from broker.routing.cache import CacheLimits
from broker.routing.pattern import PatternLimits

if TYPE_CHECKING:
    from broker.core.confirmable import Confirmer
    from broker.settings import Settings

__all__ = ["limits_of", "new_vhost"]

CACHE_ROUNDS: Final = 4  # a route cache decides whether it pays after this many times its size in misses


def new_vhost(
    name: str,
    settings: Settings,
    ports: QueuePorts[Level, Queue],
    committer: Confirmer,
    *,
    share: Callable[[ChannelConsumers], None],
    journal: Journal,
    store: MessageStore,
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
        journal=journal,
        generate=generate,
        store=store,
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
    """Return how many exchanges, queues and bindings a vhost may have."""
    limits = settings.limits
    return VhostLimits(
        limits.exchanges_max,
        limits.queues_max,
        limits.bindings_max,
        transient_shared_queues=limits.transient_shared_queues,
        in_cluster=settings.cluster.is_on,
    )
