"""A whole broker in the test's event loop, from its start to a simulated crash that also ends its file access."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from broker.amqp.errors import BrokerError
from broker.server import BrokerServer
from broker.settings import Settings
from broker.store.damage import StoreFailed
from tests.fault.broker_clients import QUEUES, Client, churn_some, consume_some, drain, prepare, publish_some
from tests.fault.broker_history import History
from tests.fault.faulty_files import FaultyFiles, PowerLost
from tests.fault.mortal_files import MortalFiles
from tests.in_process import WITHOUT_HTTP
from tests.raw_client import PeerGone

Value = TypeVar("Value")

FOLDER: Final = Path("/store/broker")
CLIENTS_MAX: Final = 8
POLL_S: Final = 0.01
GONE: Final = (PeerGone, ConnectionError)


def new_disk(kind: type[FaultyFiles] = FaultyFiles) -> FaultyFiles:
    """Return an empty disk."""
    return kind(folder=FOLDER.parent)


def new_history() -> History:
    """Return the history of queues that do not exist yet."""
    return History({queue: {} for queue in QUEUES})


def small_settings(*, sync: bool, segment_bytes: int, slot_messages: int, mqtt: bool = False) -> Settings:
    """Return settings far below the allowed minimums, so that the log rolls, queues page and checkpoints run often."""
    plain = Settings(server={"port": 0, "data_dir": FOLDER}, **WITHOUT_HTTP)
    small: dict[str, dict[str, Any]] = {
        "store": {"sync": sync, "segment_bytes": segment_bytes, "checkpoint_interval_ms": 0, "reserve_bytes": 5000},
        "slots": {"window_messages": slot_messages, "window_ms": 20},
        "memory": {"resident_max_bytes": 8 << 10},
        "mqtt": {"enabled": mqtt, "port": 0},
    }
    return plain.model_copy(
        update={section: getattr(plain, section).model_copy(update=keys) for section, keys in small.items()}
    )


class Life:
    """A broker from its start to its end, which is usually a crash."""

    def __init__(
        self, disk: FaultyFiles, history: History, random: Random, *, sync: bool = True, mqtt: bool = False
    ) -> None:
        self.files = MortalFiles(disk)
        self.history = history
        self.random = random
        segment_bytes, slot_messages = random.choice((4096, 16384)), random.choice((3, 10, 50))
        settings = small_settings(sync=sync, segment_bytes=segment_bytes, slot_messages=slot_messages, mqtt=mqtt)
        self.broker = BrokerServer(settings, self.files)
        self.started = False
        self._killed = False
        self._threads = ThreadPoolExecutor(CLIENTS_MAX, thread_name_prefix="client")
        self._sockets: list[socket.socket] = []

    @property
    def failed(self) -> bool:
        """Return whether the broker or its disk has failed."""
        return self.files.dead or self.broker._failed.is_set()

    @property
    def count(self) -> dict[str, int]:
        """The broker's counts of background work."""
        (engine,) = self.broker.engines.values()
        return {
            "checkpoints": engine.checkpointer.count,
            "relocated": engine.compactor.relocated,
            "paged out": engine.pager.paged_out,
        }

    async def begin(self) -> bool:
        """Start the broker; return whether it started before it died."""
        try:
            await self.broker.start()
        except (PowerLost, BrokerError):
            if not self.files.dead and not self.files.disk.failed:
                raise
            self.files.die()
            self._threads.shutdown()
            return False
        self.started = True
        return True

    async def say(
        self, work: Callable[[Client], Value], name: str, *, tolerant: bool = True, watched: bool = True
    ) -> Value | None:
        """Run an operation of a client in a thread; return None if the broker died before the operation finished.

        Shapes: a ``tolerant`` operation may be interrupted by the broker's death; with ``watched``, a broker that fails
        is killed at once, as the process of `slotmq serve` would end.
        """
        random = Random(self.random.random())

        def converse() -> Value | None:
            try:
                client = Client(self.broker.listener.port, name, self.history, random)
                self._sockets.append(client.raw.socket)
                with client.raw:
                    return work(client.open())
            except GONE:
                if tolerant and (self.failed or not watched):
                    return None
                raise

        talk = asyncio.get_running_loop().run_in_executor(self._threads, converse)
        while not talk.done():
            await asyncio.wait([talk], timeout=POLL_S)
            if watched and self.failed:
                await self.kill()
                self._close_sockets()
        return talk.result()

    async def find(self) -> None:
        """Compare the recovered messages with the history. Raises: the error that ended the broker."""
        try:
            found = await self.say(drain, "drain", tolerant=False)
        except GONE:
            if self.broker._failure is not None:
                raise self.broker._failure from None
            raise
        assert found is not None
        self.history.verify(found)

    async def work(self, moments: int) -> None:
        """Run all clients until the broker dies, at most for this many calls of `moment`; then kill the broker."""

        def repeatedly(work: Callable[[Client], None], *queues: str) -> Callable[[Client], None]:
            def forever(client: Client) -> None:
                for queue in queues:
                    client.consume(queue, client.random.randint(1, 30))
                while not self.failed:
                    work(client)

            return forever

        await self.say(prepare, "prepare")
        clients = [
            asyncio.ensure_future(self.say(work, name))
            for name, work in {
                "publisher-1": repeatedly(publish_some),
                "publisher-2": repeatedly(publish_some),
                "consumer-1": repeatedly(consume_some, "work-1"),
                "consumer-2": repeatedly(consume_some, "work-2", "receipts"),
                "churner": repeatedly(churn_some),
            }.items()
            if not self.failed
        ]
        for _ in range(moments):
            await asyncio.sleep(self.random.choice((0, 0.001, 0.01)))
            if self.failed or all(client.done() for client in clients):
                break
            self.moment()
        self.files.die()
        await asyncio.gather(*clients)
        await self.kill()

    def moment(self) -> None:
        """Run the work of the broker's timers once."""
        (engine,) = self.broker.engines.values()
        try:
            engine.page()
            engine.tick()
        except (PowerLost, StoreFailed) as error:
            self.broker._fail(error)

    async def checkpoint(self) -> None:
        """Start a checkpoint, with compaction, and wait for its end or the broker's death."""
        (engine,) = self.broker.engines.values()
        if not self.failed:
            self.moment()
        while engine._checkpoint.busy and not self.failed:  # noqa: ASYNC110 - the broker may die meanwhile
            await asyncio.sleep(POLL_S)

    async def kill(self) -> None:
        """End the broker as SIGKILL does: from now on it neither sends nor writes."""
        self.files.die()
        if self._killed:
            return
        self._killed = True
        broker = self.broker
        broker._fail(PowerLost())
        broker.listener.refuse_new()
        self._close_sockets()
        broker._timers.close()
        await broker.entrance.control.close()
        broker.taps.abort()
        for engine in broker.engines.values():
            if engine._checkpoint is not None:
                engine._checkpoint.cancel()
            engine.close()
        await broker.listener._empty.wait()
        self._threads.shutdown(wait=False)

    async def stop(self) -> None:
        """Stop the broker cleanly."""
        await self.broker.stop()
        self.files.die()
        self._killed = True
        self._threads.shutdown()

    def add_socket(self, opened: socket.socket) -> None:
        """Register the socket of a client, to shut it down when the broker dies."""
        self._sockets.append(opened)

    def _close_sockets(self) -> None:
        """Shut down all sockets as the kernel does for a dead process, including those not yet accepted."""
        for transport in list(self.broker.listener.transports):
            transport.abort()
        for client in self._sockets:
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:  # already closed
                pass
