"""A broker with the MQTT listener, and clients of both protocols."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.broker_process import BrokerProcess
from tests.mqtt.raw_mqtt import RawMqtt

WITH_MQTT = {"SLOTMQ_MQTT__ENABLED": "true", "SLOTMQ_MQTT__PORT": "0", "SLOTMQ_LOG__REPEAT_INTERVAL_MS": "0"}


def mqtt_port(process: BrokerProcess) -> int:
    """Return the MQTT port, read from the log."""
    for line in process.stderr().splitlines():
        if '"server.started"' in line:
            return int(json.loads(line)["mqtt_port"])
    raise AssertionError(process.stderr())


def mqtt_process(folder: Path, **settings: str) -> BrokerProcess:
    """Return a stopped broker with the MQTT listener."""
    return BrokerProcess(folder, environment=WITH_MQTT | settings)


@pytest.fixture(scope="session")
def shared_mqtt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Provide a broker that the tests of this folder share."""
    process = mqtt_process(tmp_path_factory.mktemp("mqtt") / "folder").start()
    yield process
    errors = process.errors()
    assert process.terminate() == 0
    assert not errors, errors


@pytest.fixture
def port(shared_mqtt: BrokerProcess) -> int:
    """Provide the MQTT port."""
    return mqtt_port(shared_mqtt)


@pytest.fixture
def enter(port: int) -> Iterator[Callable[..., RawMqtt]]:
    """Provide a function that connects a raw client."""
    clients: list[RawMqtt] = []

    def entered(client_id: str, version: int = 5, **options: Any) -> RawMqtt:
        client = RawMqtt(port)
        clients.append(client)
        client.enter(client_id, version, **options)
        return client

    yield entered
    for client in clients:
        client.close()


@pytest.fixture
def channel(shared_mqtt: BrokerProcess) -> Iterator[Any]:
    """Provide a channel of pika with confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(shared_mqtt.address.url))
    opened = connection.channel()
    opened.confirm_delivery()
    yield opened
    connection.close()
