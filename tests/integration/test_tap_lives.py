"""Taps survive restarts, crashes, full disks, their own removal and that of their vhosts."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from aio_pika import Message

from broker.core.definitions.export import topology_of
from broker.delivery.engine import Engine
from broker.store.files import Files
from broker.taps.cursors import TapRefused
from broker.testing import Broker
from tests.deadline import DEADLINE_S, wait_until_async
from tests.gated_files import NO_SPACE, GatedFiles
from tests.in_process import timed_broker
from tests.raw_talk import page_out
from tests.tap_files import bodies_of, channel_of, publish, rows_of, settled, there


async def test_a_restart_keeps_taps_slots_and_what_waits(tmp_path: Path) -> None:
    """A stop seals waiting messages, including transient ones; no id and no seal is used twice."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        row = await taps.add("/", "x", "k.#", name="t", cursors=["c"], max_bytes=12345678, max_age_ms=77_000_000)
        await publish(exchange, ["k.1", "k.2"], persistent=False)
        await taps.seal()
        await publish(exchange, ["k.3", "no", "k.4"])
        await publish(exchange, ["k.5"], persistent=False)
        clock, store = broker.clock, taps.view.store
    async with timed_broker(tmp_path, clock=clock) as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        assert taps.view.store == store
        (again,) = taps.listing()
        assert {name: again[name] for name in row if name not in ("waiting", "cursors")} == {
            **{name: row[name] for name in row if name not in ("waiting", "cursors")},
            "slots": 2,
            "messages": 5,
            "bytes": again["bytes"],
            "first_seal": 1,
            "last_seal": 2,
        }
        assert again["waiting"] == 0
        await publish(await channel.get_exchange("x"), ["k.6"], persistent=False)
        assert await taps.seal() == 3
        rows = rows_of(taps, "t")
        assert [row.key for row in rows] == [b"k.1", b"k.2", b"k.3", b"k.4", b"k.5", b"k.6"]
        assert [row.message_id for row in rows] == [1, 2, 3, 4, 5, 6]


async def test_ids_of_sealed_transient_messages_do_not_come_again(tmp_path: Path) -> None:
    """Ids of sealed transient messages are not reused after a crash, although neither log nor files have them."""
    async with timed_broker(tmp_path / "d") as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await taps.add("/", "x", "#", cursors=["c"])
        await publish(exchange, ["a"] * 7, persistent=False)
        await taps.cursors.set("c", "/", "x", await taps.seal())
        await settled(broker, taps)
        assert there(taps) == []
        await asyncio.to_thread(shutil.copytree, tmp_path / "d", tmp_path / "crashed")
    async with timed_broker(tmp_path / "crashed") as broker, channel_of(broker) as channel:
        await publish(await channel.get_exchange("x"), ["b"])
        await broker.server.taps.seal()
        assert [row.message_id for row in rows_of(broker.server.taps, "x")] == [8]


async def test_what_is_in_a_slot_file_and_still_in_the_log_is_sealed_once(tmp_path: Path) -> None:
    """After a crash between the line of a seal and the record of its settlements, the messages are sealed once."""
    async with timed_broker(tmp_path / "d") as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await taps.add("/", "x", "#")
        await publish(exchange, ["a", "b", "c"])
        await asyncio.to_thread(shutil.copytree, tmp_path / "d", tmp_path / "crashed")
        await taps.seal()
        await asyncio.to_thread(shutil.rmtree, tmp_path / "crashed" / "slots")
        await asyncio.to_thread(shutil.copytree, tmp_path / "d" / "slots", tmp_path / "crashed" / "slots")
    async with timed_broker(tmp_path / "crashed") as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        assert taps.listing()[0]["waiting"] == 0
        await publish(await channel.get_exchange("x"), ["d"])
        await taps.seal()
        assert [(row.message_id, row.key) for row in rows_of(taps, "x")] == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


