"""The system clock is corrected: messages published before keep their age, at every start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aio_pika
import pytest

from broker.delivery.clock import SteadyClock
from broker.server import BrokerServer
from broker.settings import Settings
from broker.store.clock_file import ClockFile
from broker.store.files import Files
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until_async
from tests.in_process import WITHOUT_HTTP, client_of, queue_of
from tests.raw_talk import drop

HOUR_S: Final = 3600
YEARS_S: Final = 53 * 365 * 24 * HOUR_S
BEGIN_S: Final = 1_700_000_000.0


class Machine:
    """A machine whose clock is set by hand, and on which time passes only when the test says so."""

    def __init__(self, system_s: float = BEGIN_S) -> None:
        self.system_s = system_s
        self.elapsed_s = 1000.0

    def clock(self) -> SteadyClock:
        """Return the clock of a broker that starts now."""
        return SteadyClock(lambda: self.system_s, lambda: self.elapsed_s)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.system_s += seconds
        self.elapsed_s += seconds


@asynccontextmanager
async def broker_on(machine: Machine, folder: Path, *, kill: bool = False) -> AsyncIterator[BrokerServer]:
    """Yield a broker on the machine's clocks, and end it cleanly or not."""
    settings = Settings(
        server={"port": 0, "data_dir": folder},
        taps={"window_ms": 100},
        **WITHOUT_HTTP,
    )
    broker = BrokerServer(settings, None, machine.clock())
    await broker.start()
    try:
        yield broker
    finally:
        await (drop(broker) if kill else broker.stop())


async def corrected(broker: BrokerServer, machine: Machine, by_s: float) -> None:
    """Correct the system clock, and return when the broker has recorded it."""
    machine.system_s += by_s
    clock, folder = broker.shared.clock, Path(broker.settings.server.data_dir)
    assert isinstance(clock, SteadyClock)
    await wait_until_async(
        lambda: ClockFile(Files(), folder).read().ahead_ms == clock.ahead_ms, "the note of a correction"
    )


