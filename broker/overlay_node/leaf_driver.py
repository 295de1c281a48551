"""Drive the leaf of this process: connect its logic to the vhosts, the data folder and the links."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.core.deadlines import Clock
from broker.event_log import get_logger
from broker.overlay.interest import Interest
from broker.overlay.leaf import Leaf
from broker.overlay.logical_broker import Timing
from broker.overlay.packets import Conjunction, Space, StreamName
from broker.overlay.peers import Outgoing
from broker.overlay.sink import Delivery
from broker.overlay.source import LeafState
from broker.overlay_node.binding_interest import BATCH_BINDINGS
from broker.overlay_node.exchange_log import ExchangeLog
from broker.overlay_node.leaf_file import LeafFile
from broker.overlay_node.vhost_overlay import VhostOverlay
from broker.tasks import Tasks

if TYPE_CHECKING:
    from broker.core.queue.kinds import OverlayQueue
    from broker.delivery.committer import EngineCommitter
    from broker.delivery.engine import Engine
    from broker.settings.overlay import Overlay

_log = get_logger()

DELIVERIES_AT_ONCE: Final = 500  # messages of other brokers that are published in one turn
ALL_BINDINGS: Final = 1 << 62
INCARNATION_BITS: Final = 63
EPOCH_S: Final = 1_577_836_800  # 2020-01-01
NUMBER_SHIFT: Final = 16  # a stream has fewer than 65,536 messages per second on average; message ids have 48 bits


class Commits:
    """Call functions once the records written so far are on disk. A Confirmable of the vhost's committer."""

    def __init__(self, committer: EngineCommitter) -> None:
        self._committer = committer
        self._callbacks: deque[tuple[int, Callable[[], None]]] = deque()
        self.published = self.logged = self.confirmed = 0
        self.waiting = False

    @property
    def busy(self) -> bool:
        """Whether any function is waiting."""
        return bool(self._callbacks)

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` after the commit of all records written so far."""
        self.published += 1
        self.logged = self.published
        self._callbacks.append((self.published, done))
        if not self.waiting:
            self.waiting = True
            self._committer.wait(self)

    def confirm(self, upto: int) -> None:
        self.confirmed = upto
        while self._callbacks and self._callbacks[0][0] <= upto:
            self._callbacks.popleft()[1]()


class LeafVhost:
    """One vhost of the leaf."""

    def __init__(self, engine: Engine, overlay: VhostOverlay) -> None:
        self.engine = engine
        self.overlay = overlay
        self.commits = Commits(engine.committer)
        self.grown: set[str] = set()  # exchanges whose streams have grown since the last commit was requested

    def take_grown(self) -> set[str]:
        """Return the exchanges whose streams have grown since the last call."""
        grown, self.grown = self.grown, set()
        return grown


class LeafDriver:
    """Drive the leaf: feed the events of the vhosts to its logic, and carry out what the logic returns.

    Invariant: the patterns that the logic wants in a stream are in force before the next message is published. Packets
        are sent only after the virtual time and the start points on which they depend are on disk.
    """

    def __init__(
        self,
        name: str,
        node: str,
        make_interest: Callable[[int], Interest],
        timing: Timing,
        takes_part: Callable[[str, str], bool],
        file: LeafFile,
        settings: Overlay,
        schedule: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Take `make_interest`, which creates the leaf's interest above a virtual time, and `takes_part`, which returns
        whether an exchange of a vhost is in the overlay.
        """
        self.name = name
        self._node = node
        self._make_interest = make_interest
        self._timing = timing
        self._takes_part = takes_part
        self._file = file
        self._settings = settings
        self._schedule = schedule
        self.streams: dict[Space, ExchangeLog] = {}  # the open ones
        self._ended: dict[Space, int] = {}  # the last number of each stream that ended with its vhost
        self.vhosts: dict[str, LeafVhost] = {}
        self._stored_bound = 0
        self._stored = True  # whether the file contains the start points of all durable bindings
        self._writing = Tasks(fail, self._schedule)
        self._deliveries: deque[Delivery] = deque()
        self._replaced: list[StreamName] = []  # incarnations whose positions are not needed any more
        self._has_logged_older = False
        self._unbound: list[str] = []  # bindings of deleted vhosts
        self.delivered = 0
        self.gaps = 0
        self.forced_out = 0
        self.leaf: Leaf

    # -- vhosts -------------------------------------------------------------------------------------------------------

    def attach(self, engine: Engine) -> LeafVhost:
        """Attach a vhost, and open the outlets of those of its exchanges that take part."""
        vhost = engine.vhost
        takes_part = partial(self._takes_part, vhost.name)
        overlay = VhostOverlay(vhost, takes_part, self._schedule, partial(_first_number, vhost.ports.clock))
        held = self.vhosts[vhost.name] = LeafVhost(engine, overlay)
        overlay.begin()
        return held

    def detach(self, name: str) -> None:
        """Detach a vhost, and end its streams."""
        held = self.vhosts.pop(name, None)
        if held is not None:
            for exchange in held.overlay.streams:
                if stream := self.streams.pop(Space(name, exchange), None):
                    stream.end()
                    self._ended[Space(name, exchange)] = stream.durable
            self._unbound += held.overlay.bindings.announced()
            self._schedule()

    async def start(self) -> None:
        """Recover the streams and positions of the vhosts, and create the leaf.

        Raises: NewerFormat; CorruptFile; StoreFailed.
        """
        stored = self._file.read()
        self._stored_bound = stored.time_bound
        positions: dict[StreamName, int] = {}
        for held in self.vhosts.values():
            for exchange in held.overlay.take_opened():
                await self._open(held, exchange)
            positions |= held.overlay.ingress.positions()
        crashed = not all(held.engine.recovered_clean for held in self.vhosts.values())
        state = LeafState(stored.time_bound, stored.start_points, positions, crashed)
        interest, incarnation = self._make_interest(stored.time_bound), secrets.randbits(INCARNATION_BITS)
        self.leaf = Leaf(self.name, self._node, interest, self.streams, state, self._timing, incarnation=incarnation)
        self._change_bindings(ALL_BINDINGS, at_start=True)
        self._forward()

    async def _open(self, held: LeafVhost, exchange: str) -> None:
        """Recover a stream, then open it."""
        stream = held.overlay.streams[exchange]
        recovered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream.recover(lambda: None if recovered.done() else recovered.set_result(None))
        await recovered
        self._opened(held, exchange)

    def _opened(self, held: LeafVhost, exchange: str) -> None:
        stream = held.overlay.streams[exchange]
        space = Space(held.engine.vhost.name, exchange)
        stream.when_ready(self._schedule, partial(self._appended, space))
        stream.became_durable(max(stream.last, self._ended.pop(space, 0)))
        self.streams[space] = stream
        stream.queue.on_grown(partial(self._mark_grown, held))

    # -- the turn -----------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> list[Outgoing]:
        """Process the events of the vhosts and the results of the logic, and return the packets to send."""
        for name, held in self.vhosts.items():
            for exchange in held.overlay.take_opened():  # new streams: they have nothing to recover
                self._opened(held, exchange)
                self.leaf.space_opened(Space(name, exchange), now_ms)
            self._commit_grown(name, held)
        self._forward()
        self._publish()
        self._log_gaps()
        self._log_older_folder()
        output: list[Outgoing] = []
        if not self._writing.busy:
            if self._is_stored:  # before the next batch, so that a sequence of batches cannot delay the packets
                output = self.leaf.take_output(now_ms)
                self._forward()
                if self.leaf.has_more:
                    self._schedule()
            self._change_bindings()
            self._forward()
            if not self._is_stored:
                self._write()
        return output

    @property
    def _is_stored(self) -> bool:
        """Whether the state on which the next packets depend is in the file."""
        return self._stored and self.leaf.interest.own_time.bound == self._stored_bound

    def after_event(self) -> None:
        """Apply the patterns that the logic wants after an event, before the next message is published."""
        self._forward()
        self._schedule()

    @property
    def busy(self) -> bool:
        """Whether any work waits for the disk or for a turn."""
        return (
            self._writing.busy
            or bool(self._deliveries)
            or any(held.commits.busy or held.grown or held.overlay.bindings.busy for held in self.vhosts.values())
        )

    def tick(self, now_ms: int, *, enforce: bool) -> None:
        """Advance the time of the logic; with `enforce`, remove messages beyond the limits."""
        self.leaf.tick(now_ms)
        if not enforce:
            return
        for name, held in self.vhosts.items():
            for exchange, stream in held.overlay.streams.items():
                before, changes = stream.trimmed, [change.number for change in stream.changes]
                if upto := stream.enforce(self._settings.max_bytes, self._settings.max_age_ms):
                    count = upto - before - sum(before < number <= upto for number in changes)
                    self.forced_out += count
                    _log.warning("overlay.messages_forced_out", vhost=name, exchange=exchange, upto=upto, count=count)

    def forget(self, leaf: str, now_ms: int) -> None:
        """Discard the state of a leaf that will not return, and the positions in its streams."""
        self.leaf.forget(leaf, now_ms)
        self._deliveries = deque(delivery for delivery in self._deliveries if delivery.stream.leaf != leaf)
        for held in self.vhosts.values():
            held.overlay.ingress.forget(leaf)

    def has_positions(self, leaf: str) -> bool:
        """Return whether the vhosts have a position in a stream of a leaf. Cost: O(producers)."""
        return any(stream.leaf == leaf for held in self.vhosts.values() for stream in held.overlay.ingress.positions())

    async def stop(self) -> None:
        """Append the waiting vectors, and finish writing the file."""
        self.leaf.settle()
        await self._writing.ended()
        self._file.close()

    # -- streams ------------------------------------------------------------------------------------------------------

    def _mark_grown(self, held: LeafVhost, queue: OverlayQueue) -> None:
        held.grown.add(queue.exchange)
        self._schedule()

    def _appended(self, space: Space) -> None:
        self.vhosts[space.vhost].grown.add(space.exchange)
        self._schedule()

    def _commit_grown(self, name: str, held: LeafVhost) -> None:
        """Schedule a call of `_committed` after the next commit, which contains the ends of streams that have grown."""
        grown = held.take_grown()
        if not grown:
            return
        ends: list[tuple[Space, int]] = []
        for exchange in grown:
            stream = held.overlay.streams[exchange]
            stream.queue.rearm()
            ends.append((Space(name, exchange), stream.last))
        held.commits.after(partial(self._committed, ends))

    def _committed(self, ends: Sequence[tuple[Space, int]]) -> None:
        for space, upto in ends:
            if stream := self.streams.get(space):
                stream.became_durable(upto)
        self._schedule()

    def _forward(self) -> None:
        for space, added, removed in self.leaf.take_bindings():
            held = self.vhosts.get(space.vhost)
            if held is not None:
                held.overlay.forward(space.exchange, added, removed)

    # -- bindings -----------------------------------------------------------------------------------------------------

    def _change_bindings(self, limit: int = BATCH_BINDINGS, *, at_start: bool = False) -> None:
        """Pass a batch of changed bindings to the logic."""
        added: list[tuple[str, Conjunction, bool]] = []
        removed, self._unbound = self._unbound, []
        for held in self.vhosts.values():
            if held.overlay.bindings.busy:
                more_added, more_removed = held.overlay.take_bindings(limit)
                added += more_added
                removed += more_removed
        if not (added or removed or at_start):
            return
        self.leaf.bindings_changed(added, removed)
        for held in self.vhosts.values():
            held.overlay.bindings.note_start_points(self.leaf.subscriptions.start)
        if at_start or any(durable for _, _, durable in added):
            self._stored = False
        self._schedule()

    def _write(self) -> None:
        """Write the leaf's time bound and the changes of its start points in a thread; its end schedules a turn."""
        points, removed = self.leaf.subscriptions.take_changes()
        self._stored = True
        bound = self.leaf.interest.own_time.bound
        self._writing.start(self._write_batch(bound, points, removed))

    async def _write_batch(self, bound: int, points: Mapping[str, int], removed: Collection[str]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._file.write, bound, points, removed)
        self._stored_bound = bound

    # -- deliveries ---------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Publish received messages, as many as fit in one turn, and acknowledge them after the commit."""
        self._deliveries += self.leaf.take_deliveries()
        ends: dict[StreamName, int] = {}
        for _ in range(min(DELIVERIES_AT_ONCE, len(self._deliveries))):
            delivery = self._deliveries.popleft()
            stream = delivery.stream
            held = self.vhosts.get(stream.space.vhost)
            ends[stream] = delivery.data.number
            if held is not None:
                start = self._start(held, delivery)
                held.overlay.ingress.publish(stream, delivery.data, start, doubtful=delivery.doubtful)
                self.delivered += 1
        for stream, number in ends.items():
            held = self.vhosts.get(stream.space.vhost)
            if held is None:
                self.leaf.committed(stream, number)
                continue
            held.overlay.ingress.advance(stream, number)
            held.commits.after(partial(self._received, stream, number))
        self._replaced += self.leaf.take_replaced()
        if self._deliveries:
            self._schedule()
        elif self._replaced:
            self._drop_replaced()

    def _drop_replaced(self) -> None:
        """Replace the recorded positions of replaced incarnations with those of the newer ones."""
        replaced, self._replaced = self._replaced, []
        streams = {stream[:2] for stream in replaced}  # leaf and space
        for stream, sink in self.leaf.sinks.items():
            held = self.vhosts.get(stream.space.vhost)
            if held is not None and stream[:2] in streams and sink.position is not None:
                held.overlay.ingress.advance(stream, sink.committed_upto)
        for stream in replaced:
            held = self.vhosts.get(stream.space.vhost)
            if held is not None:
                held.overlay.ingress.drop(stream)

    def _start(self, held: LeafVhost, delivery: Delivery) -> int | None:
        """Return the latest start point of the bindings that receive a message, or None if all bindings receive it."""
        latest = self.leaf.subscriptions.ceiling(delivery.stream.space)
        has_begun = not held.overlay.bindings.busy and latest <= delivery.virtual_time
        return None if has_begun else delivery.virtual_time

    def _received(self, stream: StreamName, number: int) -> None:
        self.leaf.committed(stream, number)
        self._schedule()

    def _log_gaps(self) -> None:
        for gap in self.leaf.take_gaps():
            self.gaps += 1
            _log.warning(
                "overlay.gap_found",
                vhost=gap.stream.space.vhost,
                exchange=gap.stream.space.exchange,
                leaf=gap.stream.leaf,
                first=gap.first,
                last=gap.last,
            )

    def _log_older_folder(self) -> None:
        """Log once that other brokers know more of this leaf than its data folder, which is an older copy or empty."""
        times, streams = self.leaf.take_skipped_times(), self.leaf.take_rolled_back()
        if (times or streams) and not self._has_logged_older:
            self._has_logged_older = True
            _log.warning(
                "overlay.folder_is_older",
                broker=self.name,
                known_time=max(times, default=0),
                streams=sorted({f"{stream.space.vhost}:{stream.space.exchange}" for stream, _, _ in streams}),
                reason="others know more of this leaf than its data folder, which was restored or emptied",
            )


def _first_number(clock: Clock) -> int:
    """Return the first number of a new stream: above those of a former stream of its name, deleted with its vhost."""
    return max(1, clock.now_ms // 1000 - EPOCH_S) << NUMBER_SHIFT
