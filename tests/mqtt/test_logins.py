"""Logins of MQTT clients: without a name, by certificate and by port, and how many hashes passwords cost."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme
from pydantic import ValidationError

from broker.amqp.errors import Refused
from broker.core.auth.logins import Verdict
from broker.core.auth.peer import Peer
from broker.core.auth.users import user_of
from broker.net.password_check import PasswordThreads
from broker.server import BrokerServer
from broker.settings import Settings
from tests.in_process import running_broker
from tests.mqtt.raw_mqtt import CONNACK, DISCONNECT, SUBACK, RawMqtt, connect, packet, publish, subscribe, text

NOBODY = packet(0x10, text("MQTT"), b"\x05\x02\0\x3c\0", text("nobody"))
NO_PASSWORD = packet(0x10, text("MQTT"), b"\x05\x82\0\x3c\0", text("half"), text("guest"))
BAD, REFUSED = 0x86, 0x87


def add_user(broker: BrokerServer, name: str, *vhosts: str) -> None:
    """Add a user with a password that is its name, with all rights in vhosts."""
    broker.administration.users.put(user_of({"name": name, "password": name}))
    for vhost in vhosts:
        broker.administration.permissions.set(name, vhost, ".*", ".*", ".*")


async def codes(port: int, *hellos: bytes, context: ssl.SSLContext | None = None) -> list[int]:
    """Return the reason codes with which the broker answers each CONNECT."""

    def answers() -> list[int]:
        found = []
        for hello in hellos:
            with RawMqtt(port, context) as client:
                found.append(client.send(hello).expect(CONNACK)[1])
        return found

    return await asyncio.to_thread(answers)


async def entered(
    broker: BrokerServer, port: int, hello: bytes, context: ssl.SSLContext | None = None
) -> tuple[str, str]:
    """Return the user and the vhost of a client that connects."""
    client = await asyncio.to_thread(RawMqtt, port, context)
    assert (await asyncio.to_thread(client.send(hello).expect, CONNACK))[1] == 0
    session = broker.listener.sessions()[-1]
    client.close()
    assert session.user is not None and session.vhost is not None
    return session.user.name, session.vhost.name


async def test_clients_without_a_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They are the user of the settings, with its rights; a user name without a password is refused."""
    mqtt = {"enabled": True, "port": 0, "anonymous_user": "anyone"}
    async with running_broker(tmp_path, mqtt=mqtt) as broker:
        port = broker.mqtt.port
        assert "mqtt.anonymous_user_missing" in capfd.readouterr().out
        assert await codes(port, NOBODY) == [BAD]
        add_user(broker, "anyone")
        assert await codes(port, NOBODY) == [REFUSED]  # no right in the vhost
        broker.administration.permissions.set("anyone", "/", "^mqtt-", "^mqtt-", "^mqtt-")
        assert await codes(port, NOBODY, NO_PASSWORD, connect("wrong", user="anyone", password="x")) == [0, BAD, BAD]
        assert await entered(broker, port, NOBODY) == ("anyone", "/")
        foreign = Peer("127.0.0.1", origin="https://site.example")
        verdicts: list[Verdict] = []
        broker.clients.logins.decide_anonymous("anyone", foreign, verdicts.append)
        broker.clients.logins.decide("ANONYMOUS", b"anyone", Peer("127.0.0.1"), verdicts.append)  # of AMQP
        assert [type(one) for one in verdicts] == [Refused, Refused]


async def test_without_the_setting_nobody_is_anonymous(tmp_path: Path) -> None:
    """A client needs a user name and a password."""
    async with running_broker(tmp_path, mqtt={"enabled": True, "port": 0}) as broker:
        assert await codes(broker.mqtt.port, NOBODY, NO_PASSWORD) == [BAD, BAD]


