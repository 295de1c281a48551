"""A well-behaved client beside misbehaving ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.raw_client import RawClient, publish_frames


class ControlClient:
    """A well-behaved client whose connection must survive the misbehaviour of another client."""

    def __init__(self, address: BrokerAddress) -> None:
        self.client = RawClient(address.host, address.port).open()
        self.client.open_channel(1)
        self.queue = self.client.declare_queue(1, exclusive=True)
        self.client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        self.rounds = 0

    def check(self) -> None:
        """Publish a message and get it; it must be the only one in the queue."""
        self.rounds += 1
        body = f"round {self.rounds}".encode()
        self.client.send(publish_frames(1, "", self.queue, body))
        assert self.client.expect(commands.Basic.Ack, 1).delivery_tag == self.rounds
        got = self.client.call(1, commands.Basic.Get(queue=self.queue, no_ack=True), commands.Basic.GetOk)
        assert got.message_count == 0
        assert self.client.expect_content(1)[1] == body


@pytest.fixture
def control(broker: BrokerAddress) -> Iterator[ControlClient]:
    """Provide a control client that is checked once more at the end of the test."""
    control = ControlClient(broker)
    with control.client:
        yield control
        control.check()
        control.client.close()
