"""Answers about durable changes on a disk that the test controls: what is sent before the sync, and after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from broker.cli.control_client import ask as ask_control
from broker.server import BrokerServer
from broker.store.damage import CorruptStore, StoreFailed
from broker.testing import Broker
from tests.deadline import DEADLINE_S, wait_until_async
from tests.gated_files import IO_ERROR, GatedFiles
from tests.http_talk import ask
from tests.in_process import running_broker
from tests.raw_client import RawClient, method_frame, publish_frames
from tests.raw_talk import connect, mortal_broker, talk

Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue

MANY: Final = 5000
PERSISTENT: Final = Basic.Properties(delivery_mode=2)
DURABLE: Final = Queue.Declare(queue="q", durable=True)


def entered(broker: Broker) -> RawClient:
    """Return a client with channels 1 and 2 open."""
    client = RawClient("127.0.0.1", broker.port).with_channel()
    client.open_channel(2)
    return client


def silent(*clients: RawClient) -> bool:
    """Return whether clients got nothing yet: an answer on another channel would have followed it."""
    for client in clients:
        client.call(2, Basic.Qos(), Basic.QosOk)
    return True


def test_answers_wait_for_the_sync_and_methods_do_not(tmp_path: Path) -> None:
    """A declared queue is used at once, here and by others; answers and the deliveries after them arrive in order."""
    files = GatedFiles()
    with (
        Broker(files=files, server={"data_dir": tmp_path}) as broker,
        entered(broker) as client,
        entered(broker) as other,
    ):
        files.gate.clear()
        try:
            client.send(
                method_frame(1, DURABLE),
                method_frame(1, Queue.Bind(queue="q", exchange="amq.fanout")),
                method_frame(1, Basic.Consume(queue="q", consumer_tag="c", no_ack=True)),
                method_frame(1, commands.Confirm.Select()),
                publish_frames(1, "amq.fanout", "", b"own", properties=Basic.Properties(delivery_mode=1)),
                publish_frames(1, "amq.fanout", "", b"safe", properties=PERSISTENT),
            )
            silent(client)
            other.method(1, Queue.Declare(queue="q", passive=True))
            silent(client, other)
            assert broker.bindings("q") == [("amq.fanout", "")]
            other.call(2, Basic.Get(queue="q", no_ack=True), Basic.GetOk)
            assert other.expect_content(2)[1] == b"own"
        finally:
            files.gate.set()
        for answer in (Queue.DeclareOk, Queue.BindOk, Basic.ConsumeOk, commands.Confirm.SelectOk):
            client.expect(answer, 1)
        assert other.expect(Queue.DeclareOk, 1).consumer_count == 1
        found = [client.next().value for _ in range(4)]
        assert b"safe" in found, "delivered once its consumer was told"
        assert [ack.delivery_tag for ack in found if isinstance(ack, Basic.Ack)][-1] == 2


def test_a_declare_takes_one_sync_and_at_most_two(tmp_path: Path) -> None:
    """One that arrives while another is being synced waits for both; what changes nothing takes none."""
    files = GatedFiles()
    with (
        Broker(files=files, server={"data_dir": tmp_path}) as broker,
        entered(broker) as client,
        entered(broker) as other,
    ):
        broker.wait_idle()
        before = files.passed
        client.call(1, DURABLE, Queue.DeclareOk)
        assert files.passed - before == 1
        for method in (DURABLE, Queue.Declare(queue="q", passive=True), Queue.Declare(queue="t", exclusive=True)):
            client.call(1, method, Queue.DeclareOk)
        client.call(1, Queue.Unbind(queue="q", exchange="amq.fanout"), Queue.UnbindOk)
        client.call(1, Queue.Delete(queue="none"), Queue.DeleteOk)
        client.call(1, Queue.Purge(queue="q"), Queue.PurgeOk)
        broker.wait_idle()
        assert files.passed - before == 1
        files.gate.clear()
        try:
            client.method(1, Queue.Declare(queue="first", durable=True))
            silent(client)
            other.method(1, Queue.Declare(queue="second", durable=True))
            silent(client, other)
        finally:
            files.gate.set()
        client.expect(Queue.DeclareOk, 1)
        other.expect(Queue.DeclareOk, 1)
        assert files.passed - before <= 3


def test_pipelined_declares_share_their_syncs(tmp_path: Path) -> None:
    """Thousands of them are answered in order, with one sync for very many."""
    files = GatedFiles()
    with Broker(files=files, server={"data_dir": tmp_path}) as broker, entered(broker) as client:
        broker.wait_idle()
        before = files.passed
        client.send(*(method_frame(1, Queue.Declare(queue=f"q{number}", durable=True)) for number in range(MANY)))
        for number in range(MANY):
            assert client.expect(Queue.DeclareOk, 1).queue == f"q{number}"
        assert files.passed - before <= MANY // 10


# -- HTTP and the command line -----------------------------------------------------------------------------------------


Act = Callable[[BrokerServer, Path], Awaitable[Any]]


def over_http(method: str, path: str, body: Any = None) -> Act:
    """Return a request."""

    async def act(broker: BrokerServer, _folder: Path) -> Any:
        return (await ask(broker, method, f"/api/{path}", body)).status

    return act


def by_command(verb: str, **arguments: Any) -> Act:
    """Return a request at the control socket."""

    async def act(_broker: BrokerServer, folder: Path) -> Any:
        return await asyncio.to_thread(ask_control, folder, verb, **arguments)

    return act


ACTS: Final[dict[str, tuple[Act, str]]] = {
    "PUT queue": (over_http("PUT", "queues/%2F/new", {"durable": True}), "new"),
    "PUT queue again": (over_http("PUT", "queues/%2F/waits", {"durable": True}), "waits"),
    "DELETE queue": (over_http("DELETE", "queues/%2F/q"), ""),
    "PUT exchange": (over_http("PUT", "exchanges/%2F/new", {"type": "fanout", "durable": True}), ""),
    "POST binding": (over_http("POST", "bindings/%2F/e/amq.fanout/q/q", {}), ""),
    "DELETE contents": (over_http("DELETE", "queues/%2F/q/contents"), ""),
    "queue declare": (by_command("declare_queue", queue="new"), "new"),
    "queue delete": (by_command("delete_queue", queue="q"), ""),
    "exchange declare": (by_command("declare_exchange", exchange="new"), ""),
    "bind": (by_command("bind", exchange="amq.fanout", destination="q"), ""),
    "purge": (by_command("purge_queue", queue="q"), ""),
}


@pytest.mark.parametrize("name", ACTS)
async def test_other_ways_in_answer_after_the_sync_too(tmp_path: Path, name: str) -> None:
    """A request is not over before the sync; that another client waits for the same change makes no difference."""
    act, made = ACTS[name]
    files = GatedFiles()
    folder = tmp_path / "data"
    async with running_broker(folder, files, http={"enabled": True, "port": 0}) as broker:
        engine = broker.engines["/"]
        with await asyncio.to_thread(connect, broker) as client:

            def prepare() -> None:
                client.call(1, DURABLE, Queue.DeclareOk)
                client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
                client.send(publish_frames(1, "", "q", b"x", properties=PERSISTENT))
                client.expect(Basic.Ack)

            await asyncio.to_thread(prepare)
            await engine.committer.drain()
            files.gate.clear()
            syncs, position = files.passed, engine.store.log.position
            try:
                client.method(1, Queue.Declare(queue="waits", durable=True))
                await wait_until_async(lambda: engine.store.log.position > position, "the declare")
                position = engine.store.log.position
                request = asyncio.ensure_future(act(broker, folder))
                if name.endswith("again"):
                    await wait_until_async(lambda: len(engine.vhost.answers._connections) == 2, "the question")
                else:
                    await wait_until_async(lambda: engine.store.log.position > position, "the change")
                assert not made or made in engine.vhost.queues
                assert not request.done()
                assert files.passed == syncs
            finally:
                files.gate.set()
            await asyncio.wait_for(request, DEADLINE_S)
            assert not engine.store.log.needs_sync
            await asyncio.to_thread(client.expect, Queue.DeclareOk, 1)


# -- failures ----------------------------------------------------------------------------------------------------------


async def waiting(broker: BrokerServer, files: GatedFiles, stack: ExitStack) -> list[RawClient]:
    """Return clients that each wait for an answer, the second one for its connection's close too."""
    clients = [stack.enter_context(await talk(broker, connect, broker)) for _ in range(2)]
    log = broker.engines["/"].store.log
    await broker.engines["/"].committer.drain()
    files.gate.clear()
    position = log.position
    clients[0].method(1, DURABLE)
    await wait_until_async(lambda: log.position > position, "the declare")
    clients[1].method(1, Queue.Declare(queue="q", passive=True))
    clients[1].method(0, commands.Connection.Close(200, "", 0, 0))
    await wait_until_async(
        lambda: any(not one.connection.channels and one.connection.withholds for one in broker.listener.sessions()),
        "a connection that closes behind an answer",
    )
    return clients


