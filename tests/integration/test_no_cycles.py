"""Objects that come and go with clients leave nothing that only a full garbage collection would find."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

import aio_pika
import pytest
import trustme
import uvloop
from aio_pika.abc import AbstractIncomingMessage
from pamqp import commands

from broker.core.message.message import Message
from broker.core.vhost import Vhost
from broker.server import BrokerServer
from broker.store.damage import SECTOR_BYTES
from broker.store.message_log import Batch
from tests.deadline import wait_until
from tests.fault.sick_files import SickFiles
from tests.http_talk import GUEST, basic
from tests.in_process import client_of, running_broker
from tests.mqtt.raw_mqtt import CONNACK, PUBLISH, SUBACK, RawMqtt, connect, packet, publish, subscribe, text
from tests.raw_client import RawClient, publish_frames
from tests.raw_talk import page_out

_T = TypeVar("_T")

MANY: Final = 1000
SOME: Final = 100
"""How many objects of each kind come and go: connections take longer."""
LEFT_MAX: Final = 8
"""Objects of the tests' own threads and of the loop, however many came and went."""

WILL: Final[dict[str, Any]] = {"will": b"\0" + text("t/w") + text("bye"), "will_flags": 0x04}
WITH_MQTT: Final[dict[str, Any]] = {"enabled": True, "port": 0}
LIMITS: Final[dict[str, Any]] = {
    "x-max-length": 2,
    "x-max-priority": 2,
    "x-message-ttl": 100_000,
    "x-expires": 100_000,
    "x-dead-letter-exchange": "amq.fanout",
}
KINDS: Final = ("topic", "direct", "fanout", "headers", "x-consistent-hash", "x-modulus-hash", "x-random")


def call(client: RawClient, channel: int, method: Any, answer: type) -> None:
    """Send a method, and read up to its answer."""
    client.method(channel, method)
    while not isinstance(client.next().value, answer):
        pass


