"""The product that the broker announces, and how kombu uses the name."""

from __future__ import annotations

import re

import pytest
from pamqp import commands

from tests.broker_process import BrokerAddress, BrokerProcess
from tests.raw_client import CAPABILITIES, RawClient, publish_frames

RABBITMQ = {"SLOTMQ_AMQP__PRODUCT": "RabbitMQ"}


def test_version_is_three_numbers(broker: BrokerAddress) -> None:
    """Clients parse the version, so it carries no suffix of a development version."""
    with RawClient(broker.host, broker.port) as client:
        assert re.fullmatch(r"\d+\.\d+\.\d+", str(client.greet().server_properties["version"]))


def test_product_can_be_rabbitmq(broker_process: BrokerProcess) -> None:
    """With the setting product, version and platform are RabbitMQ's."""
    broker_process.environment |= RABBITMQ
    address = broker_process.start().address
    with RawClient(address.host, address.port) as client:
        properties = client.greet().server_properties
    announced = [properties[name] for name in ("product", "version", "platform")]
    assert announced == ["RabbitMQ", "3.10.8", "Erlang/OTP 25.2.3"]


@pytest.mark.parametrize(("environment", "delivered"), [({}, 2), (RABBITMQ, 1)], ids=["SlotMQ", "RabbitMQ"])
def test_prefetch_of_py_amqp(broker_process: BrokerProcess, environment: dict[str, str], delivered: int) -> None:
    """A qos of py-amqp applies to running consumers, but not when the broker announces itself as RabbitMQ."""
    broker_process.environment |= environment
    address = broker_process.start().address
    with RawClient(address.host, address.port) as client:
        client.greet()
        answer = commands.Connection.StartOk(
            {"product": "py-amqp", "capabilities": CAPABILITIES}, "PLAIN", "\0guest\0guest", "en_US"
        )
        client.method(0, answer)
        client.expect(commands.Connection.Tune, 0)
        client.method(0, commands.Connection.TuneOk(2047, 131_072, 0))
        client.call(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
        client.open_channel(1)
        queue = client.declare_queue(1, exclusive=True)
        client.send(*(publish_frames(1, "", queue, b"m") for _ in range(3)))
        client.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        client.call(1, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
        client.method(1, commands.Basic.Qos(prefetch_count=2))
        client.skip_to(commands.Basic.QosOk, 1)
        client.method(1, commands.Queue.Declare(queue=queue, passive=True))
        assert client.skip_to(commands.Queue.DeclareOk, 1).message_count == 3 - delivered
