"""A vhost: its parts, and how they are connected. Sessions call the parts; frames and rights are handled elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from broker.core.answers import Answers
from broker.core.confirmable import Confirmer
from broker.core.delayed import Delay, Delays, QueueDelay
from broker.core.exchange_memories import ExchangeMemories
from broker.core.firehose import Firehose
from broker.core.message.message import Envelope
from broker.core.names import Resource
from broker.core.policy.policy import Policies
from broker.core.policy.policy_sweep import PolicySweep
from broker.core.publishing.accepted_link import LinkAcceptor
from broker.core.publishing.dead_letter import DeadLetters
from broker.core.publishing.message_store import MessageStore
from broker.core.publishing.posting import Poster
from broker.core.publishing.producers import ProducerLimits, Producers
from broker.core.publishing.publish_entry import PublishEntry, PublishTarget
from broker.core.publishing.reply_to import ReplyConsumers
from broker.core.publishing.retainer import Retainer
from broker.core.publishing.wide_publishes import WidePublishes
from broker.core.queue.consumer import ChannelConsumers
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.statistics.vhost_tally import VhostTally
from broker.core.topology.bindings import Bindings
from broker.core.topology.changes import Change, Journal, subject_of
from broker.core.topology.exchanges import Exchanges
from broker.core.topology.live_bindings import LiveBindings
from broker.core.topology.parts import TopologyParts
from broker.core.topology.queues import Queues
from broker.core.vhost_limits import VhostLimits
from broker.routing.cache import CacheLimits, PublishCache
from broker.routing.exchange import Exchange
from broker.routing.fanout_exchange import FanoutExchange, MemoryExchange
from broker.routing.index import AUTO
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route

QUEUES_AT_ONCE: Final = 32  # queues of an ending vhost that are dropped in one step
FORGOTTEN_AT_ONCE: Final = 1000  # exchanges whose records of cache misses are freed in one step
HEAD_INTERVAL_MS: Final = 2  # the pause after reading a queue's first message at startup


class PublishCaches:
    """The publish caches: one per user, and one per MQTT client whose rights depend on its id.

    Shapes: `nothing` is an entry whose route is not live, for publishes that are refused.
    """

    def __init__(self, limits: CacheLimits | None) -> None:
        self._limits = limits
        self.nothing = PublishEntry(Envelope("", ""), FanoutExchange(""), Route(()), mandatory=False, dynamic=False)
        self._by_user: dict[str, PublishCache[PublishEntry, PublishTarget]] = {}
        self._own: dict[PublishCache[PublishEntry, PublishTarget], None] = {}

    def of(self, user_name: str) -> PublishCache[PublishEntry, PublishTarget]:
        cache = self._by_user.get(user_name)
        if cache is None:
            cache = self._by_user[user_name] = PublishCache(self.nothing, self._limits)
        return cache

    def own(self) -> PublishCache[PublishEntry, PublishTarget]:
        """Create a cache for one client. The caller must release it."""
        cache: PublishCache[PublishEntry, PublishTarget] = PublishCache(self.nothing, self._limits)
        self._own[cache] = None
        return cache

    def release(self, cache: PublishCache[PublishEntry, PublishTarget]) -> bool:
        """Drop the cache of a client and return True; do nothing and return False for the cache of a user."""
        if cache not in self._own:
            return False
        del self._own[cache]
        cache.drop_all()
        return True

    def drop_all(self) -> None:
        """Drop all entries after a change that affects publishes but does not end their routes."""
        for cache in (*self._by_user.values(), *self._own):
            cache.drop_all()

    def forget_misses(self) -> None:
        """Free the records of cache misses, which decide whether a publish is admitted to the cache."""
        for cache in (*self._by_user.values(), *self._own):
            cache.forget_misses()

    def drop(self, user_name: str) -> None:
        """Drop the entries of a user whose rights have changed."""
        cache = self._by_user.get(user_name)
        if cache is not None:
            cache.drop_all()


def _record(record: Callable[[Change], None], answers: Answers, change: Change) -> None:
    """Record a durable change, and let the answers about its subject wait for the record."""
    record(change)
    answers.changed(subject_of(change))


class Vhost:
    """The parts of one vhost.

    Units: ``connections`` is the number of connections to the vhost.
    Shapes: ``refusal`` is the reason why publishes are refused; it is empty while the vhost accepts them.
    """

    def __init__(
        self,
        name: str,
        *,
        ports: QueuePorts[Level, Queue],
        share: Callable[[ChannelConsumers], None],
        committer: Confirmer,
        journal_of: Callable[[Callable[[Change], None]], Journal],
        record: Callable[[Change], None],
        store_of: Callable[[Callable[[int], str]], MessageStore],
        generate: Callable[[], str],
        pattern_limits: PatternLimits | None = None,
        cache_limits: CacheLimits | None = None,
        topic_index: str = AUTO,
        limits: VhostLimits | None = None,
        producer_limits: ProducerLimits | None = None,
        delay: Callable[..., Delay] = Delay,
        producers: Callable[..., Producers] = Producers,
        replies: Callable[[str], ReplyConsumers] = lambda _name: ReplyConsumers(),
    ) -> None:
        """`share` schedules the queues of a channel whose consumers share a prefetch.

        `journal_of` creates the journal, given a function that records a durable change with `record`. `store_of`
        creates the message store, given a function that returns the name of a producer by its mark. `delay` creates the
        holder of an exchange's delayed messages, `producers` and `replies` create the registries of producers and of
        direct reply consumers.

        Shapes: `generate` returns 22 random characters for a generated name.
        """
        deadlines = ports.deadlines
        self.name = name
        self.ports = ports
        self.share = share
        self.committer = committer
        self.connections = 0
        self.tally = VhostTally()
        self.default_queue_type: str | None = None  # classic or quorum, for declares without a type
        self._generate = generate
        self._alarm = ""
        self.refusal = ""
        self.limits = limits = limits or VhostLimits()
        self.publish_caches = PublishCaches(cache_limits)
        resolve_again = self.publish_caches.drop_all
        self.policies = Policies(lambda: self.sweep.begin(self.queues, self.exchanges))
        self.sweep = PolicySweep(self.policies, deadlines, resolve_again=resolve_again, rerouted=self._rerouted)
        live = LiveBindings(deadlines)
        self.answers = Answers(committer, live.deferred)
        journal = journal_of(partial(_record, record, self.answers))
        self.producers = producers(name, deadlines, journal.decide, producer_limits or ProducerLimits())
        parts = TopologyParts(name, live, self.policies, self.sweep, journal, limits)
        hooks = self._exchange_declared, self._exchange_deleted
        self.exchanges = Exchanges(parts, *hooks, cache_limits=cache_limits, topic_index=topic_index)
        self.router = self.exchanges.router
        self.queues = Queues(parts, ports, self.exchanges, self.tally)
        self.store = store = store_of(self.producers.name_of)
        self.wide = WidePublishes(store, deadlines)
        self.poster = Poster(self.sweep, self.store, self.wide)
        self.memories = memories = ExchangeMemories(self.exchanges, self.queues, self.poster, ports)
        self.bindings = Bindings(
            parts, self.exchanges, self.queues, pattern_limits, before=memories.prepare, after=memories.replay
        )
        self.delays = Delays(self.exchanges, self.queues, self.poster, ports, delay)
        self.replies = replies(name)
        self.accept_link: LinkAcceptor | None = None
        self.retainer: Retainer | None = None  # set if MQTT is enabled
        self.dead_letters = DeadLetters(
            name, self.exchanges, self.replies, self.poster, deadlines, hold=self.delays.hold, tally=self.tally
        )
        ports.connect(
            store.accept_one,
            store.transaction,
            partial(QueueDelay, ports),
            self.dead_letters.dead_letter,
            self.queues.with_poisoned,
            self.queues.unused,
        )
        self.firehose = Firehose(name, self.exchanges, self.poster, deadlines, resolve_again=resolve_again)
        self.exchanges.predeclare(self.queues.reachable)

    def set_default_queue_type(self, default: str | None) -> None:
        """Set the type of queues that clients declare without a type."""
        self.default_queue_type = default

    def set_limits(self, table: Mapping[str, int]) -> None:
        """Replace the limits that an operator has set for this vhost."""
        self.limits.set_own(table)
        self._decide_refusal()

    def set_alarm(self, reason: str) -> None:
        """Set the reason for an alarm that blocks publishers; an empty string ends the alarm."""
        self._alarm = reason
        self._decide_refusal()

    def _decide_refusal(self) -> None:
        """Refuse publishes during an alarm if the vhost must not block connections. Drop the caches when that begins
        and when it ends, because cached publishes are not checked.
        """
        refuses = self._alarm != "" and self.limits.blocked_max_s == 0
        if refuses or self.refusal:
            self.publish_caches.drop_all()
        self.refusal = f"{self._alarm}: the message was not accepted, publish it again later" if refuses else ""

    def accept_links(self, accept: LinkAcceptor) -> None:
        """Accept overlay links of other brokers."""
        self.accept_link = accept

    def retain_with(self, retainer: Retainer) -> None:
        """Set the store of retained messages."""
        self.retainer = retainer

    def exchange_resource(self, name: str) -> Resource:
        return Resource("exchange", self.name, name)

    def queue_resource(self, name: str) -> Resource:
        return Resource("queue", self.name, name)

    def new_name(self, prefix: str) -> str:
        """Return a prefix with random characters, as a unique name."""
        return prefix + self._generate()

    def opened(self) -> None:
        """Count a connection that opened the vhost."""
        self.connections += 1

    def closed(self) -> None:
        """Count a connection that closed the vhost."""
        self.connections -= 1

    def restored(self) -> None:
        """Start to work after the recovery of topology and messages. Whether a message on disk expires is known only
        when it is read, so the first messages of all queues are read one after another.
        """
        self.delays.restored()
        self.memories.restored()
        now_ms = self.ports.clock.now_ms
        waiting = [queue for queue in self.queues.values() if queue.ready and not queue.is_internal]
        for place, queue in enumerate(waiting):
            queue.check_expiry_at(now_ms + place * HEAD_INTERVAL_MS)

    def dismantle(self) -> Iterator[None]:
        """Drop all contents in steps, because the vhost is deleted or offline."""
        self.sweep.end()
        deferred = self.bindings.live.deferred
        for exchange in list(self.exchanges.values()):
            deferred.take(exchange.end())
            while deferred.busy:
                yield
                deferred.turn()
        for place, queue in enumerate(list(self.queues.values()), 1):
            queue.delete()
            if place % QUEUES_AT_ONCE == 0:
                yield
        self.queues.clear()
        self.exchanges.end()
        self.publish_caches.drop_all()
        yield from self.ports.sliced.finish()
        self.policies.end()
        self.retainer = None
        self.ports.end()

    # -- between the parts --------------------------------------------------------------------------------------------

    def forget_misses(self) -> Iterator[None]:
        """Free, in steps, the records of cache misses, which decide whether a cache admits a key."""
        self.publish_caches.forget_misses()
        self.router.forget_misses()
        for number, exchange in enumerate(list(self.exchanges.values()), 1):
            exchange.forget_misses()
            if number % FORGOTTEN_AT_ONCE == 0:
                yield

    def _rerouted(self, name: str) -> None:
        self.router.exchange_changed(name)

    def _exchange_declared(self, exchange: Exchange) -> None:
        if exchange.delayed:
            self.delays.open(exchange)
        if isinstance(exchange, MemoryExchange):
            self.memories.open(exchange)

    def _exchange_deleted(self, exchange: Exchange) -> None:
        if exchange.delayed:
            self.delays.close(exchange)
        if isinstance(exchange, MemoryExchange):
            self.memories.close(exchange)
