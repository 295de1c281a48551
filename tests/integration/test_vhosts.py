"""Vhosts are created and deleted while the broker runs."""

import asyncio
from pathlib import Path
from typing import Any

import aio_pika
import aiormq
import pika
import pytest

from broker.cli.control_client import Unanswered
from broker.server import BrokerServer
from broker.store.damage import MissingData
from broker.store.definitions_file import DefinitionsFile
from broker.store.files import Files
from tests.deadline import wait_until_async
from tests.in_process import end_of, running_broker, told


async def connected(broker: BrokerServer, vhost: str, user: str = "guest", password: str = "guest") -> Any:
    """Return a connection to a vhost."""
    return await aio_pika.connect(
        host="127.0.0.1", port=broker.listener.port, login=user, password=password, virtualhost=vhost
    )


async def ignore(_message: Any) -> None:
    """Leave a message unacknowledged."""


async def make(broker: BrokerServer, name: str) -> None:
    """Create a vhost in which guest has all rights."""
    await told(broker, "add_vhost", name=name)
    await told(broker, "set_permission", user="guest", vhost=name, configure=".*", write=".*", read=".*")


async def test_vhosts_do_not_know_each_other(tmp_path: Path) -> None:
    """Equal names are separate queues in separate vhosts."""
    async with running_broker(tmp_path) as broker:
        await make(broker, "a/b")
        for vhost in ("/", "a/b"):
            connection = await connected(broker, vhost)
            channel = await connection.channel()
            queue = await channel.declare_queue("q", durable=True)
            await channel.default_exchange.publish(aio_pika.Message(vhost.encode()), "q")
            message = await queue.get(no_ack=True)
            assert message.body == vhost.encode()
            await connection.close()


async def test_vhost_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing vhost is refused with 530 and its name, before its creation and after its deletion."""
    async with running_broker(tmp_path) as broker:
        for step in ("before", "after"):
            address = pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{broker.listener.port}/v")
            with pytest.raises(pika.exceptions.AMQPConnectionError, match=r"530.*NOT_ALLOWED - vhost v not found"):
                await asyncio.to_thread(pika.BlockingConnection, address)
            if step == "before":
                await make(broker, "v")
                await told(broker, "delete_vhost", name="v")


async def test_deleting_closes_its_connections_and_no_other(tmp_path: Path) -> None:
    """Open connections get RabbitMQ's text; the files are removed when the answer arrives."""
    async with running_broker(tmp_path) as broker:
        await make(broker, "v")
        mine, other = await connected(broker, "v"), await connected(broker, "/")
        channel = await mine.channel()
        queue = await channel.declare_queue("q", durable=True)
        await queue.consume(ignore)
        await channel.default_exchange.publish(aio_pika.Message(b"m", delivery_mode=2), "q")
        closed = end_of(mine)
        await told(broker, "delete_vhost", name="v")
        error = await closed
        assert isinstance(error, aiormq.exceptions.ConnectionClosed)
        assert error.errno == 320
        assert str(error).endswith("CONNECTION_FORCED - vhost 'v' is deleted")
        assert [path.name for path in (tmp_path / "vhosts").iterdir()] == ["%2F"]
        assert list(broker.engines) == ["/"]
        assert broker.turn.engines == [broker.engines["/"]]
        await (await other.channel()).declare_queue("still", exclusive=True)
        await other.close()


async def test_vhost_that_comes_back_is_empty(tmp_path: Path) -> None:
    """A new vhost has no queue, permission or policy of a deleted one of the same name."""
    async with running_broker(tmp_path) as broker:
        for _life in range(2):
            await told(broker, "add_vhost", name="v")
            assert await told(broker, "list_queues", vhost="v") == []
            assert await told(broker, "list_permissions", vhost="v") == []
            assert await told(broker, "list_policies", vhost="v") == []
            await make_full(broker)
            await told(broker, "delete_vhost", name="v")


async def make_full(broker: BrokerServer) -> None:
    """Put an object of each kind into vhost v."""
    await told(broker, "set_permission", user="guest", vhost="v", configure=".*", write=".*", read=".*")
    await told(broker, "set_policy", vhost="v", name="p", pattern=".*", definition={"max-length": 1})
    connection = await connected(broker, "v")
    await (await connection.channel()).declare_queue("q", durable=True)
    await connection.close()