async def test_a_removed_tap_leaves_its_slots_to_its_cursors(tmp_path: Path) -> None:
    """Waiting messages are sealed first; with drop nothing is left; a new tap of the same name starts over."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await taps.add("/", "x", "#", name="t", cursors=["c"])
        await publish(exchange, ["a"])
        assert await taps.remove("/", "t") == {"messages": 0, "slots": 0, "bytes": 0}
        await publish(exchange, ["unheard"])
        assert "amq.tap.t" not in broker.queues()
        assert [(row["name"], row["removed"], row["messages"]) for row in taps.listing()] == [("t", True, 1)]
        assert bodies_of(taps, "t") == [b"0 a"]
        await taps.cursors.set("c", "/", "t", 1)
        await settled(broker, taps)
        assert there(taps) == []
        await taps.add("/", "x", "#", name="t", cursors=["c"])
        await publish(exchange, ["b"])
        await taps.seal()
        assert len({seal.number for seal in taps.view.seals} | {one.number for one in taps.view.released.values()}) == 2
        await publish(exchange, ["b"] * 3)
        [seal] = taps.view.seals
        assert await taps.remove("/", "t", drop=True) == {"messages": 4, "slots": 1, "bytes": seal.bytes}
        assert there(taps) == []
        assert taps.view.cursors == []
        assert taps.listing() == []
        with pytest.raises(TapRefused, match="no tap 't'"):
            await taps.remove("/", "t")


async def test_a_tap_that_is_being_removed_is_still_there(tmp_path: Path) -> None:
    """Until its removal ends a tap is listed, and adding it again creates no second queue of its name."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        taps, vhost = broker.server.taps, broker.server.vhosts["/"]
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await taps.add("/", "x", "#", name="t")
        await publish(exchange, ["a"])
        number = vhost.queues.taps["amq.tap.t"].number
        async with taps._writer.turn:
            removing = asyncio.ensure_future(taps.remove("/", "t"))
            await asyncio.sleep(0)
            assert [(row["name"], row["removed"], row["listens"]) for row in taps.listing()] == [("t", False, False)]
            await taps.add("/", "x", "#", name="t")
            assert vhost.queues["amq.tap.t"].number == number
        await removing
        assert "amq.tap.t" not in vhost.queues
        assert not vhost.queues.taps
        assert not vhost.exchanges["x"].listeners.patterns


async def test_a_vhost_takes_its_taps_with_it(tmp_path: Path) -> None:
    """Slot files and cursors are removed with the vhost, and a new vhost of the same name loses nothing later."""
    async with Broker(server={"data_dir": tmp_path}, files=Files(), vhosts=["v"]) as broker:
        taps = broker.server.taps
        async with channel_of(broker, "v") as channel:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            await taps.add("v", "x", "#", cursors=["c"])
            await publish(exchange, ["a"] * 10)
            await taps.seal("v")
            await publish(exchange, ["waits"])
        await broker.server.administration.change(lambda draft: draft.drop_vhost("v"))
        assert there(taps) == []
        assert taps.view.cursors == []
        await broker._add_vhosts(broker.server)
        async with channel_of(broker, "v") as channel:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            await taps.add("v", "x", "#")
            await publish(exchange, ["b"] * 3)
        clock = broker.clock
    async with Broker(server={"data_dir": tmp_path}, files=Files(), vhosts=["v"], clock=clock) as broker:
        await broker.server.taps.seal()
        assert bodies_of(broker.server.taps, "x", "v") == [b"0 b", b"1 b", b"2 b"]