@pytest.mark.parametrize("keep_alive_s", [8, 60])
async def test_no_heartbeat_of_amqp(tmp_path: Path, keep_alive_s: int) -> None:
    """A client is told nothing that it did not ask for, also while turns may not run: in a cluster without database."""
    async with running_broker(tmp_path, mqtt={"enabled": True, "port": 0}) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.mqtt.port)
        writer.write(connect("quiet", keep_alive_s=keep_alive_s))
        await reader.readexactly((await reader.readexactly(2))[1])
        broker.turn.act_while(lambda: False)
        for _ in range(keep_alive_s):
            for _ in range(10):
                broker.listener.step()
        broker.turn.act_while(lambda: True)
        writer.write(packet(0xC0))
        assert await reader.readexactly(2) == packet(0xD0)
        writer.close()


async def test_an_anonymous_administrator_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The log warns of a user that may do everything; guest is one only for clients of this machine."""
    async with running_broker(tmp_path, mqtt={"enabled": True, "port": 0, "anonymous_user": "guest"}) as broker:
        assert "mqtt.anonymous_administrator" in capfd.readouterr().out
        assert await codes(broker.mqtt.port, NOBODY) == [0]


async def test_vhosts_of_ports(tmp_path: Path) -> None:
    """The vhost in the user name comes first, then that of the port, then that of the settings."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mqtt: dict[str, Any] = {"enabled": True, "port": port, "vhost": "other", "anonymous_user": "sensor"}
    for mapped, expected in (({}, "other"), ({port: "by-port"}, "by-port")):
        async with running_broker(tmp_path / expected, mqtt=mqtt | {"port_to_vhost": mapped}) as broker:
            for name in ("other", "by-port", "named"):
                await broker.administration.vhosts.add(name)
            add_user(broker, "sensor", "other", "by-port", "named")
            for hello, vhost in (
                (connect("a", user="sensor", password="sensor"), expected),
                (connect("a", user="named:sensor", password="sensor"), "named"),
                (NOBODY, expected),
            ):
                assert await entered(broker, port, hello) == ("sensor", vhost)


def test_a_port_that_nobody_can_connect_to() -> None:
    """It is refused before the start."""
    with pytest.raises(ValidationError, match="names 1884, which is no port of MQTT or HTTP"):
        Settings(mqtt={"enabled": True, "port_to_vhost": {1884: "a"}})
    ports = {"1883": "a", "8883": "b", "15672": "c"}
    assert Settings(mqtt={"port_to_vhost": ports}).mqtt.port_to_vhost[15672] == "c"


async def test_certificates_and_passwords(tmp_path: Path) -> None:
    """A password comes before a certificate, half a login is refused in spite of it, and it comes before no one."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    names = {"certfile": "cert.pem", "keyfile": "key.pem", "cafile": "ca.pem"}
    tls: dict[str, Any] = {key: str(tmp_path / name) for key, name in names.items()}
    tls |= {"port": 0, "verify": "peer", "fail_if_no_peer_cert": False}
    auth = {"cert_login_from": "subject_alternative_name"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mqtt = {"enabled": True, "port": 0, "tls_port": port, "anonymous_user": "anyone", "port_to_vhost": {port: "tls"}}
    async with running_broker(tmp_path / "data", tls=tls, auth=auth, mqtt=mqtt) as broker:
        for name in ("tls", "named"):
            await broker.administration.vhosts.add(name)
        for name in ("anyone", "sensor.local", "alice", "named:alice"):
            add_user(broker, name, "tls", "named")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        both = connect("b", user="named:alice", password="alice")
        whole = connect("b", user="named:alice", password="named:alice")

        seen = partial(entered, broker, port, context=context)
        assert await seen(hello=NOBODY) == ("anyone", "tls")
        assert await seen(hello=both) == ("alice", "named")
        authority.issue_cert("sensor.local").configure_cert(context)
        assert await seen(hello=NOBODY) == ("sensor.local", "tls")
        assert await seen(hello=whole) == (
            "named:alice",
            "tls",
        )  # as in RabbitMQ: the port's vhost, so the name is whole
        assert await codes(port, NO_PASSWORD, both, context=context) == [BAD, BAD]


async def test_reconnects_cost_one_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password is hashed at its first login; a wrong one at each; after a change the old one is wrong."""
    hashes = 0
    check = PasswordThreads.check

    def counted(self: PasswordThreads, *given: Any) -> None:
        nonlocal hashes
        hashes += 1
        check(self, *given)

    monkeypatch.setattr(PasswordThreads, "check", counted)
    async with running_broker(tmp_path, mqtt={"enabled": True, "port": 0}) as broker:
        add_user(broker, "sensor", "/")
        right, wrong = (connect("r", user="sensor", password=one) for one in ("sensor", "no"))
        assert await codes(broker.mqtt.port, *[right] * 100) == [0] * 100
        assert hashes == 1
        assert await codes(broker.mqtt.port, wrong, wrong, right) == [BAD, BAD, 0]
        assert hashes == 3
        broker.administration.users.put(user_of({"name": "sensor", "password": "new"}))
        assert await codes(broker.mqtt.port, right) == [BAD]
        assert await codes(broker.mqtt.port, *[connect("r", user="sensor", password="new")] * 2) == [0, 0]
        assert hashes == 5