async def publish(broker: BrokerServer, *, seconds: int) -> None:
    """Publish a message with this expiration, and one with the same delay."""
    async with client_of(broker) as channel:
        arguments = {"x-delayed-type": "fanout"}
        exchange = await channel.declare_exchange("later", "x-delayed-message", durable=True, arguments=arguments)
        await channel.declare_queue("dead", durable=True)
        ttl = {"x-message-ttl": seconds * 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await channel.declare_queue("aging", durable=True, arguments=ttl)
        released = await channel.declare_queue("released", durable=True)
        await released.bind(exchange, "")
        await channel.default_exchange.publish(aio_pika.Message(b"aging", delivery_mode=2), "aging")
        delayed = aio_pika.Message(b"delayed", delivery_mode=2, headers={"x-delay": seconds * 1000})
        await exchange.publish(delayed, "")


def counts(broker: BrokerServer) -> dict[str, int]:
    """Return the counts of ready and of held messages."""
    return {name: queue_of(broker, name).ready for name in ("aging", "dead", "released", "amq.delayed.later")}


WAITING: Final = {"aging": 1, "dead": 0, "released": 0, "amq.delayed.later": 1}
DUE: Final = {"aging": 0, "dead": 1, "released": 1, "amq.delayed.later": 0}


async def looked(broker: BrokerServer) -> dict[str, int]:
    """Let due messages expire or be released, and return the counts."""
    for _ in range(2):  # a message that was read to check it may be due
        broker.run_due()
        await wait_until_async(lambda: broker.at_rest, "rest")
    return counts(broker)


async def until_due(broker: BrokerServer) -> None:
    """Return when the published messages have expired and been released."""

    async def due() -> bool:
        broker.run_due()
        return counts(broker) == DUE

    await wait_until_async(due, "what is due")


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("by_s", [YEARS_S, HOUR_S, -HOUR_S], ids=["from 1970", "from behind", "from ahead"])
async def test_a_correction_expires_and_releases_nothing_early_or_late(tmp_path: Path, by_s: int, kill: bool) -> None:
    """After a correction and at later starts, messages keep their age and fall due at their original time."""
    machine = Machine(BEGIN_S - by_s)
    async with broker_on(machine, tmp_path, kill=kill) as broker:
        await publish(broker, seconds=1800)
        machine.wait(600)
        await corrected(broker, machine, by_s)
        assert await looked(broker) == WAITING
    machine.wait(600)  # while the broker is down, which counts
    for _ in range(2):
        async with broker_on(machine, tmp_path, kill=kill) as broker:
            assert await looked(broker) == WAITING
    machine.wait(599)
    async with broker_on(machine, tmp_path, kill=kill) as broker:
        assert await looked(broker) == WAITING
        machine.wait(1)
        await until_due(broker)


@pytest.mark.slow
async def test_a_machine_that_begins_in_1970_each_time(tmp_path: Path) -> None:
    """Messages keep their age without a battery-backed clock, with a correction after each start."""
    machine = Machine(1.0)
    async with broker_on(machine, tmp_path) as broker:
        await publish(broker, seconds=1800)
        await corrected(broker, machine, YEARS_S)
        machine.wait(600)
    for _ in range(2):
        machine.system_s = 1.0
        async with broker_on(machine, tmp_path) as broker:
            assert await looked(broker) == WAITING
            await corrected(broker, machine, YEARS_S)
            machine.wait(300)
            assert await looked(broker) == WAITING
    machine.system_s = 1.0
    async with broker_on(machine, tmp_path) as broker:
        machine.wait(599)
        assert await looked(broker) == WAITING
        machine.wait(1)
        await until_due(broker)


async def test_a_clock_that_was_set_back_while_the_broker_was_down(tmp_path: Path) -> None:
    """After the clock was set back during the downtime, time continues from the last known moment."""
    machine = Machine()
    async with broker_on(machine, tmp_path) as broker:
        await publish(broker, seconds=1800)
        machine.wait(600)
    machine.system_s -= 10 * HOUR_S
    async with broker_on(machine, tmp_path) as broker:
        machine.wait(1199)
        assert await looked(broker) == WAITING
        machine.wait(1)
        await until_due(broker)


@pytest.mark.slow
async def test_what_readers_see_is_the_time_of_day(tmp_path: Path) -> None:
    """x-death and tap rows show the corrected time, and no slot file ages by a correction."""
    machine = Machine(BEGIN_S - YEARS_S)
    async with broker_on(machine, tmp_path) as broker:
        await broker.taps.add("/", "amq.topic", "#", name="audit")
        async with client_of(broker) as channel:
            topic = await channel.get_exchange("amq.topic")
            await topic.publish(aio_pika.Message(b"before"), "a", mandatory=False)
        await sealed(broker, machine, 1)
        await corrected(broker, machine, YEARS_S)
    async with broker_on(machine, tmp_path) as broker:
        await publish(broker, seconds=10)
        machine.wait(10)
        await until_due(broker)
        async with client_of(broker) as channel:
            dead = await channel.get_queue("dead")
            message: Any = await dead.get(no_ack=True)
            assert message.headers["x-death"][0]["time"].timestamp() == machine.system_s
            topic = await channel.get_exchange("amq.topic")
            heard_s = machine.system_s
            await topic.publish(aio_pika.Message(b"behind"), "a", mandatory=False)
        await sealed(broker, machine, 2)
        await broker.taps._retention._run()
        first, second = broker.taps.view.seals
        assert first.last_ts_ms == (BEGIN_S - YEARS_S) * 1000
        assert second.last_ts_ms == heard_s * 1000


async def sealed(broker: BrokerServer, machine: Machine, count: int) -> None:
    """Let time pass until there are this many slot files."""

    async def there() -> bool:
        machine.wait(1)
        return len(broker.taps.view.seals) == count

    await wait_until_async(there, f"{count} slot files")


def test_a_damaged_clock_file_stops_the_start(broker_process: BrokerProcess) -> None:
    """A damaged clock file is named in one line; without the file the system clock counts."""
    broker_process.start()
    assert broker_process.terminate() == 0
    path = broker_process.folder / "clock"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"ahead", b"ahaed"))
    broker_process.spawn()
    assert broker_process.wait() == 1
    reason = "it is damaged; remove it to use the system's clock, which may expire messages early or late"
    assert f"slotmq: the store failed, stopping: {path}: {reason}\n" in broker_process.stderr()
    path.unlink()
    broker_process.start()