async def test_definitions_leave_taps_out(tmp_path: Path) -> None:
    """An export has neither the taps' queues nor their bindings, and an import leaves taps unchanged."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        await channel.declare_exchange("x", "topic", durable=True)
        await broker.server.taps.add("/", "x", "#")
        exported = {kind: list(rows) for kind, rows in topology_of(broker.server.vhosts["/"]).items()}
        assert [row["name"] for row in exported["exchanges"]] == ["x"]
        assert (exported["queues"], exported["bindings"]) == ([], [])


@pytest.mark.parametrize("call", ["open", "write"])
async def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path: Path, call: str) -> None:
    """Sealing on a full disk reports an error without a path; the messages stay in the log, and are sealed later."""
    files = GatedFiles(call, lambda path: path.suffix == ".slot")
    async with Broker(server={"data_dir": tmp_path}, files=files) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await broker.server.taps.add("/", "x", "#")
        files.fails = NO_SPACE
        await publish(exchange, ["a", "b"])
        with pytest.raises(TapRefused, match=r"^tap 'x' cannot be sealed: No space left on device$"):
            await broker.server.taps.seal()
        with pytest.raises(TapRefused, match="cannot be sealed"):
            await broker.server.taps.remove("/", "x")
        await channel.declare_queue("q", durable=True)
        await channel.default_exchange.publish(Message(b"m"), "q")
        with pytest.raises(TapRefused, match=r"^the snapshot cannot be written: No space left on device$"):
            await broker.server.taps.snapshots.take("/", "q")
        await publish(exchange, ["c"])
        files.fails = ""
        assert await broker.server.taps.seal() == 1
        assert bodies_of(broker.server.taps, "x") == [b"0 a", b"1 b", b"0 c"]
        assert files.held == 0


def engines_in_memory(vhost: str) -> int:
    """Count the engines of a vhost that exist, whoever refers to them: a native object has no weak references."""
    return sum(isinstance(found, Engine) and found.vhost.name == vhost for found in gc.get_objects())


async def test_a_vhost_that_is_gone_is_remembered_by_nobody(tmp_path: Path) -> None:
    """Deleted vhosts leave no objects in memory."""
    async with timed_broker(tmp_path) as broker:
        await broker.server.administration.change(lambda draft: draft.add_vhost("forgotten", {}))
        assert engines_in_memory("forgotten") == 1
        await broker.server.administration.change(lambda draft: draft.drop_vhost("forgotten"))

        async def forgotten() -> bool:
            gc.collect()
            return not engines_in_memory("forgotten")

        await wait_until_async(forgotten, "the end of the engine")


async def test_a_stop_that_cannot_wait_leaves_no_question_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a slow disk one of two taps is sealed; the other is sealed after the next start, and later requests fail."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context["message"]))
    gate = threading.Event()
    async with timed_broker(tmp_path) as broker:
        taps = broker.server.taps
        async with channel_of(broker) as channel:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            for name in ("a", "b"):
                await taps.add("/", "x", "#", name=name)
            await publish(exchange, ["k"])
        write = taps._writer._write

        def slow_write(*arguments: Any) -> Any:
            gate.wait(DEADLINE_S)
            return write(*arguments)

        monkeypatch.setattr(taps._writer, "_write", slow_write)
        closing = asyncio.create_task(taps.close(0, lambda _count: None))
        await wait_until_async(lambda: taps._retention._ends, "the end of the wait")
        gate.set()
        await closing
        with pytest.raises(TapRefused, match="the broker stops"):
            await taps.seal("/", "b")
        del closing
        gc.collect()
        assert complaints == []
        assert [len(bodies_of(taps, name)) for name in ("a", "b")] == [1, 0]
    async with timed_broker(tmp_path, clock=broker.clock) as broker:
        await broker.server.taps.seal()
        assert [len(bodies_of(broker.server.taps, name)) for name in ("a", "b")] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nowhere", "x", "#"), "no vhost 'nowhere'"),
        (("/", "nowhere", "#"), "no exchange 'nowhere'"),
        (("/", "x", "#.a.#.b.#"), "3 '#' words"),
        (("/", "x", "a" * 256), "at most 255 bytes"),
    ],
)
async def test_what_cannot_be_tapped_is_refused(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    """An impossible tap is refused in one line, and nothing is created."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        await channel.declare_exchange("x", "topic", durable=True)
        with pytest.raises(TapRefused, match=problem):
            await broker.server.taps.add(*arguments)
        for name in ("n" * 248, "a\nb"):
            with pytest.raises(TapRefused, match="at most 247 bytes"):
                await broker.server.taps.add("/", "x", "#", name=name)
        await broker.server.taps.add("/", "x", "#")
        assert (await broker.server.taps.add("/", "x", "#"))["name"] == "x"
        with pytest.raises(TapRefused, match="another tap in vhost"):
            await broker.server.taps.add("/", "x", "a.#")
        assert [row["pattern"] for row in broker.server.taps.listing()] == ["#"]


async def test_a_tap_on_disk_is_paged_in_by_nobody(tmp_path: Path) -> None:
    """Messages that the pager moved to disk are sealed from there, without being read into slots."""
    async with timed_broker(tmp_path, slots={"window_messages": 10}) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await broker.server.taps.add("/", "x", "#")
        await publish(exchange, [f"k{n}" for n in range(25)])
        await publish(exchange, [f"t{n}" for n in range(8)], persistent=False)
        page_out(broker.server, "amq.tap.x")
        await publish(exchange, ["in.memory"])
        await broker.server.taps.seal()
        assert [row.key.decode() for row in rows_of(broker.server.taps, "x")] == [
            *(f"k{n}" for n in range(25)),
            *(f"t{n}" for n in range(8)),
            "in.memory",
        ]
        assert broker.server.engines["/"].reader.reads == 0


async def test_a_tap_that_is_added_again_gives_no_id_twice(tmp_path: Path) -> None:
    """A tap that is removed and added again never reuses an id, whether it was dropped or not, even after a restart."""
    for turn, drop in enumerate([False, True, False]):
        async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
            taps = broker.server.taps
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            await taps.add("/", "x", "#", name="t")
            if turn == 2:
                continue  # restarted before it received a message
            await publish(exchange, ["a", "b"])
            await taps.seal()
            assert [(seal.first, seal.end) for seal in taps.view.seals][-1] == (1 + 2 * turn, 3 + 2 * turn)
            await taps.remove("/", "t", drop=drop)
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        await publish(await channel.get_exchange("x"), ["c"])
        await taps.seal()
        assert [(seal.first, seal.end) for seal in taps.view.seals] == [(5, 6)]