def may_publish(client: RawMqtt, topic: str) -> bool:
    """Return whether three publishes are allowed; the second of a topic is cached."""
    for number in (1, 2, 3):
        kind, body = client.send(publish(topic, b"", number)).read()
        if kind & 0xF0 == DISCONNECT:
            assert body[0] == REFUSED
            return False
    return True


def may_subscribe(client: RawMqtt, topic_filter: str) -> bool:
    """Return whether a subscription is allowed."""
    return client.send(subscribe(1, (topic_filter, 1))).expect(SUBACK)[-1] == 1


async def test_topics_of_each_client_of_one_user(tmp_path: Path) -> None:
    """Each may use topics below its own id alone, whatever other clients of its user have published."""
    ids = ("one", "two", "on", "a.b", "a")
    async with running_broker(tmp_path, mqtt={"enabled": True, "port": 0}) as broker:
        add_user(broker, "sensor", "/")
        topics = broker.administration.permissions.topics

        def enter() -> list[RawMqtt]:
            clients = [RawMqtt(broker.mqtt.port) for _ in ids]
            for client, name in zip(clients, ids, strict=True):
                client.send(connect(name, user="sensor", password="sensor")).expect(CONNACK)
            return clients

        def talk() -> None:
            clients = enter()
            for client in clients:
                assert may_publish(client, "one/t")  # cached for the user
            topics.set("sensor", "/", "amq.topic", r"^{client_id}\.t$", r"^{client_id}\.#$")
            for client, name in zip(clients, ids, strict=True):
                assert may_publish(client, f"{name}/t")
                assert may_subscribe(client, f"{name}/#")
                assert not may_subscribe(client, "#")
            for other in ("two/t", "a/b/t", "one/t"):
                found = dict(zip(ids, [may_publish(client, other) for client in clients], strict=True))
                assert [name for name, allowed in found.items() if allowed] == [other[:-2]] * (other != "a/b/t")
                for client in clients:
                    client.close()
                clients = enter()
            topics.set("sensor", "/", "amq.topic", r"^(?!{client_id}\.)", "")
            connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
            for _ in range(3):
                connection.channel().basic_publish("amq.topic", "one.t", b"")  # AMQP has no client id
            connection.close()
            assert [may_publish(client, "one/t") for client in clients] == [False, True, True, True, True]
            for client in clients:
                client.close()

        amqp_url = f"amqp://sensor:sensor@127.0.0.1:{broker.listener.port}/"
        await asyncio.to_thread(talk)
        await broker.listener.wait_empty()
        assert not broker.engines["/"].vhost.publish_caches._own
