"""A connection that ends between two steps of the driver, which then raises whatever it trips over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from broker.cluster.connections import Connections
from broker.cluster.errors import Unreachable
from broker.cluster.link import Link
from broker.cluster.server_address import ServerAddress
from tests.cluster.members import joined, publish


def ends_after(monkeypatch: pytest.MonkeyPatch, step: str, end: Callable[[Any], None]) -> None:
    """Let a step of the driver succeed, and its connection end before the next one."""
    original = getattr(asyncpg.Connection, step)

    async def taken(driver: Any, *arguments: Any, **named: Any) -> Any:
        result = await original(driver, *arguments, **named)
        end(driver)
        return result

    monkeypatch.setattr(asyncpg.Connection, step, taken)


async def test_a_statement_between_two_steps_is_unreachable(
    postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was prepared, and is about to be bound, when another connection of the node ends."""
    connections = await Connections.open(ServerAddress(postgres_url, "a", schema))
    ends_after(monkeypatch, "_get_statement", lambda _: connections.abort("gone"))
    with pytest.raises(Unreachable, match="gone"):
        await connections.fetch("read", "SELECT 1")
    with pytest.raises(Unreachable, match="gone"):
        await connections.fetch("beat", "SELECT 1")


async def test_a_listener_of_connections_that_ended_is_unreachable(postgres_url: str, schema: str) -> None:
    """The same where the driver is asked for notifications."""
    connections = await Connections.open(ServerAddress(postgres_url, "a", schema))
    connections.abort("gone")
    with pytest.raises(Unreachable, match="gone"):
        await connections.listen("channel", lambda _: None)


@pytest.mark.parametrize("step", ["set_type_codec", "fetchrow", "fetchval"])
async def test_an_opening_between_two_steps_is_unreachable(
    postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whatever the step, another attempt may succeed: the start continues trying, and a node that runs does not end."""
    ends_after(monkeypatch, step, lambda driver: driver.terminate())
    with pytest.raises(Unreachable):
        await Connections.open(ServerAddress(postgres_url, "a", schema))


async def test_a_node_goes_on_after_such_an_end(
    postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call is committed on the next connections."""
    async with joined(postgres_url, schema) as a:
        with monkeypatch.context() as patch:

            def end(_driver: Any) -> None:
                patch.undo()
                a.database.link.drop("gone")

            ends_after(patch, "_get_statement", end)
            number = (await a.database.commit(publish(), synchronous=True)).number
        assert (await a.database.commit(publish(), synchronous=True)).number > number
        assert a.told == ["joining", "joined", "acts"]


async def test_a_break_at_the_end_of_a_repair_is_repaired(postgres_url: str, schema: str) -> None:
    """A connection ends after the last step of the repair, and before the loop has noted that its task has ended."""
    ends = [True]
    failures: list[BaseException] = []

    async def recover(connections: Connections, *_: object) -> None:
        if ends.pop():
            ends.append(False)
            woken = asyncio.get_running_loop().create_future()
            woken.add_done_callback(lambda _: connections.abort("gone again"))
            link._waiting.append(woken)
        else:
            recovered.set_result(None)

    link = Link(ServerAddress(postgres_url, "a", schema), recover, failures.append)
    recovered = asyncio.get_running_loop().create_future()
    await link.open(5)
    link.drop("gone")
    await asyncio.wait_for(recovered, 30)
    await link.close()
    assert not failures
