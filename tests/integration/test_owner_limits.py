"""Limits of one vhost or one user, from definitions and by command: codes and texts of RabbitMQ 4.3."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands

from broker.cli.control_client import Unanswered
from broker.cli.main import main
from broker.server import BrokerServer
from tests.deadline import wait_until_async
from tests.in_process import running_broker, told
from tests.raw_client import RawClient

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
EXPORTED: dict[str, Any] = {  # as RabbitMQ 4 exports them
    "users": [
        {"name": "u", "password": "secret", "tags": [], "limits": {"max-connections": 2, "max-channels": 3}},
        {"name": "other", "password": "secret", "tags": [], "limits": {}},
    ],
    "vhosts": [{"name": "v", "limits": {"max-connections": 3, "max-queues": 2}, "metadata": {}}],
    "permissions": [
        {"user": "u", "vhost": "v", **EVERYTHING},
        {"user": "u", "vhost": "/", **EVERYTHING},
        {"user": "other", "vhost": "v", **EVERYTHING},
    ],
    "parameters": [
        {"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-connections": 3, "max-queues": 2}}
    ],
    "queues": [{"vhost": "v", "name": f"there-{number}", "durable": True, "arguments": {}} for number in range(2)],
}  # fmt: skip
OF_VHOST = "NOT_ALLOWED - access to vhost 'v' refused for user '{}': connection limit ({}) is reached"
OF_USER = "NOT_ALLOWED - connection refused for user 'u': user connection limit ({}) is reached"
OF_CHANNELS = "NOT_ALLOWED - number of channels opened for user 'u' has reached the maximum allowed user limit of ({})"
OF_QUEUES = "PRECONDITION_FAILED - cannot declare queue 'new': queue limit in vhost 'v' ({}) is reached"


def connected(broker: BrokerServer, user: str = "u", vhost: str = "v") -> Any:
    """Return a connection of a user to a vhost."""
    login = pika.PlainCredentials(user, "secret")
    where = pika.ConnectionParameters("127.0.0.1", broker.listener.port, vhost, login)
    return pika.BlockingConnection(where)


def refusal(broker: BrokerServer, user: str = "u") -> tuple[int | None, str]:
    """Return the error that refuses a connection to the vhost."""
    with RawClient("127.0.0.1", broker.listener.port) as client:
        client.greet()
        client.authenticate(user, "secret")
        client.expect(commands.Connection.Tune)
        client.method(0, commands.Connection.TuneOk(2047, 131072, 0))
        client.method(0, commands.Connection.Open("v"))
        close = client.expect(commands.Connection.Close)
        return close.reply_code, close.reply_text


async def left(broker: BrokerServer) -> None:
    """Return when no client is connected."""
    await wait_until_async(lambda: not broker.listener.transports, "the end of every connection")


def connections(broker: BrokerServer) -> None:
    """Reach the limit of a user's connections, then the vhost's, and connect again after one has closed."""
    with ExitStack() as open_ones:
        first = open_ones.enter_context(connected(broker))
        open_ones.enter_context(connected(broker, vhost="/"))
        assert refusal(broker) == (530, OF_USER.format(2))
        open_ones.enter_context(connected(broker, "other"))
        open_ones.enter_context(connected(broker, "other"))
        assert refusal(broker, "other") == (530, OF_VHOST.format("other", 3))
        assert refusal(broker, "u") == (530, OF_VHOST.format("u", 3))
        first.close()
        connected(broker).close()


def channels(broker: BrokerServer) -> None:
    """Reach the limit of a user's channels, on two connections, and open one again after another has closed."""
    with connected(broker) as one, connected(broker) as two:
        closed = one.channel()
        one.channel()
        kept = two.channel()
        closed.close()
        one.channel()
        with pytest.raises(pika.exceptions.ConnectionClosed) as refused:
            two.channel()
        assert (refused.value.reply_code, refused.value.reply_text) == (530, OF_CHANNELS.format(3))
        assert kept.is_closed
        one.channel()  # those of the other connection were closed with it


