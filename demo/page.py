"""The run for the web page: a busy broker, with queues that are consumed at different speeds."""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import signal
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from demo.brokers import Broker
from demo.clients import channel_to, connect
from demo.flights import load_frame, read_flights, routing_keys, write_flights
from demo.ledger import SPAWN, Failed, Flight
from demo.options import DEFAULT_COMMAND, Options
from demo.plan import EXCHANGE

DEAD = "flights.dead"
UNROUTABLE = "flights.unroutable"
WAVE_S = 90.0  # the period in which the publish rate rises and falls
PUBLISHERS = {"schedule": 0.7, "radar": 0.3}  # their shares of the rate
PAUSED = "night.report"
PAGE_LINE = re.compile(r"http://[^\s,]+")
SETTINGS = {
    "SLOTMQ_HTTP__ENABLED": "true",
    "SLOTMQ_HTTP__SAMPLE_INTERVAL_MS": "1000",
    "SLOTMQ_METRICS__ENABLED": "false",
    "SLOTMQ_SLOTS__WINDOW_MESSAGES": "250",
}


@dataclass(frozen=True, slots=True)
class Desk:
    """A queue and its consumers. Units: `work_ms` is per message; `rejects` is a share of the messages."""

    name: str
    keys: Sequence[str]
    work_ms: float = 1.0
    readers: int = 1
    rejects: float = 0.0
    prefetch: int = 100
    arguments: dict[str, Any] = field(default_factory=dict)
    exchange: str = EXCHANGE


DESKS = (
    Desk("departures.board", ["flight.#"], readers=2),
    Desk("late.compensation", ["flight.*.*.*.late"], 18, rejects=0.01,
         arguments={"x-dead-letter-exchange": DEAD, "x-message-ttl": 600_000}),
    Desk("cancelled.rebooking", ["flight.*.*.*.cancelled"], 140, rejects=0.1, prefetch=20,
         arguments={"x-dead-letter-exchange": DEAD, "x-message-ttl": 120_000}),
    Desk("united.crew", ["flight.UA.#"], 2),
    Desk("delta.crew", ["flight.DL.#"], 2),
    Desk("jfk.gates", ["flight.*.JFK.#"], 3, readers=2),
    Desk("newark.gates", ["flight.*.EWR.#"], 8),
    Desk("vip.notices", ["flight.*.*.SFO.*", "flight.*.*.LAX.*"], 70, arguments={"x-max-priority": 3}),
    Desk(PAUSED, ["flight.*.*.BOS.#"]),
    Desk("archive", ["#"], readers=0, arguments={"x-max-length": 50_000}),
    Desk("dead", [""], readers=0, arguments={"x-max-length": 50_000}, exchange=DEAD),
)  # fmt: skip