async def test_a_failed_sync_lets_no_answer_out(tmp_path: Path) -> None:
    """The broker ends, and the clients read the end of their connections, nothing else."""
    files = GatedFiles()
    with ExitStack() as stack, capture_logs():
        async with mortal_broker(tmp_path, files=files) as broker:
            clients = await waiting(broker, files, stack)
            files.fails = IO_ERROR
            files.gate.set()
            assert isinstance(await asyncio.wait_for(broker.wait_failed(), DEADLINE_S), StoreFailed)
        for client in clients:
            await asyncio.to_thread(client.expect_end)


async def test_a_vhost_that_goes_offline_closes_as_ever(tmp_path: Path) -> None:
    """Its clients read why at once, though the disk does nothing, and no answer before that."""
    files = GatedFiles()
    with ExitStack() as stack, capture_logs():
        async with mortal_broker(tmp_path, files=files) as broker:
            await broker.vhosts.add("other")
            clients = await waiting(broker, files, stack)
            broker.engines["/"].fail(CorruptStore(tmp_path, 0, 0, "it is on fire"))
            try:
                close = await asyncio.to_thread(clients[0].expect, commands.Connection.Close, 0)
                assert "vhost '/' is down" in close.reply_text
                await asyncio.to_thread(clients[1].expect, commands.Connection.CloseOk, 0)
                await asyncio.to_thread(clients[1].expect_end)
            finally:
                files.gate.set()
