"""In which turns the committer is called: in those with work for it, and in each one of a node of a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from broker.delivery.committer import Committer
from broker.delivery.engine_parts import LocalParts
from broker.server import BrokerServer
from broker.vhosts import vhosts
from tests.deadline import wait_until_async
from tests.in_process import running_broker
from tests.raw_client import RawClient, publish_frames
from tests.raw_talk import connect, receive

MESSAGES = 30


class CountedCommitter:
    """A committer that counts the calls of its turns."""

    def __init__(self, *arguments: Any) -> None:
        self._committer = Committer(*arguments)
        self.turns = 0

    def turn(self, number: int, alone: bool) -> int:
        """Count the call."""
        self.turns += 1
        return self._committer.turn(number, alone)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._committer, name)


class CountedParts(LocalParts):
    """The parts of a broker that stands alone, with a counted committer."""

    committer: Any = CountedCommitter


class NodeParts(CountedParts):
    """Parts whose messages are elsewhere, as those of a node of a cluster."""

    lasting = False


def transient_messages(client: RawClient) -> None:
    """Publish transient messages without confirms, each after the delivery of the one before."""
    for number in range(MESSAGES):
        client.send(publish_frames(1, "", "q", b"%d" % number))
        assert [body for _, body in receive(client, 1)] == [b"%d" % number]


def prepared(broker: BrokerServer) -> RawClient:
    """Return a client that consumes from a transient queue without acknowledgements."""
    client = connect(broker)
    client.declare_queue(1, "q")
    client.call(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
    return client


async def at_rest(broker: BrokerServer) -> CountedCommitter:
    """Return the committer when nothing waits for it any more."""
    engine = broker.engines["/"]
    await wait_until_async(
        lambda: engine.at_rest and not engine.has_work and not engine.schedule.due, "an engine at rest"
    )
    assert isinstance(engine.committer, CountedCommitter)
    return engine.committer


@pytest.mark.parametrize(("parts", "calls"), [(CountedParts, 0), (NodeParts, MESSAGES)])
async def test_transient_messages_call_the_committer_of_a_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: type[LocalParts], calls: int
) -> None:
    """Turns without a record or a confirm skip the committer; that of a node reports its backlog in each turn."""
    monkeypatch.setattr(vhosts, "LocalParts", parts)
    async with running_broker(tmp_path / "data") as broker:
        with await asyncio.to_thread(prepared, broker) as client:
            committer = await at_rest(broker)
            before = committer.turns
            await asyncio.to_thread(transient_messages, client)
            made = committer.turns - before
            assert made >= calls if calls else not made  # a message may take more than one turn
