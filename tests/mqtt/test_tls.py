"""MQTT over TLS, with a password and with a client certificate."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from broker.core.auth.users import user_of
from tests.in_process import running_broker
from tests.mqtt.raw_mqtt import CONNACK, PUBACK, RawMqtt, connect, packet, publish, text


async def test_clients_over_tls(tmp_path: Path) -> None:
    """A password and a client certificate log in; without the plain port there is none; a new certificate is used."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    names = {"certfile": "cert.pem", "keyfile": "key.pem", "cafile": "ca.pem"}
    tls: dict[str, Any] = {key: str(tmp_path / name) for key, name in names.items()}
    tls |= {"port": 0, "verify": "peer", "only": True, "fail_if_no_peer_cert": False}
    auth = {"cert_login_from": "common_name"}
    mqtt = {"enabled": True, "port": 0, "tls_port": 0}
    async with running_broker(tmp_path / "data", tls=tls, auth=auth, mqtt=mqtt) as broker:
        assert broker.mqtt.port == 0
        broker.administration.users.put(user_of({"name": "sensor", "password": "never used"}))
        broker.administration.permissions.set("sensor", "/", ".*", ".*", ".*")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        await asyncio.to_thread(talk, broker.mqtt.tls_port, context, connect("a"))
        nameless = packet(0x10, text("MQTT"), b"\x05\x02\0\x3c\0", text("b"))
        with pytest.raises(AssertionError):
            await asyncio.to_thread(talk, broker.mqtt.tls_port, context, nameless)
        authority.issue_cert("sensor.local", common_name="sensor").configure_cert(context)
        await asyncio.to_thread(talk, broker.mqtt.tls_port, context, nameless)
        await broker.listener.renew_tls()
        await asyncio.to_thread(talk, broker.mqtt.tls_port, context, nameless)


def talk(port: int, context: ssl.SSLContext, hello: bytes) -> None:
    """Connect, publish and leave."""
    with RawMqtt(port, context) as client:
        assert client.send(hello).expect(CONNACK)[1] == 0
        client.send(publish("a", b"x" * 50_000, 1)).expect(PUBACK)
        client.send(packet(0xE0))
