"""The slot delivery worker: lease slots of queues, and offer their messages to consumers.

Source: WSO2 Message Broker 3.0.0, "Slot Based Architecture": several workers, each with a set of queues; when a worker
    fails, its queues move to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from broker.core.firehose import Firehose
from broker.core.publish_credit import PublishCredit
from broker.core.queue.consumer import ChannelConsumers, Consumer
from broker.core.queue.consumer_ring import BATCH_MESSAGES
from broker.core.queue.level import Level
from broker.core.queue.level_owner import QueueWorker
from broker.core.queue.queue import Queue
from broker.delivery.awaited_queues import AwaitedQueues
from broker.delivery.flusher import deliver, forget_latest, rooms_of, spread
from broker.delivery.reader import READ_COST, SlotReader
from broker.event_log import get_logger
from broker.slots.slot import Slot
from broker.slots.states import Owner
from broker.store.damage import StoreFailed

TURN_MESSAGES: Final = 1024  # per queue and loop turn: the share of one busy queue before the next one is served
FULL_QUEUES: Final = 2  # this many busy queues fill a turn; other queues are served in the next turn
QUEUE_COST: Final = 8  # a queue with one message takes as long as this many messages of a busy queue
CROWD_QUEUES: Final = TURN_MESSAGES * FULL_QUEUES // QUEUE_COST  # queues with one message each that fill a turn
EXPIRED_COST: Final = 3  # expired messages may be dead-lettered, which takes longer than a delivery
FIRST_TURNS: Final = 4  # shares of a queue delivered before a method: more messages than one read of a socket brings
FAILURES_MAX: Final = 3  # a queue with which this many workers failed is served only on demand

_log = get_logger()


class Worker(QueueWorker["Queue"]):
    """Serve a set of queues, each for a bounded number of messages per loop turn.

    Invariant: between turns, a queue is in ``ready`` exactly while its ``awake`` is set.
    """

    def __init__(
        self,
        owner: Owner,
        reader: SlotReader,
        schedule: Callable[[], None],
        awaited: AwaitedQueues,
        firehose: Firehose | None = None,
    ) -> None:
        """Deliveries are reported to `firehose`, if it is given."""
        self.owner = owner
        self.firehose = firehose
        self.failed: Queue | None = None  # the queue whose turn raised an error
        self.queues: set[Queue] = set()
        self.ready: list[Queue] = []
        self._reader = reader
        self._schedule = schedule
        self._awaited = awaited

    def trace(self, firehose: Firehose | None) -> None:
        """Report deliveries to the firehose, or to none."""
        self.firehose = firehose

    def shrink(self) -> None:
        """Copy the set of queues, because a set's table never shrinks."""
        self.queues = set(self.queues)

    def wake(self, queue: Queue) -> None:
        """Serve the queue in the next turn."""
        if not queue.awake:
            queue.awake = True  # hot: set directly
            if not self.ready:  # else a turn is scheduled
                self._schedule()
            self.ready.append(queue)

    def turn(self) -> int:
        """Serve awake queues within the turn's budget; return the number of messages delivered or expired. Queues with
        more to deliver stay awake. Raises: StoreFailed; other errors, after which the caller retires the worker.
        """
        ready, self.ready = self.ready, []
        budget = TURN_MESSAGES * FULL_QUEUES
        handed_out = 0
        for place, queue in enumerate(ready):
            if budget <= 0:
                self.ready[:0] = ready[place:]  # before the queues served in this turn
                break
            before = queue.ready if queue.prioritized else queue.level.manager.ready
            more = False
            spent = 0
            try:
                if not queue.deleted and not self._serve_lone(queue):
                    spent = self._reader.spent  # read only here, because the reader is not compiled
                    more = self._serve(queue)
                    spent = self._reader.spent - spent
            except Exception:
                self.ready.extend(ready[place:])
                self.failed = queue
                raise
            left = queue.ready if queue.prioritized else queue.level.manager.ready
            taken = before - left
            if more:
                self.ready.append(queue)
                queue.lags = True  # hot: set directly
            else:
                queue.awake = False  # hot: set directly
                if left:
                    queue.lags = self._awaited.note(queue, left, taken)  # hot: set directly
                elif queue.lags:
                    queue.lags = False  # hot: set directly
                    self._awaited.caught_up(queue)
            handed_out += max(0, taken)
            budget -= max(QUEUE_COST, taken) + spent
        if self.ready:
            self._schedule()
        return handed_out

    def serve(self, queue: Queue) -> None:
        """Serve one queue at once. The next turn continues if more is left, or after a defect. Raises: StoreFailed."""
        try:
            more = not self._serve_lone(queue) and self._serve(queue)
        except StoreFailed:
            raise
        except Exception:  # noqa: BLE001 - a defect, not an error of the client whose method is running
            _log.exception("queue.failed", queue=queue.name)
            more = True
        if more:
            self.wake(queue)

    def serve_first(self, queue: Queue) -> int:
        """Serve a queue before a method that would find its messages ready; return the number delivered or expired.

        Continue while consumers have room, for at most FIRST_TURNS shares.
        """
        handed_out = 0
        for _ in range(FIRST_TURNS):
            before = queue.ready
            if not before or queue.serving or queue.deleted or not queue.consumers.able():
                break
            self.serve(queue)
            taken = before - queue.ready
            if taken <= 0:  # the next message is on disk
                break
            handed_out += taken
        return handed_out

    def _serve(self, queue: Queue) -> bool:
        """Deliver from one queue, and return whether it can continue in the next turn."""
        # While the queue is served, its dead letters must not cause further deliveries from it.
        queue.serving = True  # hot: set directly
        try:
            more = self._serve_levels(queue)
        finally:
            queue.serving = False  # hot: set directly
        if queue.timed and not queue.deleted:
            queue.check_expiry()  # another message is at the head now
        return more

    def _serve_lone(self, queue: Queue) -> bool:
        """Deliver the only ready message of a queue to its only consumer, if that has room; return False if `_serve`
        must serve the queue. With many queues, most have one message at a time.
        """
        ring = queue.consumers
        level = queue.level
        manager = level.manager
        if (
            manager.ready != 1
            or ring.alone is None
            or ring.paused
            or queue.timed
            or queue.prioritized
            or self.firehose is not None
            or level.returning
        ):
            return False
        consumer = cast("Consumer", ring.alone)
        if consumer.room() <= 0:
            return True  # credit wakes it
        slot = manager.get(self.owner)
        if slot is None or slot.contents is None or slot.redeliveries is not None or slot.recovered:
            return False
        index = manager.take_one(slot)
        try:
            consumer.deliver_one(level, slot, index)
        except Exception:
            _put_back(queue, level, slot, (index,), [consumer])
            raise
        return True  # a publish wakes it

    def _serve_levels(self, queue: Queue) -> bool:
        budget = TURN_MESSAGES
        while budget > 0:
            consumers = cast("list[Consumer]", queue.consumers.next(queue.ready))
            if not consumers:
                return False  # credit wakes it
            found = queue.lease()
            if found is None:
                return False  # a publish wakes it
            level, slot = found
            manager = level.manager
            if slot.contents is None:
                if not self._reader.read_cached(level, slot):
                    self._reader.read(level, slot, queue.wake)
                    return False
                budget -= READ_COST
            if not slot.cursor:
                self._reader.read_ahead(level, slot)
            alone = consumers[0] if len(consumers) == 1 else None
            if alone is not None:
                room = alone.room()
            else:
                rooms = rooms_of(consumers, BATCH_MESSAGES)
                room = sum(rooms)
            limit = min(room, BATCH_MESSAGES)
            indexes = queue.take(level, slot, limit) if queue.laned else manager.take(slot, limit)
            budget -= len(indexes)
            if queue.timed:
                taken, indexes = len(indexes), queue.drop_expired(level, slot, indexes)
                budget -= EXPIRED_COST * (taken - len(indexes))
                if not indexes or queue.deleted:
                    continue
            try:
                if alone is not None:
                    if self.firehose is None:
                        sent = deliver(alone, level, slot, indexes)
                    else:
                        sent = self._deliver_traced(self.firehose, alone, level, slot, indexes)
                    left = indexes[sent:] if sent < len(indexes) else ()  # mypyc evaluates the bounds of a slice twice
                else:
                    left = self._deliver(level, slot, indexes, consumers, rooms)
            except Exception:
                _put_back(queue, level, slot, indexes, consumers)
                raise
            if left:
                queue.put_back(level, slot, left)
            elif not manager.ready and not queue.prioritized:
                return False  # a publish wakes it
        return True

    @staticmethod
    def _deliver_traced(
        firehose: Firehose, consumer: Consumer, level: Level, slot: Slot, indexes: Sequence[int]
    ) -> int:
        """Deliver as `deliver` does, and report the delivered messages to the firehose."""
        contents = slot.contents
        assert contents is not None
        passing = [(contents[index], slot.redelivered(index)) for index in indexes]
        sent = deliver(consumer, level, slot, indexes)
        firehose.delivered_to(consumer, passing[:sent])
        return sent

    def _deliver(
        self, level: Level, slot: Slot, indexes: Sequence[int], consumers: list[Consumer], rooms: list[int]
    ) -> Sequence[int]:
        """Deliver round-robin to several consumers, and return the messages that were not delivered."""
        if (
            isinstance(indexes, range)
            and len(indexes) <= len(consumers)
            and self.firehose is None
            and slot.redeliveries is None
            and not slot.recovered
        ):
            return _deliver_one_each(level, slot, indexes, consumers, rooms)
        left: list[int] = []
        last: Consumer | None = None
        latest = -1
        for consumer, share in zip(consumers, spread(indexes, rooms), strict=True):
            if share:
                room = consumer.room()  # may have shrunk, because consumers can share a connection
                fitting = share if len(share) <= room else share[:room]
                if self.firehose is None:
                    taken = deliver(consumer, level, slot, fitting)
                else:
                    taken = self._deliver_traced(self.firehose, consumer, level, slot, fitting)
                if taken < len(share):
                    left.extend(share[taken:])
                if taken and share[taken - 1] > latest:
                    latest = share[taken - 1]
                    last = consumer  # the round ended here, perhaps before the end of the list
        if last is not None:
            level.queue.consumers.served(last)
        left.sort()
        return left


