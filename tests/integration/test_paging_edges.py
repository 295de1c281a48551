"""Slots on disk during other operations: the owners of files, conflicts of reads, and the assumptions of a restart."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from broker.net.listener import Listener
from broker.server import BrokerServer
from broker.store.files import Files
from broker.store.message_log import MessageLog
from broker.store.record import encode_settled
from broker.store.stored_slots import StoredSlots
from tests.cold_files import ColdFiles
from tests.deadline import DEADLINE_S, wait_until_async
from tests.in_process import queue_of
from tests.raw_client import RawClient, method_frame
from tests.raw_talk import (
    Sections,
    connect,
    consume,
    declare,
    get,
    mortal_broker,
    numbered,
    page_out,
    publish,
    receive,
    talk,
)

SMALL: Sections = {
    "store": {"segment_bytes": 1 << 20, "checkpoint_interval_ms": 3_600_000},
    "slots": {"window_messages": 50},
}


class Gate:
    """Blocks a call of a store, or of its log, until the gate is opened; `once` blocks only the first call."""

    def __init__(self, owner: StoredSlots | MessageLog, name: str, *, once: bool = False) -> None:
        self.reached = Event()
        self._once = once
        self._open = Event()
        self._call: Callable[..., Any] = getattr(owner, name)
        setattr(owner, name, self._wait)

    def _wait(self, *arguments: Any) -> Any:
        if self._once and self.reached.is_set():
            return self._call(*arguments)
        self.reached.set()
        assert self._open.wait(DEADLINE_S)
        return self._call(*arguments)

    def open(self) -> None:
        """Release the blocked call and all later ones."""
        self._open.set()


async def reads_are_over(broker: BrokerServer) -> None:
    """Return when the reader has no read in progress."""
    await wait_until_async(lambda: not broker.engines["/"].reader._waiting, "the end of the reads")


# ---- names of files --------------------------------------------------------------------------------------------------


async def test_a_holding_level_survives_a_crash(tmp_path: Path) -> None:
    """No queue log is rebuilt, although the level has a number of 17 digits; deleting the queue removes its files."""
    files = tmp_path / "vhosts" / "%2F" / "queues"
    table: Any = {"x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 3_600_000}

    def fill(client: RawClient) -> None:
        client.declare_queue(1, "q", durable=True, arguments=table)
        publish(client, "q", [b"q"])
        get(client, "q", no_ack=False)
        client.method(1, commands.Basic.Nack(delivery_tag=1, requeue=True))
        client.declare_queue(1, "q", passive=True)

    async with mortal_broker(tmp_path, SMALL, crash=True) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, fill, client)
        await broker.engines["/"].committer.drain()
        page_out(broker, "q")
        await broker.engines["/"].checkpointer.take()
        assert len(list(files.iterdir())) == 1
    with capture_logs() as events:
        async with mortal_broker(tmp_path, SMALL) as broker:
            with await talk(broker, connect, broker) as client:
                await talk(broker, client.call, 1, commands.Queue.Delete(queue="q"), commands.Queue.DeleteOk)
            for _ in range(2):
                await broker.engines["/"].checkpointer.take()
            assert list(files.iterdir()) == []
    assert "store.queue_logs_rebuilt" not in {event["event"] for event in events}


# ---- owners of files -------------------------------------------------------------------------------------------------


async def test_a_transient_queue_does_not_lean_on_the_log(tmp_path: Path) -> None:
    """A message that a transient and a durable queue share stays readable after the durable one's log was removed."""
    sent = numbered(400)
    async with mortal_broker(tmp_path, SMALL) as broker:
        with await talk(broker, connect, broker) as client:

            def prepare() -> None:
                declare(client, "durable", durable=True, fanout=True)
                declare(client, "transient", fanout=True)
                publish(client, "", sent, exchange="amq.fanout")

            await talk(broker, prepare)
            page_out(broker, "transient")
            engine = broker.engines["/"]
            before = set(engine.store.log.segments)
            await talk(broker, client.call, 1, commands.Queue.Purge(queue="durable"), commands.Queue.PurgeOk)
            for _ in range(2):  # the log is freed by the older of two checkpoints
                await engine.checkpointer.take()
            assert len(before) >= 4
            assert len(before & set(engine.store.log.segments)) <= 1, "the log was given back"
            assert await talk(broker, consume, client, "transient", len(sent)) == sent


