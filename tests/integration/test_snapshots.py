"""Snapshots: the slot files of a queue hold its messages, in memory or on disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.slot_files.slot_file import PERSISTENT, REDELIVERED
from broker.store.files import Files
from broker.taps.cursors import TapRefused
from broker.taps.slot_rows import gather, unpin
from broker.testing import Broker
from tests.deadline import DEADLINE_S
from tests.filling_disk import FillingDisk
from tests.in_process import client_of, queue_of, timed_broker
from tests.raw_talk import page_out
from tests.tap_files import read_slot, snapshot_rows


async def fill(channel: Any, queue: str, numbers: range, **options: Any) -> None:
    """Publish numbered messages, every third of them transient, and return when they are confirmed."""
    exchange = channel.default_exchange
    await asyncio.gather(
        *(
            exchange.publish(aio_pika.Message(b"%d" % n, delivery_mode=1 if n % 3 == 0 else 2, **options), queue)
            for n in numbers
        )
    )


@pytest.mark.parametrize("durable", [True, False])
async def test_a_snapshot_has_what_is_ready_and_what_is_unacked(tmp_path: Path, durable: bool) -> None:
    """A snapshot has all messages in memory, on disk and in the spill, one file per window; the queue is unchanged."""
    sections: dict[str, Any] = {"slots": {"window_messages": 10}, "taps": {"window_messages": 64}}
    async with timed_broker(tmp_path, **sections) as broker, client_of(broker.server) as channel:
        queue = await channel.declare_queue("q", durable=durable)
        await fill(channel, "q", range(150))
        for _ in range(3):
            await (await queue.get()).ack()
        held = [await queue.get() for _ in range(4)]
        await held[1].nack(requeue=True)
        page_out(broker.server, "q")
        await fill(channel, "q", range(150, 200))
        await broker.idle()
        before = broker.queue("q")
        taken = await broker.server.taps.snapshots.take("/", "q")
        assert broker.queue("q") == before
        assert [(file["n"], file["count"]) for file in taken["files"]] == [(0, 64), (1, 64), (2, 64), (3, 5)]
        views = [read_slot(broker.server.taps.snapshots.path(taken["id"], file["n"])) for file in taken["files"]]
        rows = [row for view in views for row in view]
        assert [int(row.body) for row in rows] == list(range(3, 200))
        assert [row.message_id for row in rows] == list(range(4, 201))
        assert [bool(row.flags & PERSISTENT) for row in rows] == [n % 3 != 0 for n in range(3, 200)]
        assert [int(row.body) for row in rows if row.flags & REDELIVERED] == [4]
        assert {(view.meta.seal, view.meta.vhost, view.meta.queue) for view in views} == {(0, "/", "q")}
        sent = {one.body: one.header for one in broker.published}
        assert [row.header for row in rows] == [sent[row.body] for row in rows]


async def test_a_snapshot_has_every_level_of_a_priority_queue(tmp_path: Path) -> None:
    """Each level has its own ids, and so its own files."""
    async with timed_broker(tmp_path) as broker, client_of(broker.server) as channel:
        await channel.declare_queue("q", durable=True, arguments={"x-max-priority": 2})
        for priority in (0, 1, 2, 1):
            await fill(channel, "q", range(priority * 10, priority * 10 + 3), priority=priority)
        rows = await snapshot_rows(broker.server.taps, "q")
        assert sorted(int(row.body) for row in rows) == [0, 1, 2, 10, 10, 11, 11, 12, 12, 20, 21, 22]


async def test_what_comes_while_a_snapshot_is_written_is_not_in_it(tmp_path: Path) -> None:
    """A snapshot shows one moment: later messages are left for the next one."""
    async with timed_broker(tmp_path, taps={"window_messages": 1}) as broker, client_of(broker.server) as channel:
        await channel.declare_queue("q")
        await fill(channel, "q", range(20))
        taking = asyncio.create_task(snapshot_rows(broker.server.taps, "q"))
        await asyncio.sleep(0)
        await fill(channel, "q", range(20, 40))
        assert [int(row.body) for row in await taking] == list(range(20))
        assert len(await snapshot_rows(broker.server.taps, "q")) == 40


async def test_a_snapshot_goes_by_itself_by_request_and_at_the_start(tmp_path: Path) -> None:
    """Snapshot files are removed after an hour, on request, and at a start."""

    def files() -> int:
        return len(list(tmp_path.glob("slots/snapshots/*/*.slot")))

    async with timed_broker(tmp_path) as broker, client_of(broker.server) as channel:
        taps = broker.server.taps
        await channel.declare_queue("q", durable=True)
        await fill(channel, "q", range(5))
        ids = [(await taps.snapshots.take("/", "q"))["id"] for _ in range(3)]
        assert files() == 3
        await taps.snapshots.drop(ids[0])
        await taps.snapshots.drop(ids[0])
        assert files() == 2
        broker.clock.advance(3599)
        await taps._retention._run()
        assert files() == 2
        broker.clock.advance(2)
        await taps._retention._run()
        assert files() == 0
        await taps.snapshots.take("/", "q")
        clock = broker.clock
    assert files() == 1
    async with timed_broker(tmp_path, clock=clock):
        assert files() == 0


async def test_a_queue_that_goes_ends_its_snapshot(tmp_path: Path) -> None:
    """Deleting the queue ends its snapshot with an error that says so, and without a file."""

    class HeldDisk(Files):
        """Holds the thread of the snapshot before its second file."""

        looks = 0
        began, go_on = threading.Event(), threading.Event()

        def free_bytes(self, folder: Path) -> int:
            if threading.current_thread() is not threading.main_thread():
                self.looks += 1
                if self.looks == 2:
                    self.began.set()
                    assert self.go_on.wait(DEADLINE_S)
            return super().free_bytes(folder)

    files = HeldDisk()
    sections: dict[str, Any] = {"server": {"data_dir": tmp_path}, "taps": {"window_messages": 1}}
    async with Broker(files=files, **sections) as broker, client_of(broker.server) as channel:
        queue = await channel.declare_queue("q", durable=True)
        await fill(channel, "q", range(5))
        page_out(broker.server, "q")
        taking = asyncio.create_task(broker.server.taps.snapshots.take("/", "q"))
        assert await asyncio.to_thread(files.began.wait, DEADLINE_S)
        await queue.delete(if_empty=False)
        files.go_on.set()
        with pytest.raises(TapRefused, match="queue 'q' was deleted"):
            await taking
        assert broker.server.failure is None
    assert list(tmp_path.glob("slots/snapshots/*")) == []  # noqa: ASYNC240 - a look behind the broker's back


async def test_a_snapshot_leaves_the_disk_to_the_log(tmp_path: Path) -> None:
    """With less space than a slot file above the alarm limit nothing is written, and the reason is reported."""
    files = FillingDisk()
    server = {"data_dir": tmp_path}
    sections: dict[str, Any] = {"store": {"disk_free_min_bytes": 1_000_000}, "taps": {"window_bytes": 4096}}
    files.free = 1_004_095
    async with Broker(server=server, files=files, **sections) as broker, client_of(broker.server) as channel:
        await channel.declare_queue("q", durable=True)
        await fill(channel, "q", range(3))
        with pytest.raises(TapRefused, match=r"1004095 bytes free; 4096 are needed above .*_min_bytes \(1000000\)$"):
            await broker.server.taps.snapshots.take("/", "q")
        assert list(tmp_path.glob("slots/snapshots/*")) == []  # noqa: ASYNC240 - a look behind the broker's back
        files.free += 1
        assert len(await snapshot_rows(broker.server.taps, "q")) == 3


async def test_what_is_on_disk_counts_for_a_file_too(tmp_path: Path) -> None:
    """Large messages on disk are gathered one file's bytes at a time, instead of a whole window at once."""
    sections: dict[str, Any] = {"slots": {"window_messages": 1}, "taps": {"window_bytes": 10_000}}
    async with timed_broker(tmp_path, **sections) as broker, client_of(broker.server) as channel:
        await channel.declare_queue("q", durable=True)
        for _ in range(40):
            await channel.default_exchange.publish(aio_pika.Message(bytes(1000), delivery_mode=2), "q")
        page_out(broker.server, "q")
        stream = queue_of(broker.server, "q").level
        manager = stream.manager
        pieces = gather(stream, manager.slots, below=manager.next_id, rows_max=50_000, bytes_max=10_000)
        unpin(stream.store, pieces)
        assert len(pieces) == 10
        assert len(await snapshot_rows(broker.server.taps, "q")) == 40


