"""One life of a whole broker, in the test's loop, on files that die with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from broker.amqp.errors import StoreFailed
from broker.server import Broker
from broker.settings import Settings
from tests.fault.broker_clients import (
    Client,
    churn_some,
    consume_some,
    drain,
    prepare,
    publish_some,
)
from tests.fault.broker_history import History
from tests.fault.faulty_files import FaultyFiles, PowerLost
from tests.fault.mortal_files import MortalFiles
from tests.raw_client import PeerGone

Value = TypeVar("Value")

FOLDER = Path("/store/broker")
CLIENTS_MAX = 8
LOOK_S = 0.01
GONE = (PeerGone, OSError)


def small_settings(*, sync: bool, segment_bytes: int, slot_messages: int) -> Settings:
    """Returns settings far below what users may set: everything rolls, pages and is checkpointed all the time."""
    plain = Settings(server={"port": 0, "data_dir": FOLDER})  # type: ignore[arg-type]
    small: dict[str, dict[str, Any]] = {
        "store": {"sync": sync, "segment_bytes": segment_bytes, "checkpoint_interval_ms": 0},
        "slots": {"window_messages": slot_messages, "window_ms": 20},
        "memory": {"resident_max_bytes": 8 << 10},
    }
    changed = {name: getattr(plain, name).model_copy(update=keys) for name, keys in small.items()}
    return plain.model_copy(update=changed)


class Life:
    """A broker from its start to its violent end."""

    def __init__(self, disk: FaultyFiles, history: History, random: Random, *, sync: bool = True) -> None:
        self.files = MortalFiles(disk)
        self.history = history
        self.random = random
        settings = small_settings(
            sync=sync, segment_bytes=random.choice((4096, 16384)), slot_messages=random.choice((3, 10, 50))
        )
        self.broker = Broker(settings, self.files)
        self.checkpoints = 0
        self.relocated = 0
        self.paged_out = 0
        self._threads = ThreadPoolExecutor(CLIENTS_MAX, thread_name_prefix="client")
        self._killed = False

    @property
    def failed(self) -> bool:
        """Whether something ended this life already."""
        return self.files.dead or self.broker._failed.is_set()

    async def say(self, work: Callable[[Client], Value], name: str, *, tolerant: bool = True) -> Value | None:
        """Has a client of its own do something; None when the broker was gone before it was done."""
        random = Random(self.random.random())

        def converse() -> Value | None:
            try:
                client = Client(self.broker.listener.port, name, self.history, random).open()
                with client.raw:
                    return work(client)
            except GONE:
                if tolerant:
                    return None
                raise

        talk = asyncio.get_running_loop().run_in_executor(self._threads, converse)
        while not talk.done():
            await asyncio.wait([talk], timeout=LOOK_S)
            if self.failed:
                await self.kill()
                self._hang_up()
        return talk.result()

    async def find(self) -> None:
        """Looks what recovery brought back and compares it with the history."""
        found = await self.say(drain, "drain", tolerant=False)
        assert found is not None
        self.history.verify(found)

    async def work(self, moments: int) -> None:
        """Has all clients work until the broker dies, at the latest after so many moments."""

        def over_and_over(work: Callable[[Client], None], *queues: str) -> Callable[[Client], None]:
            def forever(client: Client) -> None:
                for queue in queues:
                    client.consume(queue, client.random.randint(1, 30))
                while not self.failed:
                    work(client)

            return forever

        await self.say(prepare, "prepare")
        if self.failed:
            return
        clients = [
            asyncio.ensure_future(self.say(work, name))
            for name, work in {
                "publisher-1": over_and_over(publish_some),
                "publisher-2": over_and_over(publish_some),
                "consumer-1": over_and_over(consume_some, "work-1"),
                "consumer-2": over_and_over(consume_some, "work-2", "receipts"),
                "churner": over_and_over(churn_some),
            }.items()
        ]
        for _ in range(moments):
            await asyncio.sleep(self.random.choice((0, 0.001, 0.01)))
            if self.failed:
                break
            await self.moment()
        await self.kill()
        for outcome in await asyncio.gather(*clients, return_exceptions=True):
            if outcome is not None and not isinstance(outcome, AssertionError):
                raise outcome
            if outcome is not None:
                self.history.problems.append(f"client: {outcome}")

    async def moment(self) -> None:
        """Does what the timers would do in a minute."""
        for engine in self.broker.engines.values():
            try:
                engine.page()
                engine.tick()
            except (PowerLost, StoreFailed) as error:
                self.broker._fail(error)

    async def kill(self) -> None:
        """Ends the broker as SIGKILL does: it says nothing more, and no thread of it writes anything."""
        self.files.die()
        if self._killed:
            return
        self._killed = True
        broker = self.broker
        broker._fail(PowerLost())
        broker.listener.refuse_new()
        self._hang_up()
        broker._timers.close()
        await broker._control.close()
        for engine in broker.engines.values():
            if engine._checkpoint is not None:
                engine._checkpoint.cancel()
            self.checkpoints += engine.checkpointer.count
            self.relocated += engine.compactor.relocated
            self.paged_out += engine.pager.paged_out
            engine.close()
        while broker.listener.transports:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _hang_up(self) -> None:
        """Closes the sockets of a dead process, those too that the loop had not accepted yet when it died."""
        for transport in list(self.broker.listener.transports):
            transport.abort()

    def close(self) -> None:
        """Ends the clients' threads."""
        self._threads.shutdown(wait=True)