class PageRun:
    """A broker with its page, and the clients that keep it busy until Ctrl-C or for --seconds."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options = options
        self._flights = folder / "flights.tsv"
        frame = load_frame(options.rows)
        self._keys = routing_keys(frame)
        write_flights(self._flights, frame, self._keys)
        os.environ |= {**SETTINGS, "SLOTMQ_HTTP__PORT": str(options.http_port)}
        self._broker = Broker("broker", DEFAULT_COMMAND, folder)

    def perform(self) -> bool:
        """Run until Ctrl-C or for --seconds. Raises: Failed, BrokerFailed."""
        try:
            self._broker.start()
            page = self._broker.await_line(PAGE_LINE)[0]
            self._declare()
            _ask("POST", f"{page}api/queues/%2F/{PAUSED}/pause")
            for desk in DESKS:  # the history of a queue begins with its first request
                _ask("GET", f"{page}api/history/queues/%2F/{desk.name}")
            print(f"open {page} (user guest, password guest); AMQP at {self._broker.url}", flush=True)
            # A process of its own, because aio-pika may wait forever for the close of a connection in use.
            scene = SPAWN.Process(target=_play, args=(self._options, self._broker.url, self._flights), daemon=True)
            scene.start()
            with suppress(KeyboardInterrupt):
                scene.join(self._options.seconds)
            if not scene.is_alive():
                raise Failed("the clients of the page have failed")
            scene.kill()
            self._broker.end()
        finally:
            self._broker.kill()
        return True

    def _declare(self) -> None:
        with channel_to(self._broker.url) as channel:
            channel.exchange_declare(UNROUTABLE, "fanout", durable=True)
            channel.exchange_declare(EXCHANGE, "topic", durable=True, arguments={"alternate-exchange": UNROUTABLE})
            channel.exchange_declare(DEAD, "fanout", durable=True)
            for desk in (*DESKS, *self._further_desks()):
                channel.queue_declare(desk.name, durable=True, arguments=desk.arguments)
                for key in desk.keys:
                    channel.queue_bind(desk.name, desk.exchange, key)

    def _further_desks(self) -> Iterator[Desk]:
        """Yield the queues that --queues adds, one for each carrier, origin, destination and outcome."""
        columns = [sorted(set(words)) for words in zip(*(key.split(".")[1:] for key in self._keys), strict=True)]
        for words in islice(product(*columns), max(0, self._options.queues - len(DESKS))):
            yield Desk(".".join(words), [".".join(["flight", *words])], arguments={"x-max-length": 1000})


def _play(options: Options, url: str, path: Path) -> None:
    """Publish and consume until the process is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process, which ends this one
    flights = list(read_flights(path, 0, options.rows))

    async def play() -> None:
        readers = [_read(url, desk, number) for desk in DESKS for number in range(desk.readers)]
        publishers = [_publish(url, name, flights, part * options.rate) for name, part in PUBLISHERS.items()]
        await asyncio.gather(*readers, *publishers)

    asyncio.run(play())


async def _publish(url: str, name: str, flights: Sequence[Flight], per_s: float) -> None:
    """Publish flights at a rate that rises and falls; the schedule has confirms."""
    channel = await (await connect(url, name)).channel(publisher_confirms=name == "schedule")
    exchange = await channel.get_exchange(EXCHANGE, ensure=False)
    due, coming, clock = 0.0, cycle(flights), asyncio.get_running_loop().time
    began_s = last_s = clock()
    while True:
        await asyncio.sleep(0.05)
        now_s = clock()
        wave = 1 + 0.45 * math.sin(now_s * math.tau / WAVE_S) + random.uniform(-0.08, 0.08)
        due += (now_s - last_s) * per_s * wave
        last_s = now_s
        headers = {"source": name, "second": int(now_s - began_s)}
        messages = [_message(flight, headers) for flight in islice(coming, int(due))]
        await asyncio.gather(*[exchange.publish(message, key) for message, key in messages])
        due %= 1


def _message(flight: Flight, headers: Any) -> tuple[aio_pika.Message, str]:
    row, key, body = flight
    how: Any = {"content_type": "application/json", "delivery_mode": 2, "priority": row % 4, "headers": headers}
    return aio_pika.Message(body, message_id=str(row), **how), key


async def _read(url: str, desk: Desk, number: int) -> None:
    busy = asyncio.Semaphore(1)

    async def handle(message: AbstractIncomingMessage) -> None:
        async with busy:
            await asyncio.sleep(desk.work_ms / 1000)
        with suppress(aio_pika.exceptions.ChannelInvalidStateError):
            await (message.reject() if random.random() < desk.rejects else message.ack())

    channel = await (await connect(url, f"{desk.name} {number + 1}")).channel()
    await channel.set_qos(desk.prefetch)
    queue = await channel.get_queue(desk.name, ensure=False)
    await queue.consume(handle, consumer_tag=f"{desk.name}-{number + 1}")
    await asyncio.Future()


def _ask(method: str, url: str) -> None:
    login = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}
    urllib.request.urlopen(urllib.request.Request(url, method=method, headers=login), timeout=10).close()
