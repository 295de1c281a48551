"""The broker loses power while MQTT clients use it: what was acknowledged survives, and QoS 2 comes once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

import pytest

from tests.fault.broker_life import Life, new_disk, new_history
from tests.fault.faulty_files import FaultyFiles
from tests.mqtt.raw_mqtt import CONNACK, PUBACK, PUBLISH, SUBACK, RawMqtt, connect, packet, subscribe, text

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("quiet")]

SEEDS: Final = range(8)
TORTURE_SEEDS: Final = range(1_000, 2_000)
LIVES: Final = 3
MOMENTS_MAX: Final = 40
HOUR: Final = b"\x11\0\0\x0e\x10"
PUBREC, PUBREL, PUBCOMP = 0x50, 0x62, 0x70
GONE: Final = (EOFError, OSError)
RETAINED: Final = 5
QOS: Final = (1, 2)


def session(port: int, client_id: str, life: Life | None) -> tuple[RawMqtt, bool]:
    """Return a client of a session that lasts, and whether the broker has it."""
    client = RawMqtt(port)
    if life is not None:
        life.add_socket(client.opened)
    try:
        body = client.send(connect(client_id, clean=False, properties=HOUR)).expect(CONNACK)
    except BaseException:
        client.close()
        raise
    return client, body[0] == 1


class Writer:
    """Publishes numbers, and knows over all lives which of them were acknowledged.

    Shapes: `pending` has for each packet id the number, its QoS, and whether the PUBREC has arrived.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0
        self.pending: dict[int, tuple[int, int, bool]] = {}
        self.acknowledged: dict[int, int] = {}
        self.retained: dict[int, int] = {}  # the last number of a topic that was acknowledged
        self.doubtful = 0

    def work(self, port: int, life: Life | None) -> None:
        """Finish what is pending, and publish until the broker dies; without a life only finish."""
        client, _ = session(port, "writer", life)
        with client:
            client.send(subscribe(1, ("never", 0))).expect(SUBACK)
            for packet_id, (number, qos, received) in list(self.pending.items()):
                self.doubtful += 1
                if received:
                    client.send(packet(PUBREL, packet_id.to_bytes(2, "big")))
                else:
                    client.send(self._publish(packet_id, number, qos, again=True))
            while True:
                while self.pending:
                    self._take(client)
                if life is None:
                    return
                for _ in range(self._random.randint(1, 8)):
                    self._number += 1
                    packet_id, qos = self._number % 65_535 + 1, self._random.choice(QOS)
                    self.pending[packet_id] = self._number, qos, False
                    client.send(self._publish(packet_id, self._number, qos))

    def _publish(self, packet_id: int, number: int, qos: int, *, again: bool = False) -> bytes:
        retain = number % 4 == 0  # without a subscriber: nothing but the retained message waits for the disk
        topic = f"kept/{number % RETAINED}" if retain else "plain"
        first = 0x30 | qos << 1 | retain | (8 if again else 0)
        padding = b" " * Random(number).choice((0, 50, 700))
        return packet(first, text(topic), packet_id.to_bytes(2, "big"), b"\0", b"%d" % number, padding)

    def _take(self, client: RawMqtt) -> None:
        """Take an answer of the broker."""
        first, body = client.read()
        packet_id = int.from_bytes(body[:2], "big")
        number, qos, _ = self.pending[packet_id]
        done = b"\x92" if first == PUBCOMP else b""  # the PUBREL before a death was carried out
        assert body[2:3] in (b"", b"\0", b"\x10", done), f"{first:#x} {body!r}"
        if first == PUBREC:
            self.pending[packet_id] = number, qos, True
            client.send(packet(PUBREL, body[:2]))
            return
        assert first == (PUBACK if qos == 1 else PUBCOMP)
        del self.pending[packet_id]
        self.acknowledged[number] = qos
        if number % 4 == 0:
            self.retained[number % RETAINED] = number


class Reader:
    """Subscribes once, and counts over all lives what it takes from its session.

    Shapes: `open_ids` are the packet ids of messages at QoS 2 without a PUBREL.
    """

    def __init__(self) -> None:
        self.open_ids: set[int] = set()
        self.taken: Counter[int] = Counter()

    def subscribe(self, port: int) -> None:
        """Begin the session."""
        client, _ = session(port, "reader", None)
        with client:
            client.send(subscribe(1, ("plain", 2))).expect(SUBACK)

    def work(self, port: int, life: Life | None, until: set[int] | None = None) -> None:
        """Take messages until the broker dies, or all of these have come and nothing is open."""
        client, present = session(port, "reader", life)
        with client:
            assert present, "the session is lost"
            while until is None or self.open_ids or not until <= self.taken.keys():
                first, body = client.read()
                if first == PUBREL:
                    client.send(packet(PUBCOMP, body[:2]))
                    self.open_ids.discard(int.from_bytes(body[:2], "big"))
                    continue
                assert first & 0xF0 == PUBLISH, f"{first:#x} {body!r}"
                end = 2 + int.from_bytes(body[:2], "big")
                packet_id = int.from_bytes(body[end : end + 2], "big")
                if packet_id not in self.open_ids or first & 6 == 2:
                    self.taken[int(body[end + 3 :])] += 1
                if first & 6 == 4:
                    self.open_ids.add(packet_id)
                client.send(packet(PUBREC if first & 6 == 4 else PUBACK, body[end : end + 2]))


