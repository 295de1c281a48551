"""The slot files of taps: when they are sealed, how long they are kept, and the effect of a cap."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.delivery.committer import Committer
from broker.slot_files.slot_file import PERSISTENT
from broker.taps.cursors import TapRefused
from tests.deadline import DEADLINE_S, wait_until_async
from tests.in_process import timed_broker
from tests.tap_files import bodies_of, channel_of, publish, rows_of, settled, there


async def test_a_quiet_tap_is_sealed_by_age(tmp_path: Path) -> None:
    """One message is sealed after it has waited for the window, and not before."""
    async with timed_broker(tmp_path, taps={"window_ms": 5000}) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await broker.server.taps.add("/", "x", "#")
        await publish(exchange, ["a"])
        broker.clock.advance(0)
        broker.clock.advance(4.9)
        await broker.idle()
        assert there(broker.server.taps) == []
        broker.clock.advance(0.2)
        await broker.idle()
        assert there(broker.server.taps) == [1]
        assert broker.queue("amq.tap.x").ready == 0


async def test_the_window_of_a_tap_grows_while_nobody_reads_it(tmp_path: Path) -> None:
    """It doubles with each file up to a bound; a cursor that moves, a reader that tells, a request to seal end that.

    The window of another tap stays as it is.
    """
    sections: dict[str, Any] = {"taps": {"window_ms": 5000, "window_max_ms": 15_000}}
    async with timed_broker(tmp_path, **sections) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        taps = broker.server.taps
        for name in ("read", "quiet"):
            await taps.add("/", "x", name, name=name)

        async def waited(name: str) -> int:
            """Return after how many seconds a message is in a slot file."""
            await publish(exchange, [name])
            broker.clock.advance(0)
            last_seal = taps.view.last_seal
            for second in range(60):
                await broker.idle()
                if taps.view.last_seal > last_seal:
                    return second
                broker.clock.advance(1)
            raise AssertionError

        assert [await waited("read") for _ in range(4)] == [5, 10, 15, 15]
        await taps.cursors.set("c", "/", "read", taps.view.last_seal)
        assert [await waited("read") for _ in range(3)] == [5, 5, 10]
        assert await waited("quiet") == 5
        for tap in ("read", "none"):
            taps.note_read("/", tap)
        assert [await waited("read") for _ in range(2)] == [5, 5]
        assert await waited("quiet") == 10
        await publish(exchange, ["read"])
        await taps.seal("/", "read")
        assert [await waited("read") for _ in range(2)] == [5, 10]


async def test_a_busy_tap_is_sealed_by_count_and_by_bytes(tmp_path: Path) -> None:
    """A file holds a window of messages, or slightly more than its bytes; all messages are there once, in order."""
    windows = {"window_messages": 100, "window_bytes": 40_000}
    async with timed_broker(tmp_path, taps=windows) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await broker.server.taps.add("/", "x", "small", name="small")
        await broker.server.taps.add("/", "x", "large", name="large")
        await asyncio.gather(*[publish(exchange, ["small"] * 250) for _ in range(2)])
        await asyncio.gather(*[exchange.publish(aio_pika.Message(bytes(9_000)), "large") for _ in range(20)])
        await broker.server.taps.seal()
        taps = broker.server.taps
        counts = {name: [seal.count for seal in taps.view.seals if seal.queue == name] for name in ("small", "large")}
        assert sum(counts["small"]) == 500
        assert max(counts["small"]) == 100
        assert counts["large"] == [5, 5, 5, 5]
        assert [row.message_id for row in rows_of(taps, "small")] == list(range(1, 501))


async def test_what_was_paged_out_is_sealed_all_the_same(tmp_path: Path) -> None:
    """Memory stays within its budget while no slot file can be written, and then all messages are sealed."""
    budget = {"resident_max_bytes": 1 << 20}
    sections: dict[str, Any] = {"memory": budget, "slots": {"window_messages": 50}}
    async with timed_broker(tmp_path, **sections) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await broker.server.taps.add("/", "x", "#")
        engine = broker.server.engines["/"]
        async with broker.server.taps._writer.turn:  # a slow disk
            for start in range(0, 2000, 200):
                await asyncio.gather(
                    *(
                        exchange.publish(aio_pika.Message(b"%05d" % n + bytes(2000), delivery_mode=1 + n % 2), "k")
                        for n in range(start, start + 200)
                    )
                )

            async def bounded() -> bool:
                engine.page()
                return engine.pager.paged_out > 0 and engine.pager.resident_bytes <= 1 << 20

            await wait_until_async(bounded, "paging")
        await broker.server.taps.seal()
        assert [int(body[:5]) for body in bodies_of(broker.server.taps, "x")] == list(range(2000))
        flags = [row.flags for row in rows_of(broker.server.taps, "x")]
        assert flags == [n % 2 * PERSISTENT for n in range(2000)], "the spill does not keep them"
        assert broker.queue("amq.tap.x").ready == 0


async def test_no_slot_file_has_what_the_log_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the sync of the log is in progress, no slot file is begun."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await taps.add("/", "x", "#")
        committer = broker.server.engines["/"].committer
        assert isinstance(committer, Committer)
        write, gate, begun = committer._writer._write, threading.Event(), threading.Event()

        def slow_write(batch: Any) -> None:
            begun.set()
            gate.wait(DEADLINE_S)
            write(batch)

        monkeypatch.setattr(committer._writer, "_write", slow_write)
        publishing = asyncio.create_task(publish(exchange, ["a"]))
        await asyncio.to_thread(begun.wait)
        sealing = asyncio.create_task(taps.seal())
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert there(taps) == []
        assert broker.queue("amq.tap.x").ready == 1
        gate.set()
        assert await sealing == 1
        await publishing


async def test_slot_files_stay_until_every_cursor_has_passed(tmp_path: Path) -> None:
    """Slot files stay until every cursor has passed, even over a restart; a cursor moves back only on request."""
    clock = None
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        clock = broker.clock
        taps = broker.server.taps
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await taps.add("/", "x", "#", cursors=["one"])
        for number in range(4):
            await publish(exchange, [f"k{number}"])
            await taps.seal()
        await taps.cursors.set("two", "/", "x", 1)
        await taps.cursors.set("one", "/", "x", 3)
        await settled(broker, taps)
        assert there(taps) == [2, 3, 4]
        await taps.cursors.set("two", "/", "x", 0)
        assert [(one.name, one.seal) for one in taps.view.cursors] == [("one", 3), ("two", 1)]
        with pytest.raises(TapRefused, match="the last seal is 4"):
            await taps.cursors.set("two", "/", "x", 5)
        clock.advance(5)
        lags = [(row["lag_slots"], row["lag_messages"], row["lag_s"]) for row in taps.listing()[0]["cursors"]]
        assert [lag[:2] for lag in lags] == [(1, 1), (3, 3)]
        assert all(lag_s >= 5 for _, _, lag_s in lags)
    async with timed_broker(tmp_path, clock=clock) as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        await settled(broker, taps)
        assert there(taps) == [2, 3, 4]
        await taps.cursors.set("two", "/", "x", 3)
        await settled(broker, taps)
        assert there(taps) == [4]
        await taps.cursors.remove("one", "/", "x")
        await taps.cursors.set("two", "/", "x", 2, reset=True)
        await taps.cursors.set("two", "/", "x", 4)
        await settled(broker, taps)
        assert there(taps) == []
        assert taps.view.gaps == []
        await publish(await channel.get_exchange("x"), ["after"])
        assert await taps.seal() == 5


async def test_a_cap_forces_out_the_oldest_and_leaves_a_gap(tmp_path: Path) -> None:
    """A cap removes the oldest files, by bytes and by age, with and without cursors; the gap names their messages."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await taps.add("/", "x", "a", name="small", cursors=["reader"], max_bytes=1100)
        await taps.add("/", "x", "b", name="young", max_age_ms=60_000)
        for key in "aab":
            await exchange.publish(aio_pika.Message(bytes(600), delivery_mode=2), key)
            await taps.seal()
        await settled(broker, taps)
        assert [(gap.seal, gap.queue, gap.first, gap.end, gap.reason) for gap in taps.view.gaps] == [
            (1, "small", 1, 2, "bytes")
        ]
        assert there(taps) == [2, 3]
        broker.clock.advance(61)
        await settled(broker, taps)
        assert [(gap.seal, gap.queue, gap.reason) for gap in taps.view.gaps][1:] == [(3, "young", "age")]
        assert there(taps) == [2]
        assert [gap.seal for gap in taps.view.lost(0)] == [1, 3]
