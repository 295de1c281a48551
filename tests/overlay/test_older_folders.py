"""Data folders that were restored from a copy or emptied: what is published after that arrives, and it is told."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from broker.overlay_node import leaf_driver
from broker.testing import Broker
from tests.overlay.sites import Site, free_port, overlay, reached, wanted
from tests.tap_files import channel_of, publish


async def bind(broker: Broker, key: str = "k.#") -> None:
    """Declare the queue `q` with a binding."""
    async with channel_of(broker) as channel:
        await channel.declare_exchange("x", "topic", durable=True)
        await (await channel.declare_queue("q", durable=True)).bind("x", key)


async def send(broker: Broker, count: int) -> None:
    """Publish messages and await their confirms."""
    async with channel_of(broker) as channel:
        await publish(await channel.declare_exchange("x", "topic", durable=True), ["k.1"] * count)


class Pair:
    """Two leaves with an inner broker between them: `a` publishes, `b` subscribes."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.folders = {name: folder / name for name in ("a", "b", "m")}
        self._sites = {
            "m": Site(port, overlay("m", "nm", ("na", "a", 0), ("nb", "b", 0))),
            "a": Site(free_port(), overlay("a", "na", ("nm", "m", port), leaf=True)),
            "b": Site(free_port(), overlay("b", "nb", ("nm", "m", port), leaf=True)),
        }

    @asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[list[Broker]]:
        """Yield running brokers."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self._sites[name].broker(self.folders[name])) for name in names]


@pytest.mark.parametrize("emptied", [False, True])
async def test_what_a_restored_or_emptied_publisher_publishes_arrives(
    tmp_path: Path, emptied: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream has numbers again that the other leaf had, with a clock that was ahead, too."""
    pair = Pair(tmp_path)
    copy = tmp_path / "copy"
    async with pair.running("m", "b") as (_, b):
        await bind(b)
        monkeypatch.setattr(leaf_driver, "EPOCH_S", leaf_driver.EPOCH_S - 40_000_000)
        async with pair.running("a") as (a,):
            await send(a, 0)
            await reached(lambda: wanted(a, "nm") == ["k.#"], "a knows what b wants")
            await send(a, 5)
            await reached(lambda: b.queue("q").ready == 5, "messages arrive")
        monkeypatch.undo()
        shutil.copytree(pair.folders["a"], copy)
        async with pair.running("a") as (a,):
            await reached(lambda: wanted(a, "nm") == ["k.#"], "a knows what b wants")
            before = b.queue("q").ready
            await send(a, 50)
            await reached(lambda: b.queue("q").ready == before + 50, "messages arrive")
        shutil.rmtree(pair.folders["a"])
        if not emptied:
            shutil.copytree(copy, pair.folders["a"])
        caplog.clear()
        async with pair.running("a") as (a,):
            if emptied:
                await send(a, 0)
            await reached(lambda: wanted(a, "nm") == ["k.#"], "a knows what b wants")
            before = b.queue("q").ready
            await send(a, 20)
            await reached(lambda: b.queue("q").ready == before + 20, "messages arrive")
            await reached(lambda: "overlay.folder_is_older" in caplog.text, "it is told")
            assert caplog.text.count("overlay.folder_is_older") == 1


async def test_bindings_of_a_restored_subscriber_get_what_is_published_after_that(tmp_path: Path) -> None:
    """Others have later virtual times of it than its data folder."""
    pair = Pair(tmp_path)
    copy = tmp_path / "copy"
    async with pair.running("m", "a") as (_, a):
        async with pair.running("b") as (b,):
            await bind(b)
        shutil.copytree(pair.folders["b"], copy)
        async with pair.running("b") as (b,):
            for key in ("v.1", "v.2", "v.3"):
                await bind(b, key)
            await send(a, 0)
            await reached(lambda: wanted(a, "nm") == ["k.#", "v.1", "v.2", "v.3"], "a knows what b wants")
        shutil.rmtree(pair.folders["b"])
        shutil.copytree(copy, pair.folders["b"])
        async with pair.running("b") as (b,):
            await bind(b, "#")
            await reached(lambda: wanted(a, "nm") == ["#"], "a knows what b wants")
            before = b.queue("q").ready
            await send(a, 20)
            await reached(lambda: b.queue("q").ready == before + 20, "messages arrive")