def queues(client: RawClient, many: int = MANY) -> None:
    """Declare, bind, fill, consume from and delete queues, a third of them with limits."""
    client.open()
    client.open_channel(1)
    for n in range(many):
        name, limits = f"q{n}", LIMITS if n % 3 == 0 else {}
        call(
            client,
            1,
            commands.Queue.Declare(queue=name, durable=n % 2 == 0, arguments=limits),
            commands.Queue.DeclareOk,
        )
        call(client, 1, commands.Queue.Bind(queue=name, exchange="amq.topic", routing_key="a.*"), commands.Queue.BindOk)
        client.send(publish_frames(1, "", name, b"body") * 4, publish_frames(1, "amq.topic", "a.b", b"body"))
        if n % 2:
            call(client, 1, commands.Basic.Consume(queue=name, consumer_tag=name), commands.Basic.ConsumeOk)
        call(client, 1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


def exchanges(client: RawClient) -> None:
    """Declare, bind, publish to and delete exchanges of all types."""
    client.open()
    client.open_channel(1)
    for n in range(MANY):
        name, kind = f"x{n}", KINDS[n % len(KINDS)]
        client.call(1, commands.Exchange.Declare(exchange=name, exchange_type=kind), commands.Exchange.DeclareOk)
        client.call(
            1, commands.Exchange.Bind(destination="amq.fanout", source=name, routing_key="1"), commands.Exchange.BindOk
        )
        client.send(publish_frames(1, name, "1", b"body"))
        client.call(1, commands.Exchange.Delete(exchange=name), commands.Exchange.DeleteOk)


def channels(client: RawClient) -> None:
    """Open channels and close them."""
    client.open()
    for _ in range(MANY):
        client.open_channel(1)
        client.call(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)


def failures(client: RawClient) -> None:
    """Let declares fail: of a queue that is missing, and with an argument that is wrong."""
    client.open()
    for n in range(MANY):
        client.open_channel(1)
        wrong = commands.Queue.Declare(queue="wrong", arguments={"x-max-length": -1})
        missing = commands.Queue.Declare(queue="missing", passive=True)
        call(client, 1, wrong if n % 2 else missing, commands.Channel.Close)
        client.method(1, commands.Channel.CloseOk())


def nothing(client: RawClient) -> None:
    """Come and go."""
    client.open()
    client.open_channel(1)


def answers(port: int) -> None:
    """Ask over HTTP, each time on a new connection."""
    for path in ("/api/overview", "/api/queues") * (SOME // 2):
        web = http.client.HTTPConnection("127.0.0.1", port)
        web.request("GET", path, headers=basic(GUEST))
        assert web.getresponse().read()
        web.close()


def changes(port: int) -> None:
    """Add, change and delete users and policies, some of which are refused."""
    user = {"password": "p", "tags": ""}
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    policy = {"pattern": "q", "definition": {"max-length": 1}}
    for number in range(SOME // 5):
        for path, fields in (
            (f"users/u{number}", user),
            (f"permissions/%2F/u{number}", rights),
            (f"policies/%2F/p{number}", policy),
            (f"policies/%2F/p{number}", {**policy, "definition": {"max-length": -1}}),
        ):
            ask(port, "PUT", path, fields)
        for path in (f"users/u{number}", f"policies/%2F/p{number}"):
            ask(port, "DELETE", path)


def ask(port: int, method: str, path: str, fields: dict[str, Any] | None = None) -> None:
    """Send a request of the API."""
    web = http.client.HTTPConnection("127.0.0.1", port)
    web.request(method, f"/api/{path}", None if fields is None else json.dumps(fields), basic(GUEST))
    answer = web.getresponse()
    answer.read()
    assert answer.status in (201, 204, 400)
    web.close()


def use_vhost(broker: BrokerServer) -> None:
    """Create a vhost, fill its queues and caches, and delete it."""
    ask(broker.manage.port("http"), "PUT", "vhosts/v")
    fill_vhost(broker)
    ask(broker.manage.port("http"), "DELETE", "vhosts/v")


def fill_vhost(broker: BrokerServer) -> None:
    """Fill the queues and caches of a vhost."""
    with RawClient("127.0.0.1", broker.listener.port) as client:
        client.open(vhost="v")
        client.open_channel(1)
        for n in range(SOME):
            queue = commands.Queue.Declare(queue=f"q{n}", durable=True)
            call(client, 1, queue, commands.Queue.DeclareOk)
            bind = commands.Queue.Bind(queue=f"q{n}", exchange="amq.topic", routing_key=f"{n}.#")
            call(client, 1, bind, commands.Queue.BindOk)
        for name, kind in (("d", "x-delayed-message"), ("h", "x-recent-history")):
            wants: dict[str, Any] = {"x-delayed-type": "topic"} if name == "d" else {}
            exchange = commands.Exchange.Declare(exchange=name, exchange_type=kind, arguments=wants)
            call(client, 1, exchange, commands.Exchange.DeclareOk)
            delay = commands.Basic.Properties(headers={"x-delay": 100_000})
            client.send(publish_frames(1, name, "1.a", b"body", properties=delay))
        for n in range(20 * MANY):  # each key twice
            client.send(publish_frames(1, "amq.topic", f"{n % SOME}.{n % (10 * MANY)}", b"body"))
        call(client, 1, queue, commands.Queue.DeclareOk)
    with RawMqtt(broker.mqtt.port) as client:
        client.send(connect("c", user="v:guest", properties=b"\x11\0\0\0\x05")).expect(CONNACK)
        client.send(subscribe(1, ("t/#", 1))).expect(SUBACK)
        client.send(publish("t/a", b"x")).expect(PUBLISH)


def enter_vhost(broker: BrokerServer, clients: ExitStack) -> RawClient:
    """Fill a vhost and stay in it with clients in the middle of their work; return one that may meet the damage."""
    fill_vhost(broker)
    consumer, owner, witness = (clients.enter_context(RawClient("127.0.0.1", broker.listener.port)) for _ in range(3))
    for client in (consumer, owner, witness):
        client.open(vhost="v")
        client.open_channel(1)
    once = {"x-message-deduplication": True, "x-max-length": 2 * SOME, "x-message-ttl": 100_000}
    kinds: dict[str, dict[str, Any]] = {"sick": {}, "once": once, "quorum": {"x-queue-type": "quorum"}}
    for name, arguments in kinds.items():
        call(
            witness, 1, commands.Queue.Declare(queue=name, durable=True, arguments=arguments), commands.Queue.DeclareOk
        )
    call(witness, 1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for n in range(SOME):
        lasting = commands.Basic.Properties(delivery_mode=2, headers={"x-deduplication-header": str(n)})
        for name in ("sick", "once", "quorum"):
            witness.send(publish_frames(1, "", name, b"body", properties=lasting))
    while witness.expect(commands.Basic.Ack).delivery_tag < 3 * SOME:
        pass
    for name in ("q1", "quorum"):
        call(consumer, 1, commands.Basic.Consume(queue=name, consumer_tag=name), commands.Basic.ConsumeOk)
    call(owner, 1, commands.Queue.Declare(queue="own", exclusive=True), commands.Queue.DeclareOk)
    call(owner, 1, commands.Tx.Select(), commands.Tx.SelectOk)
    owner.send(publish_frames(1, "", "q2", b"body", properties=lasting))
    mqtt = clients.enter_context(RawMqtt(broker.mqtt.port))
    mqtt.send(connect("m", user="v:guest", properties=b"\x11\0\0\0\x05", **WILL)).expect(CONNACK)
    mqtt.send(subscribe(1, ("t/#", 1), ("$share/a/b", 0))).expect(SUBACK)
    mqtt.send(publish("t/a", b"x")).expect(PUBLISH)
    return witness


def meet_damage(witness: RawClient) -> None:
    """Read a damaged message, which takes the vhost offline."""
    witness.method(1, commands.Basic.Consume(queue="sick", consumer_tag="c"))
    assert "vhost 'v' is down" in witness.skip_to(commands.Connection.Close, 0).reply_text
    witness.method(0, commands.Connection.CloseOk())


def live_streams(port: int) -> None:
    """Read the beginning of a stream of live numbers, and hang up."""
    for _ in range(SOME):
        web = http.client.HTTPConnection("127.0.0.1", port)
        web.request("GET", "/api/live?topics=overview", headers=basic(GUEST))
        assert web.getresponse().read(10)
        web.close()


Visit = Callable[[BrokerServer], None]


def by_amqp(talk: Callable[[RawClient], None], times: int = 1) -> Visit:
    """Return a visit of clients one after the other."""

    def visit(broker: BrokerServer) -> None:
        for _ in range(times):
            with RawClient("127.0.0.1", broker.listener.port) as client:
                talk(client)

    return visit


def by_tls(authority: trustme.CA) -> Visit:
    """Return a visit of clients with TLS."""
    context = ssl.create_default_context()
    authority.configure_trust(context)

    def visit(broker: BrokerServer) -> None:
        for _ in range(SOME):
            with RawClient("127.0.0.1", broker.listener.tls_port or 0) as client:
                client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
                nothing(client)

    return visit


def by_http(talk: Callable[[int], None]) -> Visit:
    """Return a visit over HTTP."""
    return lambda broker: talk(broker.manage.port("http"))


def found() -> Counter[str]:
    """Return what collections have found since the last call, by type: the broker's own count too."""
    gc.unfreeze()  # the broker may have frozen what came and went
    gc.collect()
    gc.set_debug(0)
    kinds = Counter(f"{type(one).__module__}.{type(one).__name__}" for one in gc.garbage)
    gc.garbage.clear()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    return kinds


def later_vhosts() -> Callable[[], list[str]]:
    """Return a function that names the vhosts in memory; those that earlier tests left there do not count."""
    gc.unfreeze()
    left = [one for one in gc.get_objects() if type(one) is Vhost]

    def names() -> list[str]:
        return [one.name for one in gc.get_objects() if type(one) is Vhost and all(one is not other for other in left)]

    return names


def alone(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of work on uvloop, during which only `found` and the broker collect."""
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        gc.set_debug(0)  # what `found` sets would keep the garbage of all later tests
        gc.enable()


def mqtt_clients(broker: BrokerServer) -> None:
    """Subscribe, publish with a will, and end: by DISCONNECT, an error, a take-over and a closed socket."""
    for number in range(SOME):
        with RawMqtt(broker.mqtt.port) as client, RawMqtt(broker.mqtt.port) as second:
            expiry = b"\x11\0\0\0\x05" if number % 2 else b""
            client.send(connect("c", properties=expiry, **WILL)).expect(CONNACK)
            client.send(subscribe(1, ("t/#", 1), ("$share/a/b", 0))).expect(SUBACK)
            client.send(publish("t/a", b"x")).expect(PUBLISH)
            if number % 3 == 0:
                client.send(packet(0xE0))
            elif number % 3 == 1:
                client.send(packet(0x00))
            else:
                second.enter("c")


@pytest.mark.timeout(120)
def test_what_comes_and_goes_leaves_no_cycles(tmp_path: Path) -> None:
    """A collection finds as little after a thousand queues, exchanges, channels, failures and clients as after none."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (tmp_path / "cert.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())
    visits: dict[str, Visit] = {
        "queues": by_amqp(queues),
        "exchanges": by_amqp(exchanges),
        "channels": by_amqp(channels),
        "failures": by_amqp(failures),
        "connections": by_amqp(nothing, SOME),
        "tls": by_tls(authority),
        "http": by_http(answers),
        "live": by_http(live_streams),
        "changes": by_http(changes),
        "mqtt": mqtt_clients,
    }

    async def run() -> dict[str, Counter[str]]:
        left = {}
        tls = {"port": 0, "certfile": str(tmp_path / "cert.pem"), "keyfile": str(tmp_path / "key.pem")}
        async with running_broker(
            tmp_path / "data", http={"enabled": True, "port": 0}, tls=tls, mqtt=WITH_MQTT
        ) as broker:
            found()  # what a start leaves does not count
            for name, visit in visits.items():
                await asyncio.to_thread(visit, broker)
                await asyncio.to_thread(wait_until, lambda: not broker.listener.transports, "all clients have gone")
                await asyncio.sleep(0.5)  # answers over HTTP end too
                left[name] = found()
        return left

    left = alone(run())
    assert {name: kinds for name, kinds in left.items() if sum(kinds.values()) > LEFT_MAX} == {}


def test_a_deleted_vhost_leaves_no_cycles(tmp_path: Path) -> None:
    """Its engine, exchanges, queues and caches are freed, however much it was used."""

    async def run() -> Counter[str]:
        vhosts = later_vhosts()
        async with running_broker(tmp_path, http={"enabled": True, "port": 0}, mqtt=WITH_MQTT) as broker:
            found()  # what a start leaves does not count
            await asyncio.to_thread(use_vhost, broker)
            await asyncio.to_thread(wait_until, lambda: vhosts() == ["/"], "the vhost is freed")
            return found()

    left = alone(run())
    assert sum(left.values()) <= LEFT_MAX, left


@pytest.mark.usefixtures("quiet")
def test_an_offline_vhost_leaves_no_cycles(tmp_path: Path) -> None:
    """It is freed as a deleted one is, with the work that its clients were in; so is what its deletion leaves."""
    files = SickFiles()

    async def run() -> dict[str, Counter[str]]:
        left, vhosts = {}, later_vhosts()
        async with running_broker(tmp_path, files, http={"enabled": True, "port": 0}, mqtt=WITH_MQTT) as broker:
            port = broker.manage.port("http")
            await asyncio.to_thread(ask, port, "PUT", "vhosts/v")
            found()  # what a start leaves does not count
            with ExitStack() as clients:
                witness = await asyncio.to_thread(enter_vhost, broker, clients)
                page_out(broker, "sick", "v")
                (log,) = (tmp_path / "vhosts" / "v" / "log").iterdir()
                files.bad[log] = set(range(log.stat().st_size // SECTOR_BYTES + 1))
                await asyncio.to_thread(meet_damage, witness)
            await asyncio.to_thread(wait_until, lambda: vhosts() == ["/"], "the vhost is freed")
            left["offline"] = found()
            await asyncio.to_thread(ask, port, "DELETE", "vhosts/v")
            await asyncio.sleep(0.5)
            left["deleted"] = found()
        return left

    left = alone(run())
    assert {name: kinds for name, kinds in left.items() if sum(kinds.values()) > LEFT_MAX} == {}


def batches() -> list[Batch]:
    """Return the batches of logs that are in memory."""
    return [one for one in gc.get_objects() if type(one) is Batch]


async def test_a_written_batch_is_released(tmp_path: Path) -> None:
    """Once it is on disk, neither the log nor the thread that wrote it keeps the records of the last batch."""
    others = {id(one): one for one in batches()}  # what earlier tests in this process have left
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:

        def new_batches() -> list[Batch]:
            return [one for one in batches() if id(one) not in others]

        await channel.declare_queue("q", durable=True)
        message = aio_pika.Message(bytes(100_000), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        for _ in range(3):
            await asyncio.gather(*[channel.default_exchange.publish(message, "q") for _ in range(10)])
        await asyncio.to_thread(wait_until, lambda: broker.at_rest and not new_batches(), "no batch is kept")
        log = broker.engines["/"].store.log
        record = bytes(1000)
        log.append(record)
        batch = log.take()
        assert batch is not None
        log.write(batch)
        log.complete(batch)
        del batch
        assert sys.getrefcount(record) == 2


async def test_delivered_messages_are_released(tmp_path: Path) -> None:
    """The messages that were delivered last are kept for other queues only until the broker is at rest."""

    def messages() -> dict[int, Message]:
        return {id(one): one for one in gc.get_objects() if type(one) is Message}

    others = messages()
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q")
        sent = [channel.default_exchange.publish(aio_pika.Message(b"body"), "q") for _ in range(SOME)]
        await asyncio.gather(*sent)
        arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await queue.consume(arrived.put, no_ack=True)
        await asyncio.to_thread(wait_until, lambda: arrived.qsize() == SOME and broker.at_rest, "all are delivered")
        for _ in broker.free_computed():
            pass
        assert messages().keys() <= others.keys()
