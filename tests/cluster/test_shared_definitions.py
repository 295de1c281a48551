"""Users, vhosts, rights, policies and parameters of a cluster: what one node answered holds on every node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import aio_pika
import asyncpg
import pytest

from broker.cli.control_client import Unanswered, ask
from broker.cluster.hint import Hint
from broker.cluster.shared_definitions import SharedDefinitions
from broker.server import BrokerServer
from tests.cluster.plain_database import PlainDatabase
from tests.in_process import running_broker

ASKING = ThreadPoolExecutor(16)  # the loop's own threads are for the brokers
Start = Callable[..., Awaitable["Node"]]


class Node:
    """A broker whose definitions are shared; its messages are its own."""

    def __init__(self, database: PlainDatabase, shared: SharedDefinitions, broker: BrokerServer) -> None:
        self.database = database
        self.shared = shared
        self.broker = broker

    async def ask(self, verb: str, **arguments: Any) -> Any:
        """Return the broker's answer over its control socket."""
        asked = partial(ask, self.broker.settings.server.data_dir, verb, **arguments)
        return await asyncio.get_running_loop().run_in_executor(ASKING, asked)

    async def connected(self, user: str = "guest", password: str = "guest", vhost: str = "") -> Any:
        """Return a connection of a client."""
        port = self.broker.listener.port
        return await aio_pika.connect(f"amqp://{user}:{password}@127.0.0.1:{port}/{vhost}")

    @property
    def definitions(self) -> Any:
        """The definitions in force, without hashes that differ by their salt."""
        return self.broker.administration.document()


@pytest.fixture
async def start(
    tmp_path: Path, postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Start]:
    """Provide a function that starts a node by its name."""
    async with AsyncExitStack() as stack:
        nodes: list[SharedDefinitions] = []

        async def notify(_hint: Hint) -> None:
            for node in nodes:
                node.hint()

        async def started(name: str, **sections: Any) -> Node:
            database = await PlainDatabase.joined(postgres_url, schema, name)
            stack.push_async_callback(database.close)
            cast("Any", database).notify = notify
            nodes.append(SharedDefinitions(cast("Any", database), _no_limits))
            monkeypatch.setattr("broker.parts.definitions.LocalDefinitions", lambda _files, _path: nodes[-1])
            return await stack.enter_async_context(_node(tmp_path / name, database, nodes[-1], sections))

        yield started


async def _no_limits(_vhost: str) -> None:
    """Do nothing: PostgreSQL has no queues."""


@asynccontextmanager
async def _node(
    folder: Path, database: PlainDatabase, shared: SharedDefinitions, sections: dict[str, Any]
) -> AsyncIterator[Node]:
    # What the others made is missed in this node's own folder, which stands in for the messages of a cluster.
    accepts = {"on_corruption": "quarantine", **sections.pop("store", {})}
    async with running_broker(folder, store=accepts, **sections) as broker:

        async def flushed() -> None:
            await broker.administration.swept()
            await broker.vhosts.drain()

        following = asyncio.create_task(shared.run(broker.administration, flushed))
        try:
            yield Node(database, shared, broker)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await database.leave()


async def test_what_a_node_answered_holds_on_the_other(start: Start) -> None:
    """Each kind of definition is there on the second node when the first one has answered, and gone when removed."""
    one, two = await start("one"), await start("two")
    assert one.definitions == two.definitions
    await one.ask("add_vhost", name="v", description="of the test")
    await two.ask("add_user", name="u", password="p", tags=["monitoring"])
    await one.ask("set_permission", user="u", vhost="v", configure=".*", write=".*", read="")
    await two.ask("set_topic_permission", user="u", vhost="v", exchange="amq.topic", write="^a", read="")
    await one.ask("set_user_limits", name="u", limits={"max-channels": 3})
    await two.ask("set_vhost_limits", name="v", limits={"max-queues": 2})
    await one.ask("set_policy", name="p", vhost="v", pattern="^q", definition={"max-length": 5})
    await two.ask("set_policy", name="o", vhost="v", pattern="^q", definition={"max-length": 9}, operator=True)
    parameters = {
        "parameters": [{"vhost": "v", "component": "shovel", "name": "s", "value": {"a": 1}}],
        "global_parameters": [{"name": "cluster_name", "value": "c"}],
    }
    await one.ask("import_definitions", definitions=parameters)
    assert one.definitions == two.definitions
    assert [row["name"] for row in two.definitions["policies"]] == ["p"]
    assert len(two.definitions["parameters"]) == 3
    assert two.broker.vhosts["v"].limits.own_queues_max == 2
    connection = await one.connected("u", "p", "v")
    await connection.close()
    await two.ask("delete_policy", name="p", vhost="v")
    await one.ask("delete_policy", name="o", vhost="v", operator=True)
    await two.ask("clear_vhost_limits", name="v")
    await one.ask("delete_topic_permission", user="u", vhost="v", exchange="amq.topic")
    await two.ask("delete_permission", user="u", vhost="v")
    await one.ask("delete_user", name="u")
    assert one.definitions == two.definitions
    assert two.broker.vhosts["v"].limits.own_queues_max is None
    assert [row["name"] for row in two.definitions["users"]] == ["guest"]
    assert two.definitions["policies"] == two.definitions["permissions"][1:] == []