@pytest.mark.parametrize("order", [("transient", "durable"), ("durable", "transient")], ids="-then-".join)
async def test_a_durable_queue_does_not_lean_on_the_spill(tmp_path: Path, order: tuple[str, str]) -> None:
    """A persistent message that a durable and a transient queue share stays in the log, whichever pages it out first.

    Both queues read it back, and the durable one has it after a stop in order, which empties the spill.
    """
    sent = numbered(120, 1000)
    async with mortal_broker(tmp_path, SMALL) as broker:
        with await talk(broker, connect, broker) as client:

            def prepare() -> None:
                declare(client, "durable", durable=True, fanout=True)
                declare(client, "transient", fanout=True)
                publish(client, "", sent, exchange="amq.fanout")

            await talk(broker, prepare)
            for name in order:
                page_out(broker, name)
            assert await talk(broker, consume, client, "transient", len(sent)) == sent
            for body in sent[:3]:  # the first slot is read back and leaves memory again
                assert await talk(broker, lambda: get(client, "durable", no_ack=False)) == (body, False)
            page_out(broker, "durable")
    async with mortal_broker(tmp_path, SMALL) as broker:
        assert queue_of(broker, "durable").ready == len(sent)
        with await talk(broker, connect, broker) as client:
            assert await talk(broker, consume, client, "durable", len(sent)) == sent


KINDS: dict[str, dict[str, Any]] = {
    "transient": {"durable": False},
    "durable": {"durable": True},
    "quorum": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
    "priority": {"durable": True, "arguments": {"x-max-priority": 2}},
    "limited": {"durable": False, "arguments": {"x-max-length-bytes": 1 << 30}},
}


@pytest.mark.parametrize(("begin", "crash"), [(0, True), (1, False), (2, True), (3, False), (4, True)])
async def test_a_message_in_queues_of_every_kind_leaves_memory_in_each_of_them(
    tmp_path: Path, begin: int, crash: bool
) -> None:
    """Queues of every kind share persistent and transient messages, page them out one after another, beginning with
    any of them, read them back, and page them out again: each has all of them, and after a start those that it keeps.
    """
    names = [*KINDS][begin:] + [*KINDS][:begin]
    modes = [2, 2, 2, 1, 1, 1, 1, 2, 2, 1, 1, 1] * 10
    sent = numbered(len(modes), 500)
    held = 10  # of each queue, unacked while it leaves memory for the second time

    def prepare(client: RawClient) -> None:
        for name in names:
            client.call(1, commands.Queue.Declare(queue=name, **KINDS[name]), commands.Queue.DeclareOk)
            client.call(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"), commands.Queue.BindOk)

    def send(client: RawClient, part: slice) -> None:
        for mode, run in groupby(zip(modes[part], sent[part], strict=True), key=itemgetter(0)):
            publish(client, "", [body for _, body in run], exchange="amq.fanout", mode=mode)

    async with mortal_broker(tmp_path, SMALL, crash=crash) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, prepare, client)
            await talk(broker, send, client, slice(5))
            await broker.engines["/"].checkpointer.take()  # of a part of the first slot
            await talk(broker, send, client, slice(5, None))
            for name in names:
                page_out(broker, name)
            await broker.engines["/"].checkpointer.take()
            for name in names:
                got = await talk(broker, lambda name=name: [get(client, name, no_ack=False) for _ in range(held)])
                assert got == [(body, False) for body in sent[:held]], name
                page_out(broker, name)
            for name in reversed(names):
                assert await talk(broker, consume, client, name, len(sent) - held) == sent[held:], name
            await talk(broker, client.call, 1, commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)
            for name in names[3:]:
                assert await talk(broker, consume, client, name, held) == sent[:held], name
            if crash:
                await broker.engines["/"].committer.drain()
    async with mortal_broker(tmp_path, SMALL) as broker:
        with await talk(broker, connect, broker) as client:
            for name, kind in KINDS.items():
                left = sent[:held] if name in names[:3] else []
                if not kind["durable"]:
                    assert name not in broker.engines["/"].vhost.queues
                    continue
                if name != "quorum":
                    left = [body for mode, body in zip(modes, left, strict=False) if mode == 2]
                assert queue_of(broker, name).ready == len(left), name
                assert await talk(broker, consume, client, name, len(left)) == left, name