def _deliver_one_each(
    level: Level, slot: Slot, indexes: range, consumers: list[Consumer], rooms: list[int]
) -> Sequence[int]:
    """Deliver one fresh message to each consumer in turn, and return the messages that were not delivered. HOT.

    Cost: two calls per consumer, fewer than for a share of a batch; most of many consumers get one message in a turn.
    """
    at, stop = indexes.start, indexes.stop
    last: Consumer | None = None
    for place in range(len(consumers)):
        consumer = consumers[place]
        if at == stop:
            break
        if rooms[place] and consumer.room() > 0:  # the room shrinks when consumers share a connection
            consumer.deliver_one(level, slot, at)
            last = consumer
            at += 1
    if last is not None:
        level.queue.consumers.served(last)
    return range(at, stop)


def _put_back(queue: Queue, level: Level, slot: Slot, indexes: Sequence[int], consumers: list[Consumer]) -> None:
    """Put back taken messages that were not delivered, after an error."""
    held = {index for consumer in consumers for index in consumer.session.unacked.indexes_of(slot)}
    queue.put_back(level, slot, [index for index in indexes if index not in held and index not in slot.acks])


class Workers:
    """The workers of one node, and the assignment of queues to them."""

    def __init__(
        self, node: str, count: int, reader: SlotReader, schedule: Callable[[], None], awaited: AwaitedQueues
    ) -> None:
        self._node = node
        self._reader = reader
        self._schedule = schedule
        self._awaited = awaited
        self._created = 0
        self._sharing: list[ChannelConsumers] = []  # channels whose shared prefetch has room again
        self._firehose: Firehose | None = None
        self.credit = PublishCredit(schedule)
        self.workers: tuple[Worker, ...] = tuple([self._new_worker() for _ in range(count)])

    @property
    def busy(self) -> bool:
        """Whether a queue needs to be served, or publishers wait for credit."""
        return bool(self._sharing) or self.credit.busy or any(worker.ready for worker in self.workers)

    def assign(self, queue: Queue) -> Worker:
        """Assign a queue to the worker with the fewest queues and return that worker."""
        worker = min(self.workers, key=lambda candidate: len(candidate.queues))
        worker.queues.add(queue)
        return worker

    def trace(self, firehose: Firehose | None) -> None:
        """Report deliveries to the firehose, or to none."""
        self._firehose = firehose
        for worker in self.workers:
            worker.trace(firehose)

    def release(self, queue: Queue) -> None:
        """Remove a deleted queue."""
        for worker in self.workers:
            worker.queues.discard(queue)

    def shrink(self) -> None:
        """Shrink the sets of queues, and release the messages that were delivered last."""
        forget_latest()
        for worker in self.workers:
            worker.shrink()

    def share(self, session: ChannelConsumers) -> None:
        """Schedule the queues of a channel whose consumers share a prefetch, before all others in the next turn."""
        self._sharing.append(session)
        self._schedule()

    def turn(self) -> None:
        """Run every worker, then let publishers continue; replace a failing worker. Raises: StoreFailed."""
        if self._sharing:
            self._share_out()
        delivered = 0
        ready = 0
        for worker in self.workers:
            if worker.ready:
                ready += 1
        for worker in self.workers:
            if not worker.ready:
                continue
            try:
                if handed_out := worker.turn():
                    delivered += handed_out
                    if ready > 1:
                        # This worker is the last next time, so that no worker is always the first to fill an output.
                        self._put_last(worker, worker)
            except StoreFailed:
                raise
            except Exception:  # noqa: BLE001 - the queues continue with another worker
                _log.exception("worker.died", worker=worker.owner.worker, queues=len(worker.queues))
                self.retire(worker)
        credit = self.credit
        if not credit.waiting and not credit.lagging:
            credit.serial += 1  # hot: set directly
        else:
            left = 0
            for worker in self.workers:
                left += len(worker.ready)
            credit.turn(delivered, behind=left > 0, crowded=left > CROWD_QUEUES, awaited=bool(self._awaited.lagging))

    def _share_out(self) -> None:
        """Serve the queues of channels whose consumers share a prefetch, each channel's consumers in turn.

        Otherwise room for one message would be given to the queue that wakes first, every time. Work beyond a turn is
        left to the workers.
        """
        sharing, self._sharing = self._sharing, []
        budget = TURN_MESSAGES * FULL_QUEUES
        for session in sharing:
            for queue in session.take_turns():
                if session.room() <= 0:
                    break
                if queue.deleted or not queue.ready:
                    continue
                if budget <= 0:
                    queue.wake()
                    continue
                before = queue.ready
                queue.worker.serve(queue)
                budget -= max(QUEUE_COST, before - queue.ready)

    def retire(self, worker: Worker) -> None:
        """Replace a worker: its leases end, and its queues are assigned again."""
        self._put_last(worker, self._new_worker())
        for queue in worker.queues:
            for level in queue.levels:
                level.manager.end_leases(worker.owner)
            queue.move_to(self.assign(queue), failed=queue is worker.failed)
            if queue.failures < FAILURES_MAX:
                queue.wake()

    def _put_last(self, worker: Worker, last: Worker) -> None:
        """Remove a worker, and append `last`, which may be the same one."""
        self.workers = (*[other for other in self.workers if other is not worker], last)

    def _new_worker(self) -> Worker:
        self._created += 1
        owner = Owner(self._node, f"worker-{self._created}")
        return Worker(owner, self._reader, self._schedule, self._awaited, self._firehose)