async def test_first_node_of_an_empty_cluster_begins_once(start: Start) -> None:
    """Nodes that start at one time share one default user and vhost, and a later one takes them with other settings."""
    one, two = await asyncio.gather(start("one"), start("two"))
    three = await start("three", auth={"default_user": "o", "default_pass": "o", "default_vhost": "e"})
    assert one.definitions == two.definitions == three.definitions
    assert [row["name"] for row in three.definitions["users"]] == ["guest"]
    assert list(three.broker.vhosts) == ["/"]


async def test_conflict_decides_again(start: Start) -> None:
    """A change is tried again on what another node stored meanwhile: one add wins, the others have RabbitMQ's text."""
    nodes = [await start(name) for name in ("one", "two", "three")]
    adds = [node.ask("add_user", name="u", password="p") for node in nodes for _ in range(3)]
    answers = await asyncio.gather(*adds, return_exceptions=True)
    assert answers.count(None) == 1
    assert {str(answer) for answer in answers if answer is not None} == {"User 'u' already exists"}
    tags = [node.ask("set_user", name="u", tags=[f"t{number}"]) for number, node in enumerate(nodes)]
    vhosts = [node.ask("add_vhost", name=f"v{number}") for number, node in enumerate(nodes)]
    await asyncio.gather(*tags, *vhosts)
    assert nodes[0].definitions == nodes[1].definitions == nodes[2].definitions
    assert sorted(nodes[2].broker.vhosts) == ["/", "v0", "v1", "v2"]


async def test_refused_change_leaves_nothing(start: Start) -> None:
    """A vhost beyond the limit, decided after a conflict, exists on no node."""
    one, two = await start("one", limits={"vhosts_max": 2}), await start("two", limits={"vhosts_max": 2})
    answers = await asyncio.gather(
        one.ask("add_vhost", name="a"), two.ask("add_vhost", name="b"), return_exceptions=True
    )
    (refused,) = [answer for answer in answers if answer is not None]
    assert isinstance(refused, Unanswered)
    assert "vhost limit of 2 is reached" in str(refused)
    assert one.definitions == two.definitions
    assert sorted(one.broker.vhosts) == sorted(two.broker.vhosts)
    assert len(one.broker.vhosts) == 2


async def test_rights_and_vhosts_that_are_removed_end_what_clients_of_the_other_node_have(start: Start) -> None:
    """A removed right holds on open channels; a deleted user or vhost closes connections with RabbitMQ's text."""
    one, two = await start("one"), await start("two")
    for name in ("u", "w"):
        await one.ask("add_user", name=name, password="p")
        await one.ask("set_permission", user=name, vhost="/", configure=".*", write=".*", read=".*")
    await one.ask("add_vhost", name="v")
    await one.ask("set_permission", user="guest", vhost="v", configure=".*", write=".*", read=".*")
    connection = await two.connected("u", "p")
    channel = await connection.channel()
    await channel.declare_queue("q")
    await one.ask("set_permission", user="u", vhost="/", configure=".*", write="^$", read=".*")
    with pytest.raises(aio_pika.exceptions.ChannelClosed, match="ACCESS_REFUSED"):
        await channel.default_exchange.publish(aio_pika.Message(b""), "q")
    other, third = await two.connected("w", "p"), await two.connected(vhost="v")
    closed: asyncio.Queue[str] = asyncio.Queue()

    async def note(_connection: Any, error: BaseException) -> None:
        closed.put_nowait(str(error))

    for opened in (connection, other, third):
        opened.close_callbacks.add(note)
    await one.ask("delete_user", name="u")
    await one.ask("delete_permission", user="w", vhost="/")
    await one.ask("delete_vhost", name="v")
    assert [await asyncio.wait_for(closed.get(), 10) for _ in range(3)] == [
        "[Errno 320] CONNECTION_FORCED - user 'u' is deleted",
        "[Errno 320] CONNECTION_FORCED - access to vhost '/' refused for user 'w'",
        "[Errno 320] CONNECTION_FORCED - vhost 'v' is deleted",
    ]