def kept(port: int) -> dict[int, int]:
    """Return the numbers of the retained messages, which end with a marker."""
    found: dict[int, int] = {}
    with RawMqtt(port) as client:
        client.enter("inspector")
        client.send(packet(0x32 | 1, text("kept/end"), b"\0\1\0", b"-1")).expect(PUBACK)
        client.send(subscribe(1, ("kept/#", 0))).expect(SUBACK)
        while True:
            body = client.expect(PUBLISH)
            end = 2 + int.from_bytes(body[:2], "big")
            number = int(body[end + 1 :])
            found[number % RETAINED if number > 0 else -1] = number
            if set(found) >= {-1, *range(RETAINED)}:
                return found


async def live(life: Life, random: Random, *works: Callable[[int, Life], None]) -> None:
    """Let the clients work until the broker dies, or for some moments."""
    loop = asyncio.get_running_loop()
    port = life.broker.listener.ports["mqtt"]

    def run(work: Callable[[int, Life], None]) -> None:
        with suppress(*GONE):
            work(port, life)

    running = [loop.run_in_executor(None, run, work) for work in works]
    for _ in range(random.randint(5, MOMENTS_MAX)):
        await asyncio.sleep(random.choice((0, 0.005, 0.02)))
        if life.failed:
            break
        life.moment()
    life.files.die()
    await life.kill()
    await asyncio.gather(*running)


async def live_and_die(seed: int) -> tuple[Writer, Reader]:
    """Let the broker lose power several times, and compare at the end what it has kept."""
    random = Random(seed)
    writer, reader, disk = Writer(Random(seed)), Reader(), new_disk()
    loop = asyncio.get_running_loop()
    for number in range(LIVES):
        life = await begin(disk, random, seed)
        disk = life.files.disk
        if not number:
            await loop.run_in_executor(None, reader.subscribe, life.broker.listener.ports["mqtt"])
        if random.random() < 0.7:
            disk.lose_at = disk.calls + random.randint(1, 300)
        await live(life, random, writer.work, reader.work)
        disk = disk.after_loss(seed * LIVES + number) if random.random() < 0.8 else disk.after_kill()
    life = await begin(disk, random, seed)
    port = life.broker.listener.ports["mqtt"]
    await loop.run_in_executor(None, writer.work, port, None)
    await loop.run_in_executor(None, reader.work, port, None, {one for one in writer.acknowledged if one % 4})
    found = await loop.run_in_executor(None, kept, port) if len(writer.retained) == RETAINED else {}
    await life.kill()
    doubled = {number for number, count in reader.taken.items() if count > 1 and writer.acknowledged[number] == 2}
    assert not doubled, f"seed {seed}: {doubled} at QoS 2 came more than once"
    older = {
        place: (number, found[place]) for place, number in writer.retained.items() if found.get(place, number) < number
    }
    assert not older, f"seed {seed}: retained messages are older than those acknowledged: {older}"
    return writer, reader


async def begin(disk: FaultyFiles, random: Random, seed: int) -> Life:
    """Start a broker with the MQTT listener, however often power is lost meanwhile."""
    while True:
        disk.lose_at = random.randint(1, 80) if random.random() < 0.2 and disk.calls else 0
        life = Life(disk, new_history(), random, mqtt=True)
        if await life.begin():
            disk.lose_at = 0
            return life
        disk = disk.after_loss(seed)


@pytest.mark.slow
async def test_acknowledged_is_there_after_any_death() -> None:
    """Messages and retained messages that were acknowledged survive, and none at QoS 2 comes twice."""
    acknowledged = doubtful = taken = 0
    for seed in SEEDS:
        writer, reader = await live_and_die(seed)
        acknowledged += len(writer.acknowledged)
        doubtful += writer.doubtful
        taken += reader.taken.total()
    assert acknowledged > 500 and doubtful > 10 and taken > acknowledged // 2, (acknowledged, doubtful, taken)


@pytest.mark.torture
@pytest.mark.timeout(0)
async def test_acknowledged_is_there_after_thousands_of_deaths() -> None:
    """Acknowledged messages survive thousands of deaths."""
    for seed in TORTURE_SEEDS:
        await live_and_die(seed)