async def test_vhosts_are_there_after_a_restart(tmp_path: Path) -> None:
    """Vhosts survive with queues and messages, under names that no folder could have; deleted ones stay deleted."""
    names = ["a", "日本/" * 30, "."]
    async with running_broker(tmp_path) as broker:
        for name in (*names, "gone"):
            await make(broker, name)
            connection = await connected(broker, name)
            channel = await connection.channel()
            await channel.declare_queue("q", durable=True)
            await channel.default_exchange.publish(aio_pika.Message(name.encode(), delivery_mode=2), "q")
            await connection.close()
        await told(broker, "delete_vhost", name="gone")
    async with running_broker(tmp_path) as broker:
        assert sorted(broker.vhosts) == sorted(["/", *names])
        for name in names:
            connection = await connected(broker, name)
            queue = await (await connection.channel()).get_queue("q")
            assert (await queue.get(no_ack=True)).body == name.encode()
            await connection.close()


async def test_folder_that_the_definitions_do_not_know_is_removed(tmp_path: Path) -> None:
    """After a crash between a vhost's deletion from the definitions and that of its files, it does not come back."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "add_vhost", name="v")
        kept = broker.administration.document()
        kept["vhosts"] = [vhost for vhost in kept["vhosts"] if vhost["name"] != "v"]
        DefinitionsFile(Files(), tmp_path).write(kept)
    async with running_broker(tmp_path) as broker:
        assert list(broker.vhosts) == ["/"]
        assert not (tmp_path / "vhosts" / "v").exists()


async def test_data_folder_without_definitions_keeps_its_vhosts(tmp_path: Path) -> None:
    """A folder whose definitions are lost is refused; who accepts the loss gets all its vhosts, and no user."""
    async with running_broker(tmp_path) as broker:
        await make(broker, "v")
    (tmp_path / "definitions").unlink()
    with pytest.raises(MissingData):
        async with running_broker(tmp_path):
            pass
    async with running_broker(tmp_path, store={"on_corruption": "quarantine"}) as broker:
        assert sorted(broker.vhosts) == ["/", "v"]
        assert await told(broker, "list_users") == []


async def test_limit_holds_from_there_on(tmp_path: Path) -> None:
    """The last allowed vhost is created; one more is refused with RabbitMQ's text."""
    async with running_broker(tmp_path, limits={"vhosts_max": 2}) as broker:
        await told(broker, "add_vhost", name="a")
        with pytest.raises(Unanswered, match=r"^cannot create vhost 'b': vhost limit of 2 is reached$"):
            await told(broker, "add_vhost", name="b")
        await told(broker, "delete_vhost", name="a")
        await told(broker, "add_vhost", name="b")


@pytest.mark.parametrize(
    ("verb", "name", "said"),
    [
        ("add_vhost", "", "cannot create vhost '': the name is empty or longer than 255 bytes"),
        ("add_vhost", "é" * 128, "the name is empty or longer than 255 bytes"),
        ("delete_vhost", "v", "Virtual host 'v' does not exist"),
    ],
)
async def test_what_cannot_be_is_refused(tmp_path: Path, verb: str, name: str, said: str) -> None:
    """An impossible change is refused with one line, and nothing has changed."""
    async with running_broker(tmp_path) as broker:
        with pytest.raises(Unanswered) as refused:
            await told(broker, verb, name=name)
        assert str(refused.value).endswith(said)
        assert list(broker.vhosts) == ["/"]


async def test_a_vhost_that_is_there_is_added_already(tmp_path: Path) -> None:
    """Adding an existing vhost succeeds, as in RabbitMQ; adding it with other properties is refused."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "add_vhost", name="a", description="mine", default_queue_type="quorum")
        await told(broker, "add_vhost", name="a", default_queue_type="quorum")
        await told(broker, "add_vhost", name="/")
        for other in ({"description": "another"}, {"default_queue_type": "classic"}):
            with pytest.raises(Unanswered, match=r"^Virtual host 'a' already exists, with another description or "):
                await told(broker, "add_vhost", name="a", **other)
        assert sorted(broker.vhosts) == ["/", "a"]


async def test_vhosts_share_the_memory(tmp_path: Path) -> None:
    """Vhosts together keep no more messages in memory than the setting allows, and lose none."""
    limit = 1 << 20
    sections: Any = {"memory": {"resident_max_bytes": limit}, "slots": {"window_messages": 50}}
    async with running_broker(tmp_path, **sections) as broker:
        for name in ("a", "b", "c"):
            await make(broker, name)
            connection = await connected(broker, name)
            channel = await connection.channel()
            await channel.declare_queue("q", durable=True)
            message = aio_pika.Message(bytes(4096), delivery_mode=2)
            await asyncio.gather(*(channel.default_exchange.publish(message, "q") for _ in range(200)))
            await connection.close()

        async def fits() -> bool:
            broker.vhosts.page()
            return sum(engine.pager.resident_bytes for engine in broker.engines.values()) <= limit

        await wait_until_async(fits, "2.6 MB of messages, less than the limit in each vhost, are within it together")
        assert sum(row["messages"] for row in await told(broker, "list_queues")) == 600