async def test_policy_applies_to_the_queues_of_all_nodes_before_the_answer(start: Start) -> None:
    """The answer to a policy waits until the other node has applied it to thousands of queues."""
    one, two = await start("one"), await start("two")
    queues = [{"name": f"q{number}", "vhost": "/"} for number in range(3000)]
    await two.ask("import_definitions", definitions={"queues": queues})
    await one.ask("set_policy", name="p", pattern="^q", definition={"max-length": 5})
    assert all(queue.rules.max_length == 5 for queue in two.broker.vhosts["/"].queues.values())


async def test_answer_waits_for_a_node_that_does_not_follow(start: Start, postgres_url: str, schema: str) -> None:
    """A change is answered when the last member follows, and not before; one that was counted out is not waited for."""
    one, two = await start("one"), await start("two")
    await one.ask("add_vhost", name="u")
    flushed, gate, held = two.shared.flushed, asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        held.set()
        await gate.wait()
        await flushed()

    two.shared.flushed = hold
    answer = asyncio.create_task(one.ask("add_vhost", name="v"))
    await asyncio.wait_for(held.wait(), 10)
    assert "v" in two.broker.vhosts
    assert [row[0] for row in await one.database.function("read", "definitions_behind", 3)] == ["two"]
    assert not answer.done()
    gate.set()
    await answer
    gate.clear()
    held.clear()
    answer = asyncio.create_task(one.ask("add_vhost", name="w"))
    await asyncio.wait_for(held.wait(), 10)
    assert not answer.done()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(f'DELETE FROM "{schema}".member WHERE node = $1', "two")
    await connection.close()
    await answer
    gate.set()


async def test_document_of_the_settings_and_imports_work_on_any_node(start: Start, tmp_path: Path) -> None:
    """`load_definitions` of a later node and an import on either node hold on both."""
    one = await start("one")
    document = {"users": [{"name": "u", "password": "p", "tags": ""}], "vhosts": [{"name": "v"}]}
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(document))
    two = await start("two", server={"load_definitions": str(path)})
    assert one.definitions == two.definitions
    assert "u" in one.broker.administration.users
    answer = await one.ask("import_definitions", definitions={"vhosts": [{"name": "w", "description": "d"}]})
    assert answer["made"] == {"vhosts": 1}
    assert one.definitions == two.definitions
    assert sorted(two.broker.vhosts) == ["/", "v", "w"]
    assert two.broker.administration.importing is None


async def test_node_that_joins_again_takes_what_it_missed(start: Start) -> None:
    """A new epoch reads everything, reports anew, and others wait for it again."""
    one, two = await start("one"), await start("two")
    await two.database.leave()
    await one.ask("add_vhost", name="v")
    await two.database.join()
    await one.ask("add_vhost", name="w")
    assert one.definitions == two.definitions
    assert sorted(two.broker.vhosts) == ["/", "v", "w"]


async def test_deleted_vhost_forgets_its_topology_once_every_node_has_deleted_it(start: Start) -> None:
    """Changes appended for the vhost are void afterwards, and its levels are swept; a new vhost begins empty."""
    one, two = await start("one"), await start("two")
    await one.ask("add_vhost", name="v")
    await two.ask("declare_queue", vhost="v", queue="q")
    (level,) = two.broker.vhosts["v"].queues["q"].levels
    two.shared.dropped(two.broker.vhosts["v"])  # as a node does
    await one.ask("delete_vhost", name="v")
    await one.ask("add_vhost", name="v")
    changes = [row["bodies"] for row in await one.database.function("read", "changes_since", 0)]
    assert changes == [[b'[{"change": "vhost_forgotten", "vhost": "v"}]']]
    (row,) = await one.database.fetch("SELECT level FROM dropped_level")
    assert row["level"] == level.number
    assert not two.broker.vhosts["v"].queues
