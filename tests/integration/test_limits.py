"""Limits of the settings: counts up to the limit are allowed, and one more is refused with RabbitMQ's code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from pamqp import commands

from broker.server import BrokerServer
from tests.in_process import client_of, running_broker
from tests.raw_client import PROTOCOL_HEADER, PeerGone, RawClient
from tests.raw_talk import connect

X, Q, B = commands.Exchange, commands.Queue, commands.Basic
MOST = 3


def exchange(number: int) -> tuple[Any, type[Any]]:
    """Declare an exchange and return the answer."""
    return X.Declare(exchange=f"x{number}"), X.DeclareOk


def queue(number: int) -> tuple[Any, type[Any]]:
    """Declare a queue and return the answer."""
    return Q.Declare(queue=f"q{number}"), Q.DeclareOk


def binding(number: int) -> tuple[Any, type[Any]]:
    """Bind a queue and return the answer."""
    return Q.Bind(queue="q", exchange="amq.direct", routing_key=str(number)), Q.BindOk


def consumer(number: int) -> tuple[Any, type[Any]]:
    """Start a consumer and return the answer."""
    return B.Consume(queue="q", consumer_tag=str(number)), B.ConsumeOk


@pytest.mark.parametrize(
    ("setting", "one", "text"),
    [
        ("exchanges_max", exchange,
         "PRECONDITION_FAILED - cannot declare exchange 'x3': exchange limit in vhost '/' (3) is reached"),
        ("queues_max", queue,
         "PRECONDITION_FAILED - cannot declare queue 'q3': queue limit in vhost '/' (3) is reached"),
        ("bindings_max", binding,
         "PRECONDITION_FAILED - cannot bind queue 'q': binding limit in vhost '/' (3) is reached"),
        ("consumers_max", consumer, "NOT_ALLOWED - reached maximum (3) of consumers per channel"),
    ],
)  # fmt: skip
async def test_one_too_many_is_refused_and_not_one_earlier(
    tmp_path: Path, setting: str, one: Callable[[int], tuple[Any, type[Any]]], text: str
) -> None:
    """Existing objects may be declared again at the limit, and when one is deleted another may be declared."""
    async with running_broker(tmp_path, limits={setting: MOST}) as broker:

        def talk() -> None:
            with connect(broker) as client:
                if one in (binding, consumer):
                    client.declare_queue(1, "q")
                for number in range(MOST):
                    client.call(1, *one(number))
                if one is not consumer:
                    client.call(1, *one(0))
                method, _ = one(MOST)
                client.method(1, method)
                close: Any = client.next().value
                assert close.reply_text == text
            if one is not consumer:
                with connect(broker) as client:
                    gone: dict[Any, tuple[Any, type[Any]]] = {
                        exchange: (X.Delete(exchange="x0"), X.DeleteOk),
                        queue: (Q.Delete(queue="q0"), Q.DeleteOk),
                        binding: (Q.Unbind(queue="q", exchange="amq.direct", routing_key="0"), Q.UnbindOk),
                    }
                    client.call(1, *gone[one])
                    client.call(1, *one(MOST))

        await asyncio.to_thread(talk)


async def test_one_connection_too_many_is_hung_up_on(tmp_path: Path) -> None:
    """One connection too many is dropped where all others are open; a free place is used again."""
    async with running_broker(tmp_path, server={"connections_max": MOST}) as broker:

        def talk() -> None:
            with ExitStack() as opened:
                clients = [opened.enter_context(connect(broker)) for _ in range(MOST)]
                with knock(broker) as client, pytest.raises(PeerGone):
                    client.greet()
                for client in clients:
                    client.declare_queue(1)
            with connect(broker) as client:
                client.declare_queue(1)

        await asyncio.to_thread(talk)


async def test_who_does_not_come_to_the_point_is_hung_up_on(tmp_path: Path) -> None:
    """A client is dropped wherever its handshake stops, even when it sends a byte at a time; others are served."""
    async with running_broker(tmp_path, server={"handshake_timeout_ms": 300}) as broker:

        def talk() -> None:
            with ExitStack() as opened:
                crowd = [opened.enter_context(knock(broker)) for _ in range(200)]
                for number, client in enumerate(crowd):
                    client.send(PROTOCOL_HEADER[: number % 9])
                started = opened.enter_context(knock(broker))
                started.greet()
                tuned = opened.enter_context(knock(broker))
                tuned.greet()
                tuned.authenticate()
                with connect(broker) as good:
                    good.declare_queue(1)
                    for client in (started, tuned, *crowd):
                        client.skip_to_end()
                    good.declare_queue(1)

        await asyncio.to_thread(talk)
        assert len(broker.listener.transports) <= 1


def knock(broker: BrokerServer) -> RawClient:
    """Return a client that has sent nothing."""
    return RawClient("127.0.0.1", broker.listener.port)


@pytest.mark.parametrize("kind", ["default", "direct", "topic", "fanout", "onward"])
async def test_a_cache_without_room_for_a_route_loses_nothing(tmp_path: Path, kind: str) -> None:
    """Every message of a publisher that repeats its routing key reaches the queue."""
    published = [b"1", b"2", b"3", b"4"]
    async with running_broker(tmp_path, routing={"cache_bytes": 0}) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", auto_delete=True)
        target = channel.default_exchange
        if kind != "default":
            target = await channel.declare_exchange("x", "topic" if kind == "onward" else kind, auto_delete=True)
            bound = target
            if kind == "onward":
                bound = await channel.declare_exchange("y", "fanout", auto_delete=True)
                await bound.bind(target, "#")
            await queue.bind(bound, "q")
        for body in published:
            await target.publish(aio_pika.Message(body), "q")
        assert [(await queue.get()).body for _ in published] == published