@pytest.mark.parametrize("durable", [False, True])
async def test_a_place_in_the_spill_is_shared_only_while_it_is_there(tmp_path: Path, durable: bool) -> None:
    """Two queues share one copy in the spill; one that is paged out after that copy was removed gets its own."""
    sent = numbered(400)
    async with mortal_broker(tmp_path, SMALL) as broker:
        with await talk(broker, connect, broker) as client:

            def prepare() -> None:
                declare(client, "first", "second", fanout=True)
                declare(client, "third", durable=durable, fanout=True)
                publish(client, "", sent, exchange="amq.fanout", mode=1)

            await talk(broker, prepare)
            spill = broker.engines["/"].store.spill
            page_out(broker, "first")
            written = dict(spill.segments)
            page_out(broker, "second")
            assert spill.segments == written, "one copy serves both"
            for name in ("first", "second"):
                await talk(broker, client.call, 1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
            assert spill.live == {}
            page_out(broker, "third")
            assert await talk(broker, consume, client, "third", len(sent)) == sent


def queue_logs(folder: Path) -> list[Path]:
    """Return the queue-log files."""
    return list(folder.rglob("*.queue"))


async def test_the_places_of_a_transient_queue_go_with_its_slots(tmp_path: Path) -> None:
    """Queue-log files of transient queues are removed when the queue is drained or deleted, without a checkpoint."""
    sent = numbered(100)
    async with mortal_broker(tmp_path, SMALL) as broker:
        engine = broker.engines["/"]
        with await talk(broker, connect, broker) as client:
            for drains in (True, False):
                await talk(broker, declare, client, "transient")
                await talk(broker, lambda: publish(client, "transient", sent))
                page_out(broker, "transient")
                assert queue_logs(tmp_path)
                if drains:
                    await talk(broker, consume, client, "transient", len(sent))
                else:
                    await talk(
                        broker, client.call, 1, commands.Queue.Delete(queue="transient"), commands.Queue.DeleteOk
                    )
                assert queue_logs(tmp_path) == []
        assert engine.checkpointer.count == 0


# ---- reads in progress -----------------------------------------------------------------------------------------------


async def test_a_queue_is_deleted_under_a_read(tmp_path: Path) -> None:
    """Deleting a queue that waits for messages from disk is answered, and the result of the read is dropped."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    async with mortal_broker(tmp_path, SMALL, files=ColdFiles()) as broker:
        with await talk(broker, connect, broker) as client, await talk(broker, connect, broker) as other:
            await talk(broker, declare, client, "q")
            await talk(broker, lambda: publish(client, "q", numbered(100)))
            page_out(broker, "q")
            gate = Gate(broker.engines["/"].store.slots, "read")
            consuming = commands.Basic.Consume(queue="q", consumer_tag="x")
            await talk(broker, client.call, 1, consuming, commands.Basic.ConsumeOk)
            assert await talk(broker, gate.reached.wait, DEADLINE_S)
            deleted = await talk(broker, other.call, 1, commands.Queue.Delete(queue="q"), commands.Queue.DeleteOk)
            gate.open()
            await reads_are_over(broker)
            assert deleted.message_count == 100
            await talk(broker, client.expect, commands.Basic.Cancel, 1)
            await talk(broker, declare, client, "q")  # both go on
            assert queue_of(broker, "q").ready == 0
        assert broker._failure is None
    gc.collect()
    assert told == []


@pytest.mark.interpreted("a method of the log is replaced")
async def test_a_read_keeps_the_segments_it_needs(tmp_path: Path) -> None:
    """A segment that is relocated and released during a read is removed only after the read."""
    sections = {**SMALL, "slots": {"window_messages": 10}}
    async with mortal_broker(tmp_path, sections) as broker:
        engine = broker.engines["/"]
        with await talk(broker, connect, broker) as client:
            sent = numbered(50, 100_000)

            def prepare() -> None:
                declare(client, "kept", "drained", durable=True)
                publish(client, "kept", sent[:1])
                publish(client, "drained", sent)
                consume(client, "drained", len(sent))

            await talk(broker, prepare)
            page_out(broker, "kept")
            (slot,) = [slot for slot in queue_of(broker, "kept").level.manager.slots.values() if slot.length]
            (segment,) = slot.segments
            await engine.checkpointer.take()
            gate = Gate(engine.store.log, "read_span", once=True)  # the reader already knows where the message is
            client.method(1, commands.Basic.Get(queue="kept", no_ack=True))
            assert await talk(broker, gate.reached.wait, DEADLINE_S)
            while engine.compactor.relocated < 1:
                await engine.compactor.run()
                await engine.checkpointer.take()
            assert slot.segments != {segment}
            gate.open()
            await talk(broker, client.expect, commands.Basic.GetOk, 1)
            assert (await talk(broker, client.expect_content, 1))[1] == sent[0]
            await engine.checkpointer.take()
            assert segment not in engine.store.log.segments


async def test_who_fetches_and_leaves_gives_the_lease_back(tmp_path: Path) -> None:
    """When the client of a basic.get on disk has disconnected after the read, the slot is free for other clients."""
    async with mortal_broker(tmp_path, SMALL) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, lambda: publish(client, "q", numbered(50)))
            page_out(broker, "q")
            gate = Gate(broker.engines["/"].store.slots, "read")
            client.method(1, commands.Basic.Get(queue="q"))
            assert await talk(broker, gate.reached.wait, DEADLINE_S)
            (transport,) = broker.listener.transports
            transport.abort()  # its socket is not read while it waits: a lost heartbeat ends the connection this way
            await talk(broker, client.expect_end)
        assert not broker.listener.transports
        slot = next(iter(queue_of(broker, "q").level.manager.slots.values()))
        assert slot.owner is not None
        gate.open()
        await reads_are_over(broker)
        assert slot.owner is None
        assert queue_of(broker, "q").ready == 50


async def test_basic_get_of_a_message_on_disk_leases_its_slot_once(tmp_path: Path) -> None:
    """The lease is held during the read, and ends with the answer."""
    async with mortal_broker(tmp_path, SMALL) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, lambda: publish(client, "q", numbered(5)))
            page_out(broker, "q")
            await talk(broker, client.call, 1, commands.Basic.Get(queue="q"), commands.Basic.GetOk)
        queue = queue_of(broker, "q")
        slot = queue.level.manager.front()
        assert slot is not None
        assert slot.owner is None
        again = queue.level.manager.get(queue.worker.owner)
        assert again is slot
        assert slot.owner is not None
        assert slot.epoch == 2  # the first lease was that of basic.get


async def test_a_slot_that_came_back_counts_for_what_it_holds(tmp_path: Path) -> None:
    """A slot read from disk is accounted with its remaining messages, however many others it had."""
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, lambda: publish(client, "q", numbered(90, 10) + numbered(10, 100_000)))
            await talk(broker, consume_acked, client, 90)
            page_out(broker, "q")
            await talk(broker, get, client, "q")
            engine, (slot, _) = broker.engines["/"], queue_of(broker, "q").level.manager.slots.values()
            engine.pager.tick()
            assert slot.contents is not None
            held = sum(message.charge for message in slot.contents if message is not None)
            assert held > 900_000
            assert abs(engine.pager.resident_bytes - held) < held // 10


@pytest.mark.parametrize("files", [Files(), ColdFiles()], ids=["cached", "cold"])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_slot_that_came_back_has_no_settled_messages(tmp_path: Path, files: Files, durable: bool) -> None:
    """Messages settled before or while a slot is read back return neither to memory nor to consumers."""
    sent = numbered(SMALL["slots"]["window_messages"], 1000)
    async with mortal_broker(tmp_path, SMALL, files=files) as broker:
        engine = broker.engines["/"]
        with await talk(broker, connect, broker) as client, await talk(broker, connect, broker) as other:
            await talk(broker, lambda: declare(client, "q", durable=durable))
            await talk(broker, lambda: publish(client, "q", sent))
            for _ in range(20):
                await talk(broker, lambda: get(client, "q", no_ack=False))
            await talk(broker, acked, client, [1, 2])  # these have no place on disk
            page_out(broker, "q")
            slot = next(iter(queue_of(broker, "q").level.manager.slots.values()))
            await talk(broker, acked, client, [3, 4, 5])
            gate = Gate(engine.store.slots, "read")
            other.method(1, commands.Basic.Get(queue="q", no_ack=True))
            if type(files) is ColdFiles:
                assert await talk(broker, gate.reached.wait, DEADLINE_S)
                assert slot.contents is None
            await talk(broker, acked, client, range(10, 16))
            gate.open()
            await talk(broker, other.expect, commands.Basic.GetOk, 1)
            assert (await talk(broker, other.expect_content, 1))[1] == sent[20]
            settled = {*range(5), *range(9, 15), 20}
            assert slot.contents is not None
            assert [at for at, message in enumerate(slot.contents) if message is None] == sorted(settled)
            assert [message.body for message in slot.contents if message is not None] == [
                body for at, body in enumerate(sent) if at not in settled
            ]
            engine.pager.tick()
            held = sum(message.charge for message in slot.contents if message is not None)
            assert abs(engine.pager.resident_bytes - held) <= len(sent)
            await talk(broker, client.call, 1, commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)
            left = [body for at, body in enumerate(sent) if at not in settled]
            assert await talk(broker, consume, other, "q", len(left)) == left


def acked(client: RawClient, tags: Sequence[int]) -> None:
    """Settle deliveries, and return when that is done."""
    for tag in tags:
        client.method(1, commands.Basic.Ack(delivery_tag=tag))
    client.call(1, commands.Basic.Qos(), commands.Basic.QosOk)


def consume_acked(client: RawClient, count: int) -> None:
    """Fetch and settle this many messages."""
    for _ in range(count):
        get(client, "q")


# -- queues with few messages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
async def test_small_queues_leave_memory_without_files(tmp_path: Path, durable: bool) -> None:
    """Queues with a few messages on disk have no file until a checkpoint needs it; all messages come back in order."""
    names = [f"q{number}" for number in range(20)]

    def fill(client: RawClient) -> None:
        declare(client, *names, durable=durable)
        for name in names:
            publish(client, name, numbered(5, 100), mode=1 + durable)

    def files() -> int:
        return len(list(tmp_path.rglob("*.queue")))

    async with mortal_broker(tmp_path, SMALL, crash=durable) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, fill, client)
            for name in names:
                page_out(broker, name)
            assert files() == 0
            await broker.engines["/"].checkpointer.take()
            assert files() == (len(names) if durable else 0)
            for name in names[10:]:
                assert await talk(broker, consume, client, name, 5) == numbered(5, 100)
    if durable:
        async with mortal_broker(tmp_path, SMALL) as broker:
            with await asyncio.to_thread(connect, broker) as client:
                for name in names[:10]:
                    assert await talk(broker, consume, client, name, 5) == numbered(5, 100)


# -- the assumptions of a start --------------------------------------------------------------------------------------


@pytest.mark.interpreted("a function of the recorder is replaced")
async def test_ids_of_transient_messages_are_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settlements of transient messages on disk are not logged: after a crash confirmed messages reuse their ids."""
    logged: list[int] = []

    def spy(synced: int, now_ms: int, number: int, ids: Sequence[int]) -> bytes:
        logged.extend(ids)
        return encode_settled(synced, now_ms, number, ids)

    monkeypatch.setattr("broker.store.recorder.encode_settled", spy)
    async with mortal_broker(tmp_path, SMALL, crash=True) as broker:
        with await talk(broker, connect, broker) as client:

            def prepare() -> None:
                declare(client, "q", durable=True)
                publish(client, "q", [b"persistent"])
                publish(client, "q", numbered(100, 100), mode=1)
                publish(client, "q", [b"settled"])

            await talk(broker, prepare)
            page_out(broker, "q")

            def settle() -> None:
                client.call(1, commands.Basic.Consume(queue="q", consumer_tag="x"), commands.Basic.ConsumeOk)
                for deliver, _ in receive(client, 102)[1:]:
                    client.method(1, commands.Basic.Ack(delivery_tag=deliver.delivery_tag or 0))
                client.call(1, commands.Basic.Qos(), commands.Basic.QosOk)

            await talk(broker, settle)
            assert queue_of(broker, "q").unacked == 1
            await broker.engines["/"].committer.drain()
    assert logged == [102]


async def test_a_settlement_does_not_outlive_its_message(tmp_path: Path) -> None:
    """A logged settlement of an id without a record has no effect on the later message with that id."""
    async with mortal_broker(tmp_path, crash=True) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, lambda: publish(client, "q", [b"the only one"]))
        log = broker.engines["/"].store.log
        log.append(encode_settled(0, 0, queue_of(broker, "q").number, range(2, 5)))
        log.append(encode_settled(0, 0, queue_of(broker, "q").number, [7, 9]))
        await broker.engines["/"].committer.drain()
    async with mortal_broker(tmp_path, crash=True) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: publish(client, "q", numbered(10, 10)))
    async with mortal_broker(tmp_path) as broker:
        assert queue_of(broker, "q").ready == 11


