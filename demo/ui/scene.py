"""What the page shows: exchanges, queues that are read at different speeds, and the flights that pass."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

EXCHANGE: Final = "flights"
DEAD: Final = "flights.dead"
UNROUTABLE: Final = "flights.unroutable"
WAVE_S: Final = 90.0  # the rate of publishing rises and falls
DECLARED_AT_ONCE: Final = 200

Flight = tuple[str, bytes]  # routing key, body


@dataclass(frozen=True, slots=True)
class Desk:
    """A queue and who reads it. Units: `work_ms` for each message; `rejects` is a share of the messages."""

    name: str
    keys: Sequence[str]
    readers: int = 1
    work_ms: float = 1.0
    rejects: float = 0.0
    prefetch: int = 100
    arguments: dict[str, Any] = field(default_factory=dict)


DESKS: Final = (
    Desk("departures.board", ["flight.#"], readers=2),
    Desk("late.compensation", ["flight.*.*.*.late"], work_ms=18, rejects=0.01,
         arguments={"x-dead-letter-exchange": DEAD, "x-message-ttl": 600_000}),
    Desk("cancelled.rebooking", ["flight.*.*.*.cancelled"], work_ms=140, rejects=0.1, prefetch=20,
         arguments={"x-dead-letter-exchange": DEAD, "x-message-ttl": 120_000}),
    Desk("united.crew", ["flight.UA.#"], work_ms=2),
    Desk("delta.crew", ["flight.DL.#"], work_ms=2),
    Desk("jfk.gates", ["flight.*.JFK.#"], readers=2, work_ms=3),
    Desk("newark.gates", ["flight.*.EWR.#"], work_ms=8),
    Desk("vip.notices", ["flight.*.*.SFO.*", "flight.*.*.LAX.*"], work_ms=70, arguments={"x-max-priority": 3}),
    Desk("night.report", ["flight.*.*.BOS.#"]),
    Desk("archive", ["#"], readers=0, arguments={"x-max-length": 50_000}),
)  # fmt: skip
PAUSED: Final = "night.report"


def further_queues(flights: Sequence[Flight], count: int) -> Iterator[tuple[str, str]]:
    """Yield names and binding keys of so many more queues, one for each carrier, origin, destination and outcome."""
    columns = [sorted({key.split(".")[place] for key, _body in flights}) for place in (1, 2, 3, 4)]
    for words in islice(product(*columns), max(0, count)):
        yield ".".join(words), ".".join(["flight", *words])


class Scene:
    """The clients of one broker. Invariant: they run until they are cancelled."""

    def __init__(self, url: str, flights: Sequence[Flight], per_second: float, queues: int) -> None:
        self._url = url
        self._flights = flights
        self._per_second = per_second
        self._queues = queues

    async def declare(self) -> None:
        """Declare exchanges, queues and bindings."""
        async with await self._connection("setup") as connection:
            channel = await connection.channel()
            await channel.declare_exchange(UNROUTABLE, "fanout", durable=True)
            flights = await channel.declare_exchange(
                EXCHANGE, "topic", durable=True, arguments={"alternate-exchange": UNROUTABLE}
            )
            dead = await channel.declare_exchange(DEAD, "fanout", durable=True)
            await (await channel.declare_queue("dead", durable=True, arguments={"x-max-length": 50_000})).bind(dead)
            for desk in DESKS:
                queue = await channel.declare_queue(desk.name, durable=True, arguments=desk.arguments)
                for key in desk.keys:
                    await queue.bind(flights, key)
            wanted = list(further_queues(self._flights, self._queues - len(DESKS) - 1))
            for first in range(0, len(wanted), DECLARED_AT_ONCE):
                await asyncio.gather(
                    *[self._further(channel, *one) for one in wanted[first : first + DECLARED_AT_ONCE]]
                )

    async def _further(self, channel: Any, name: str, key: str) -> None:
        queue = await channel.declare_queue(name, durable=True, arguments={"x-max-length": 1000})
        await queue.bind(EXCHANGE, key)

    async def run(self) -> None:
        """Publish and consume until cancelled."""
        readers = [self._read(desk, number) for desk in DESKS for number in range(desk.readers)]
        await asyncio.gather(self._publish("schedule", 0.7, confirms=True), self._publish("radar", 0.3), *readers)

    async def _connection(self, name: str) -> Any:
        properties: Any = {"connection_name": name}
        return await aio_pika.connect(self._url, client_properties=properties)

    async def _publish(self, name: str, share: float, *, confirms: bool = False) -> None:
        loop = asyncio.get_running_loop()
        async with await self._connection(name) as connection:
            channel = await connection.channel(publisher_confirms=confirms)
            exchange = await channel.get_exchange(EXCHANGE, ensure=False)
            began_s = last_s = loop.time()
            due = 0.0
            place = random.randrange(len(self._flights))
            while True:
                await asyncio.sleep(0.05)
                now_s = loop.time()
                wave = 1 + 0.45 * math.sin(now_s * math.tau / WAVE_S) + random.uniform(-0.08, 0.08)
                due += (now_s - last_s) * self._per_second * share * wave
                last_s, count = now_s, int(due)
                due -= count
                headers = {"source": name, "second": int(now_s - began_s)}
                await asyncio.gather(*[self._send(exchange, place + one, headers) for one in range(count)])
                place += count

    async def _send(self, exchange: Any, place: int, headers: Any) -> None:
        key, body = self._flights[place % len(self._flights)]
        message = aio_pika.Message(
            body,
            content_type="application/json",
            delivery_mode=2,
            priority=place % 4,
            message_id=str(place),
            headers=headers,
        )
        await exchange.publish(message, key)

    async def _read(self, desk: Desk, number: int) -> None:
        async with await self._connection(f"{desk.name} {number + 1}") as connection:
            channel = await connection.channel()
            await channel.set_qos(desk.prefetch)
            queue = await channel.get_queue(desk.name, ensure=False)

            async def handle(message: AbstractIncomingMessage) -> None:
                async with busy:
                    await asyncio.sleep(desk.work_ms / 1000)
                with suppress(aio_pika.exceptions.ChannelInvalidStateError):
                    if random.random() < desk.rejects:
                        await message.reject()
                    else:
                        await message.ack()

            busy = asyncio.Semaphore(1)
            await queue.consume(handle, consumer_tag=f"{desk.name}-{number + 1}")
            await asyncio.Future()