def queues(broker: BrokerServer, limit: int = 2) -> None:
    """Declare one queue too many, and an existing one."""
    with connected(broker) as one:
        one.channel().queue_declare("there-0", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            one.channel().queue_declare("new")
        assert (refused.value.reply_code, refused.value.reply_text) == (406, OF_QUEUES.format(limit))


async def test_limits_of_definitions_are_enforced_and_exported(tmp_path: Path) -> None:
    """Imported limits hold at once and after a restart; queues of the document itself are not refused."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "import_definitions", definitions=EXPORTED)
        for talk in (connections, channels, queues):
            await asyncio.to_thread(talk, broker)
            await left(broker)
        exported = await told(broker, "export_definitions")
    async with running_broker(tmp_path) as broker:
        for talk in (connections, channels, queues):
            await asyncio.to_thread(talk, broker)
            await left(broker)
        assert await told(broker, "export_definitions") == exported
    limits = {user["name"]: user["limits"] for user in exported["users"]}
    assert limits == {"guest": {}, "u": {"max-connections": 2, "max-channels": 3}, "other": {}}
    assert exported["parameters"] == EXPORTED["parameters"]
    assert [v["limits"] for v in exported["vhosts"] if v["name"] == "v"] == [EXPORTED["vhosts"][0]["limits"]]
    async with running_broker(tmp_path / "other") as broker:
        await told(broker, "import_definitions", definitions=exported)
        await asyncio.to_thread(queues, broker)


async def test_a_vhosts_limits_count_without_a_parameter_too(tmp_path: Path) -> None:
    """RabbitMQ exports the limits twice; a hand-written document may have them once."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "import_definitions", definitions={**EXPORTED, "parameters": []})
        await asyncio.to_thread(queues, broker)
        assert (await told(broker, "export_definitions"))["parameters"] == EXPORTED["parameters"]


async def test_commands_set_change_and_clear_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 allows nothing, -1 any number; unnamed limits stay; users of the settings have none."""
    async with running_broker(tmp_path, auth={"users": {"boss": "secret"}}) as broker:

        async def run(*words: str) -> tuple[int, str]:
            code = await asyncio.to_thread(main, [*words, "--data-dir", str(tmp_path)])
            return code, capsys.readouterr().err

        await told(broker, "import_definitions", definitions={**EXPORTED, "parameters": [], "vhosts": [{"name": "v"}]})
        assert await run("vhost", "set-limits", "v", "--max-queues", "2") == (0, "")
        await asyncio.to_thread(queues, broker)
        assert await run("vhost", "set-limits", "v", "--max-connections", "0") == (0, "")
        assert await asyncio.to_thread(refusal, broker) == (530, OF_VHOST.format("u", 0))
        (listed,) = [row for row in await told(broker, "list_vhosts") if row["name"] == "v"]
        assert listed["limits"] == {"max-queues": 2, "max-connections": 0}
        assert await run("vhost", "set-limits", "v", "--max-connections", "-1") == (0, "")
        await asyncio.to_thread(queues, broker)
        assert await run("vhost", "set-limits", "v", "--max-blocked-seconds", "30") == (0, "")
        assert broker.engines["v"].vhost.limits.blocked_max_s == 30
        assert await run("vhost", "clear-limits", "v") == (0, "")
        assert broker.engines["v"].vhost.limits.blocked_max_s is None

        def declare_new() -> None:
            with connected(broker) as one:
                one.channel().queue_declare("new")

        await asyncio.to_thread(declare_new)
        assert await run("user", "set-limits", "u", "--max-connections", "0") == (0, "")
        assert await asyncio.to_thread(refusal, broker) == (530, OF_USER.format(0))
        (listed,) = [row for row in await told(broker, "list_users") if row["name"] == "u"]
        assert listed["limits"] == {"max-connections": 0, "max-channels": 3}
        assert await run("user", "clear-limits", "u") == (0, "")
        assert (await told(broker, "list_users"))[-1]["limits"] == {}
        code, said = await run("user", "set-limits", "u")
        assert (code, said) == (2, "slotmq: nothing to change: give --max-connections or --max-channels\n")
        code, said = await run("user", "set-limits", "boss", "--max-channels", "1")
        assert (code, "defined in the settings" in said) == (1, True)
        code, said = await run("user", "set-limits", "u", "--max-channels", str(1 << 70))
        assert (code, said) == (1, "slotmq: max-channels is larger than a limit can be\n")
        assert await run("vhost", "set-limits", "none", "--max-queues", "1") == (
            1, "slotmq: Virtual host 'none' does not exist\n",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"users": [{"name": "n", "password": "p", "tags": [], "limits": {"max-connections": "5"}}]},
         r"users\[0\]: user 'n': max-connections should be an integer"),
        ({"vhosts": [{"name": "v", "limits": {"max-exchanges": 5}}]},
         r"vhosts\[0\]: unknown limit 'max-exchanges'; known: max-connections, max-queues, max-blocked-seconds"),
        ({"parameters": [{"vhost": "/", "component": "vhost-limits", "name": "limits", "value": 5}]},
         "parameters: vhost-limits 'limits': limits should be an object"),
        ({"parameters": [{"vhost": "/", "component": "vhost-limits", "name": "n", "value": {"max-queues": 1}}]},
         "parameters: vhost-limits 'n': a parameter of vhost-limits is named 'limits'"),
    ],
)  # fmt: skip
async def test_limits_that_cannot_be_refuse_a_document(tmp_path: Path, part: dict[str, Any], text: str) -> None:
    """An invalid limit refuses the whole document, with the entry and the reason."""
    async with running_broker(tmp_path) as broker:
        before = await told(broker, "export_definitions")
        with pytest.raises(Unanswered, match=text):
            await told(broker, "import_definitions", definitions=part)
        assert await told(broker, "export_definitions") == before