async def test_who_leaves_during_a_snapshot_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots being read stay on disk until the thread has read them; then neither files nor claims are left."""
    async with timed_broker(tmp_path) as broker, client_of(broker.server) as channel:
        await channel.declare_queue("q", durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"m", delivery_mode=2), "q")
        page_out(broker.server, "q")
        store = queue_of(broker.server, "q").level.store
        begun, gate = threading.Event(), threading.Event()
        read_stored = store.slots.read

        def slow_read(_store: Any, *arguments: Any) -> Any:
            begun.set()
            gate.wait(DEADLINE_S)
            return read_stored(*arguments)

        monkeypatch.setattr(type(store.slots), "read", slow_read)
        free = dict(store.log.live)
        taking = asyncio.create_task(broker.server.taps.snapshots.take("/", "q"))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        claimed = dict(store.log.live)
        assert claimed != free
        taking.cancel()
        await asyncio.wait([taking], timeout=0.1)
        assert store.log.live == claimed
        assert broker.server.taps._writer.turn.locked()
        gate.set()
        await asyncio.wait([taking])
        assert taking.cancelled()
        assert store.log.live == free
        assert list(tmp_path.glob("slots/snapshots/*")) == []  # noqa: ASYNC240 - a look behind the broker's back
        assert (len(broker.server.taps.snapshots), broker.server.taps.snapshots.under_way) == (0, 0)


async def test_what_has_no_snapshot_is_refused(tmp_path: Path) -> None:
    """A missing queue and the queue of a tap, which has its own slots, are refused."""
    async with timed_broker(tmp_path) as broker:
        await broker.server.taps.add("/", "amq.topic", "#", name="t")
        for vhost, queue, problem in (
            ("/", "q", "no queue 'q'"),
            ("v", "q", "no vhost 'v'"),
            ("/", "amq.tap.t", "read its slots"),
        ):
            with pytest.raises(TapRefused, match=problem):
                await broker.server.taps.snapshots.take(vhost, queue)


async def test_an_empty_queue_has_an_empty_snapshot() -> None:
    """An empty queue has a list without files, in a broker in memory as well."""
    async with Broker() as broker, client_of(broker.server) as channel:
        await channel.declare_queue("q")
        taken = await broker.server.taps.snapshots.take("/", "q")
        assert taken["files"] == []
        assert taken["store"] == broker.server.taps.view.store
