"""Exchanges that choose one destination, through pika: each message reaches one queue, after kill -9 too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.broker_process import BrokerAddress, BrokerProcess
from tests.integration.pika.conversation import drain, parameters

QUEUES: Final = ("a", "b", "c")
KINDS: Final = ("x-random", "x-local-random", "x-modulus-hash")
MESSAGES: Final = 300


def declare(address: BrokerAddress) -> None:
    """Declare an exchange of each kind, and bind all queues to each."""
    with pika.BlockingConnection(parameters(address)) as connection:
        channel = connection.channel()
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True)
        for kind in KINDS:
            channel.exchange_declare(kind, kind, durable=True)
            for queue in QUEUES:
                channel.queue_bind(queue, kind, "")


def spread(address: BrokerAddress, kind: str) -> dict[str, list[str]]:
    """Publish one message for each key, mandatory, and return the keys that each queue got."""
    with pika.BlockingConnection(parameters(address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(MESSAGES):
            channel.basic_publish(kind, f"k{number}", f"k{number}".encode(), mandatory=True)
        return {queue: sorted(body.decode() for body in drain(channel, queue)) for queue in QUEUES}


def test_each_message_reaches_one_queue_and_a_hashed_key_its_own_again(tmp_path: Path) -> None:
    """Every queue gets a share, no message two places, and after kill -9 the hash leads each key where it led."""
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        declare(broker.address)
        before = {kind: spread(broker.address, kind) for kind in KINDS}
        broker.restart()
        after = {kind: spread(broker.address, kind) for kind in KINDS}
    finally:
        broker.kill()
    for found in (*before.values(), *after.values()):
        keys = Counter(key for queue in QUEUES for key in found[queue])
        assert len(keys) == MESSAGES == keys.total()
        assert min(map(len, found.values())) > MESSAGES // 6
    assert after["x-modulus-hash"] == before["x-modulus-hash"]


def test_a_binding_that_a_local_random_exchange_cannot_have_is_406(broker_process: BrokerProcess) -> None:
    """The channel closes with RabbitMQ's code and text."""
    with pika.BlockingConnection(parameters(broker_process.start().address)) as connection:
        channel = connection.channel()
        channel.exchange_declare("local", "x-local-random")
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        with pytest.raises(ChannelClosedByBroker) as refused:
            channel.queue_bind("q", "local", "")
    assert refused.value.reply_code == 406
    assert refused.value.reply_text == (
        "PRECONDITION_FAILED - Queue type rabbit_quorum_queue not valid for this exchange type"
    )
