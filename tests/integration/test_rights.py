"""Rights that change while clients are connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pamqp import commands

from broker.core.auth.users import user_of
from broker.server import BrokerServer
from tests.in_process import running_broker
from tests.raw_client import RawClient, publish_frames


@asynccontextmanager
async def alice_of(folder: Path) -> AsyncIterator[tuple[BrokerServer, RawClient]]:
    """Yield a broker, and a client of a user with all rights, on channel 1."""
    async with running_broker(folder) as broker:
        administration = broker.administration
        administration.users.put(user_of({"name": "alice", "password": "s3cret"}))
        administration.permissions.set("alice", "/", ".*", ".*", ".*")
        with RawClient("127.0.0.1", broker.listener.port) as client:
            await asyncio.to_thread(enter, client)
            yield broker, client


def enter(client: RawClient) -> None:
    """Do the handshake as alice."""
    client.greet()
    client.authenticate("alice", "s3cret")
    client.expect(commands.Connection.Tune, 0)
    client.method(0, commands.Connection.TuneOk(2047, 131072, 0))
    client.call(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
    client.open_channel(1)


async def asked(function: Callable[..., object], *arguments: object) -> object:
    """Talk in a thread, because the broker runs in this one."""
    return await asyncio.to_thread(function, *arguments)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda broker: broker.administration.users.delete("alice"), "user 'alice' is deleted"),
        (lambda broker: broker.administration.permissions.clear("alice", "/"),
         "access to vhost '/' refused for user 'alice'"),
    ],
    ids=["user deleted", "rights cleared"],
)  # fmt: skip
async def test_whoever_may_not_be_there_any_more_is_sent_away(
    tmp_path: Path, change: Callable[[BrokerServer], None], text: str
) -> None:
    """A user who may not use the vhost any more is disconnected with 320; RabbitMQ does so only for a deleted user."""
    async with alice_of(tmp_path) as (broker, client):
        change(broker)
        close = await asyncio.to_thread(client.expect_connection_close, 320)
        assert close.reply_text == f"CONNECTION_FORCED - {text}"


async def test_a_consumer_of_what_may_not_be_read_any_more_is_cancelled(tmp_path: Path) -> None:
    """A consumer that loses the read right is cancelled, and its unacked messages are requeued; others continue."""
    async with alice_of(tmp_path) as (broker, client):

        def consume() -> None:
            for name in ("secret", "open"):
                client.declare_queue(1, name)
                client.call(1, commands.Basic.Consume(queue=name, consumer_tag=name), commands.Basic.ConsumeOk)

        await asked(consume)
        broker.administration.permissions.set("alice", "/", ".*", ".*", "open")
        cancel = await asyncio.to_thread(client.expect, commands.Basic.Cancel, 1)
        assert cancel.consumer_tag == "secret"

        def publish() -> bytes:
            client.send(publish_frames(1, "", "secret", b"s"), publish_frames(1, "", "open", b"o"))
            assert client.expect(commands.Basic.Deliver, 1).consumer_tag == "open"
            return client.expect_content(1)[1]

        assert await asyncio.to_thread(publish) == b"o"
        assert broker.engines["/"].vhost.queues["secret"].ready == 1


async def test_a_publisher_that_may_not_write_any_more_is_refused(tmp_path: Path) -> None:
    """A publisher that loses the write right gets 403, which closes the channel, although its route was cached."""
    async with alice_of(tmp_path) as (broker, client):

        def publish(times: int) -> None:
            for _ in range(times):
                client.send(publish_frames(1, "amq.topic", "a.b", b"x"))
            client.declare_queue(1, exclusive=True)

        await asked(publish, 5)
        broker.administration.permissions.topics.set("alice", "/", "amq.topic", "^b", ".*")
        client.send(publish_frames(1, "amq.topic", "a.b", b"x"))
        close = await asyncio.to_thread(client.expect_channel_close, 1, 403)
        assert close.reply_text == (
            "ACCESS_REFUSED - access to topic 'a.b' in exchange 'amq.topic' in vhost '/' refused for user 'alice'"
        )


async def test_rights_that_change_while_nobody_is_connected_hold_for_the_next_connection(tmp_path: Path) -> None:
    """Changed rights apply to the user's next connection, and the user's cached routes are dropped."""
    async with alice_of(tmp_path) as (broker, client):

        def publish() -> None:
            for _ in range(5):
                client.send(publish_frames(1, "amq.direct", "k", b"x"))
            client.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
            client.skip_to_end()
            client.socket.close()

        await asked(publish)
        await broker.listener.wait_empty()
        broker.administration.permissions.set("alice", "/", ".*", "", ".*")
        with RawClient("127.0.0.1", broker.listener.port) as again:
            await asked(enter, again)
            again.send(publish_frames(1, "amq.direct", "k", b"x"))
            await asyncio.to_thread(again.expect_channel_close, 1, 403)


async def test_a_new_password_leaves_connections_open(tmp_path: Path) -> None:
    """A new password leaves connections open, as in RabbitMQ; the next login needs it, and new tags apply at once."""
    async with alice_of(tmp_path) as (broker, client):
        broker.administration.users.set_password("alice", "other")
        broker.administration.users.set_tags("alice", ["impersonator"])
        await asked(client.declare_queue, 1, "q")
        (session,) = broker.listener.sessions()
        assert session.user is not None and session.user.tags == ("impersonator",)