async def test_marks_outlive_a_clean_stop_behind_a_crash(tmp_path: Path) -> None:
    """After a crash every message may have been delivered, and a later clean stop keeps the redelivered flags."""
    async with mortal_broker(tmp_path, crash=True) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, lambda: publish(client, "q", [b"had", b"behind it"]))
            assert await talk(broker, lambda: get(client, "q", no_ack=False)) == (b"had", False)
    for _ in range(2):
        async with mortal_broker(tmp_path) as broker:
            assert queue_of(broker, "q").ready == 2
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client:
            assert await talk(broker, get, client, "q") == (b"had", True)


async def test_a_start_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails after recovery leaves a clean folder clean: undelivered messages are not redelivered ones."""
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, lambda: publish(client, "q", [b"fresh"]))

    async def refuse(_listener: Listener, *_bound: object) -> None:
        raise OSError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(Listener, "serve", refuse)
        with pytest.raises(OSError, match="not today"):
            async with mortal_broker(tmp_path):
                raise AssertionError("it started")
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client:
            assert await talk(broker, get, client, "q") == (b"fresh", False)


def damage(folder: Path, before: bytes, after: bytes) -> None:
    """Change bytes in the log."""
    for path in folder.rglob("log/*.log"):
        path.write_bytes(path.read_bytes().replace(before, after))


async def test_an_unreadable_message_is_lost_alone(tmp_path: Path) -> None:
    """With quarantine one broken record costs its message: the others come once, in order, with their own tags."""
    sent = [b"message-%d" % number for number in range(10)]
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await talk(broker, lambda: publish(client, "q", sent))
    damage(tmp_path, b"message-4", b"mEssage-4")
    with capture_logs() as events:
        async with mortal_broker(tmp_path, {"store": {"on_corruption": "quarantine"}}) as broker:
            with await talk(broker, connect, broker) as client:

                def converse() -> list[tuple[int | None, bytes]]:
                    client.call(1, commands.Basic.Consume(queue="q", consumer_tag="x"), commands.Basic.ConsumeOk)
                    got = receive(client, 9)
                    return [(deliver.delivery_tag, body) for deliver, body in got]

                got = await talk(broker, converse)
                assert got == list(enumerate(sent[:4] + sent[5:], 1))
                inside = queue_of(broker, "q")
                assert (inside.ready, inside.unacked) == (0, 9)
                later = asyncio.create_task(talk(broker, receive, client, 1))
                with await talk(broker, connect, broker) as other:
                    await talk(broker, lambda: publish(other, "q", [b"later"]))
                ((deliver, body),) = await later
                assert (deliver.delivery_tag, body) == (10, b"later")
    assert [event["count"] for event in events if event["event"] == "messages.lost"] == [1]
    assert not [event for event in events if event["event"] == "worker.died"]


async def test_a_consumer_that_waits_for_the_disk_comes_before_basic_get(tmp_path: Path) -> None:
    """Consume and get in one read, of messages on disk: they are read once, and the consumer with credit gets all."""
    async with mortal_broker(tmp_path, SMALL) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            bodies = numbered(3, 10)
            await talk(broker, publish, client, "q", bodies)
            page_out(broker, "q")

            def ask() -> None:
                client.send(
                    method_frame(1, commands.Basic.Consume(queue="q", no_ack=True)),
                    method_frame(1, commands.Basic.Get(queue="q")),
                )
                client.expect(commands.Basic.ConsumeOk, 1)
                assert [body for _, body in receive(client, 3)] == bodies
                client.expect(commands.Basic.GetEmpty, 1)

            await talk(broker, ask)
