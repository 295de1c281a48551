"""Store failures at difficult moments: during a client's request, a hang-up or a stop."""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from pamqp import commands

from broker.store.damage import StoreFailed
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S, wait_until_async
from tests.gated_files import IO_ERROR, GatedFiles
from tests.raw_client import RawClient, publish_frames
from tests.raw_talk import connect, declare, mortal_broker, numbered, page_out, publish, talk

pytestmark = pytest.mark.fault

PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("how", ["purge", "hang up"])
async def test_a_failure_under_a_clients_request_ends_the_broker(tmp_path: Path, how: str) -> None:
    """A file that cannot be removed, for a purge or a disconnect, ends the broker: no confirm follows."""
    files = GatedFiles("remove", lambda _path: True)
    with ExitStack() as clients:
        async with mortal_broker(tmp_path, {"store": {"segment_bytes": 1 << 20}}, files=files) as broker:
            owner = clients.enter_context(await talk(broker, connect, broker))
            publisher = clients.enter_context(await talk(broker, connect, broker))

            def prepare() -> None:
                exclusive = commands.Queue.Declare(queue="spilled", exclusive=True)
                owner.call(1, exclusive, commands.Queue.DeclareOk)
                publish(owner, "spilled", numbered(300), mode=1)
                declare(publisher, "durable", durable=True)
                publisher.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

            await talk(broker, prepare)
            page_out(broker, "spilled")
            files.fails = IO_ERROR
            if how == "purge":
                owner.method(1, commands.Queue.Purge(queue="spilled"))
            else:
                owner.socket.close()
            failure = await asyncio.wait_for(broker.wait_failed(), DEADLINE_S)
            assert isinstance(failure, StoreFailed)
            assert failure.reason == IO_ERROR
            publisher.send(publish_frames(1, "", "durable", b"late", properties=PERSISTENT))
            port = publisher.socket.getsockname()[1]
            (transport,) = [one for one in broker.listener.transports if one.peer.port == port]
            received = transport.connection.received
            await wait_until_async(lambda: transport.connection.received > received, "the late publish")
            files.fails = ""
        await asyncio.to_thread(publisher.expect_end)  # and no confirm before it


@pytest.mark.usefixtures("quiet")
async def test_a_failure_in_a_stop_ends_the_stop(tmp_path: Path) -> None:
    """When the log cannot be written during a stop, the stop fails; it does not wait for ever."""
    files = GatedFiles("write")
    async with mortal_broker(tmp_path, files=files) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, lambda: declare(client, "q", durable=True))
            await broker.engines["/"].committer.drain()
            files.fails = IO_ERROR
            broker.engines["/"].store.log.append(b"a record")
            with pytest.raises(StoreFailed, match=IO_ERROR):
                await asyncio.wait_for(broker.stop(), DEADLINE_S)
            with pytest.raises(StoreFailed, match=IO_ERROR):
                await broker.engines["/"].committer.drain()
        assert broker._failure is not None


# ---- the process -----------------------------------------------------------------------------------------------------

INJECTION: Final = """
from broker.delivery.engine import Engine
from broker.net.listener import Listener

stop_reading = Listener.stop_reading


def fail(engine):
    raise RuntimeError("a defect")


def stop(listener):
    stop_reading(listener)
    Engine.turn = fail
    Engine.has_work = property(fail)  # an idle engine is asked for no more than this


Listener.stop_reading = stop
"""


@pytest.mark.interpreted("a method of the listener is replaced")
def test_a_defect_in_a_stop_ends_the_process(tmp_path: Path) -> None:
    """When a task fails during the good-byes of a SIGTERM, the process ends with exit code 1 and the reason."""
    injected = tmp_path / "injected"
    injected.mkdir()
    (injected / "sitecustomize.py").write_text(INJECTION, encoding="utf-8")
    project = Path(__file__).resolve().parents[2]
    process = BrokerProcess(tmp_path / "folder", environment={"PYTHONPATH": f"{injected}:{project}"})
    try:
        process.start()
        with RawClient(process.address.host, process.address.port) as client:
            client.open()
            assert process.terminate() == 1
            client.expect_end()
        assert "server.crashed" in process.stderr()
        assert "a defect" in process.stderr()
    finally:
        process.kill()


def test_a_log_that_may_not_grow_ends_the_process(broker_process: BrokerProcess) -> None:
    """A refused write ends the broker with exit code 1, and the client reads why; a restart has what was confirmed."""
    broker_process.start()
    address = broker_process.address
    with RawClient(address.host, address.port).with_channel() as client:
        declare(client, "q", durable=True)
        publish(client, "q", numbered(50, 1000))
        (log,) = broker_process.folder.rglob("log/*.log")
        limit_bytes = os.stat(log).st_size
        assert limit_bytes > 50_000
        resource.prlimit(broker_process.running.pid, resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        client.send(publish_frames(1, "", "q", b"one too many", properties=PERSISTENT))
        close = client.expect(commands.Connection.Close, 0)
        assert (close.reply_code, close.reply_text) == (541, "INTERNAL_ERROR - the store failed: File too large")
    assert broker_process.wait() == 1
    assert "the store failed, stopping: " in broker_process.stderr()
    broker_process.start()
    with RawClient(address.host, broker_process.address.port).with_channel() as client:
        declared = client.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
        assert declared.message_count == 50
