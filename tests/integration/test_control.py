"""The control socket, with the command line's own client at the other end."""

import asyncio
import json
import os
import signal
import socket
import stat
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from broker.cli import control_client
from broker.cli.control_client import Unanswered, ask
from broker.cli.main import main
from broker.net import control as control_module
from broker.net.control import CLIENTS_MAX, ControlSocket
from broker.net.control_address import SOCKET_NAME, SOCKET_PATH_MAX_BYTES
from broker.operations.operation import refusing
from broker.operations.request import ROWS_AT_ONCE, OperationRefused, Request, Verb
from broker.store.damage import StoreFailed
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S
from tests.http_talk import ask as asked
from tests.in_process import running_broker, told


def echo(request: Request) -> Any:
    """Answer with the request's text."""
    return dict(request._fields)


def refuse(_request: Request) -> Any:
    """Refuse the request."""
    raise OperationRefused("no queue 'q'")


def crash(_request: Request) -> Any:
    """Fail because of a defect."""
    raise ZeroDivisionError


async def work(request: Request) -> Any:
    """Report progress, then answer."""
    for done in range(request.integer("steps", 2)):
        request.asker.write_progress({"done": done})
        await asyncio.sleep(0)
    return "done"


async def work_on(request: Request) -> Any:
    """Work until the client has received enough."""
    request.asker.write_progress({"begun": True})
    for _ in range(1_000_000):
        if request.asker.interrupted():
            return "stopped"
        await asyncio.sleep(0)
    return "came to the end"


async def hand_over(request: Request) -> Any:
    """Send a message, and answer whether the client received it."""
    request.asker.write_progress({"message": "m"})
    return await request.asker.accepted()


def rows(request: Request) -> Any:
    """Answer with a long list."""
    return [{"number": number, "text": "x" * 100} for number in range(request.integer("count", 0))]


VERBS: dict[str, Verb] = {
    "echo": echo,
    "refuse": refuse,
    "crash": crash,
    "work": work,
    "work_on": work_on,
    "hand_over": hand_over,
    "rows": rows,
}


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """Provide a folder in which a control socket listens."""
    control = ControlSocket(tmp_path, VERBS)
    await control.start()
    yield tmp_path
    await control.close()
    assert not (tmp_path / SOCKET_NAME).exists()


async def raw(folder: Path, request: bytes) -> list[Any]:
    """Return what the socket answers to raw bytes until it ends the conversation."""
    reader, writer = await asyncio.open_unix_connection(str(folder / SOCKET_NAME))
    try:
        writer.write(request)
        writer.write_eof()
        return [json.loads(line) for line in (await reader.read()).splitlines()]
    finally:
        writer.close()
        await writer.wait_closed()


async def test_verb_is_answered(folder: Path) -> None:
    """A verb gets the request, and its result is returned."""
    assert await asyncio.to_thread(ask, folder, "echo", queue="q\n\u2028") == {"verb": "echo", "queue": "q\n\u2028"}


async def test_client_that_ends_its_side_has_enough(folder: Path) -> None:
    """A verb learns that its client has shut down its side, and its answer still arrives."""
    assert (await raw(folder, b'{"verb":"work_on"}\n'))[-1] == {"ok": True, "result": "stopped"}


async def test_verb_waits_until_what_it_told_was_taken(folder: Path) -> None:
    """A client that confirms has received the message; a disconnected client has not."""
    heard: list[Any] = []
    assert await asyncio.to_thread(ask, folder, "hand_over", on_progress=heard.append, accepts=True) is True
    assert heard == [{"message": "m"}]
    assert (await raw(folder, b'{"verb":"hand_over"}\n'))[-1] == {"ok": True, "result": False}


async def test_silence_is_reported_with_the_limit_of_the_request(folder: Path) -> None:
    """The text names the limit that was given, not the default."""
    with pytest.raises(Unanswered, match=r"did not answer within 0\.05 s$"):
        await asyncio.to_thread(ask, folder, "work_on", silence_s=0.05)


def test_silence_without_a_limit() -> None:
    """A connection that the network has cut off times out although the request waits for ever."""
    with pytest.raises(Unanswered, match=r"^host did not answer$"), control_client._answering("host", None):
        raise TimeoutError


async def test_only_the_owner_may_ask(folder: Path) -> None:
    """The socket's mode is 0600, whatever the umask."""
    assert stat.S_IMODE((folder / SOCKET_NAME).stat().st_mode) == 0o600


async def test_refusal_reaches_the_user(folder: Path) -> None:
    """The refusal of a verb is the one line that the user reads."""
    with pytest.raises(Unanswered, match=r"^no queue 'q'$"):
        await asyncio.to_thread(ask, folder, "refuse")


async def test_a_failed_store_is_told_in_words() -> None:
    """A verb that cannot read or write the store says which file and why, and not which exception that is."""

    def fail(_request: Request) -> None:
        raise StoreFailed("log/1.log", "No space left on device")

    with pytest.raises(OperationRefused) as refused:
        await refusing(fail)(Request({}))
    assert str(refused.value) == "the store cannot be read or written: log/1.log: No space left on device"


async def test_defect_in_a_verb_ends_neither_broker_nor_conversation(folder: Path) -> None:
    """A crash is reported in words, and the next request on the same connection is answered."""
    answers = await raw(folder, b'{"verb":"crash"}\n{"verb":"echo"}\n')
    assert answers == [
        {"ok": False, "error": "unexpected error, see the broker's log"},
        {"ok": True, "result": {"verb": "echo"}},
    ]


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"\xff", b'"echo"', b"[" * 5000, b'{"verb":["echo"]}', b'{"verb":"drop"}', b"{}"]
)
async def test_what_is_no_request_is_refused(folder: Path, line: bytes) -> None:
    """Broken JSON and unknown verbs are refused, and the connection stays open."""
    refused, answered = await raw(folder, line + b'\n{"verb":"echo"}\n')
    assert refused["ok"] is False
    assert answered["ok"] is True


async def test_request_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line over the limit is refused and ends the connection."""
    monkeypatch.setattr(control_module, "REQUEST_MAX_BYTES", 1 << 16)
    control = ControlSocket(tmp_path, VERBS)
    await control.start()
    (answer,) = await raw(tmp_path, b"x" * ((1 << 16) + 2))
    assert answer == {"ok": False, "error": f"a request has at most {1 << 16} bytes"}
    await control.close()


async def test_command_says_why_a_long_request_is_not_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the broker stops reading in the middle of a request, the command still prints the broker's answer."""
    monkeypatch.setattr(control_module, "REQUEST_MAX_BYTES", 1 << 16)
    control = ControlSocket(tmp_path, VERBS)
    await control.start()
    with pytest.raises(Unanswered, match=r"^a request has at most 65536 bytes$"):
        await asyncio.to_thread(ask, tmp_path, "echo", text="x" * (8 << 20))
    await control.close()


async def test_progress_is_told_before_the_answer(folder: Path) -> None:
    """The client gets the progress of a slow verb, in order, and then its result."""
    told: list[Any] = []
    assert await asyncio.to_thread(ask, folder, "work", on_progress=told.append, steps=3) == "done"
    assert told == [{"done": 0}, {"done": 1}, {"done": 2}]


@pytest.mark.parametrize("count", [0, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE])
async def test_long_list_arrives_whole(folder: Path, count: int) -> None:
    """A list that is written in pieces arrives as the list that the verb returned."""
    found = await asyncio.to_thread(ask, folder, "rows", count=count)
    assert [row["number"] for row in found] == list(range(count))


async def test_request_of_a_megabyte_is_heard(folder: Path) -> None:
    """A definitions file fits into a request."""
    answer = await asyncio.to_thread(ask, folder, "echo", text="x" * (1 << 20))
    assert len(answer["text"]) == 1 << 20


async def test_clients_are_bounded(folder: Path) -> None:
    """Silent clients are limited in number; when they disconnect, others are served."""
    idle = [await asyncio.open_unix_connection(str(folder / SOCKET_NAME)) for _ in range(CLIENTS_MAX)]
    with pytest.raises(Unanswered):
        await asyncio.to_thread(ask, folder, "echo")
    for reader, writer in idle:
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert await asyncio.to_thread(ask, folder, "echo") == {"verb": "echo"}


async def test_stopping_ends_idle_clients(tmp_path: Path) -> None:
    """A client that stays connected does not delay the stop."""
    control = ControlSocket(tmp_path, VERBS)
    await control.start()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
    writer.write(b'{"verb":"echo"}\n')
    await reader.readline()
    await control.close()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_socket_of_a_killed_broker_is_replaced(tmp_path: Path) -> None:
    """A socket file without a listener is replaced, and a request to it reports that no broker runs."""
    killed = ControlSocket(tmp_path, VERBS)._bind()
    killed.close()
    with pytest.raises(Unanswered, match="no broker runs on data folder"):
        await asyncio.to_thread(ask, tmp_path, "echo")
    control = ControlSocket(tmp_path, VERBS)
    await control.start()
    assert await asyncio.to_thread(ask, tmp_path, "echo") == {"verb": "echo"}
    await control.close()


def long_folder(tmp_path: Path) -> Path:
    """Return a folder whose path does not fit into a socket address."""
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    assert len(os.fsencode(folder / SOCKET_NAME)) > SOCKET_PATH_MAX_BYTES
    return folder


async def test_long_path_is_reached_through_its_folder(tmp_path: Path) -> None:
    """The length limit of socket addresses does not limit data folders; no descriptor is left open."""
    folder = long_folder(tmp_path)
    control = ControlSocket(folder, VERBS)
    before = len(os.listdir("/proc/self/fd"))
    await control.start()
    assert await asyncio.to_thread(ask, folder, "echo") == {"verb": "echo"}
    await control.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list(folder.iterdir())


async def test_broker_without_a_socket_serves_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a long path cannot be reached, the start warns and continues, and a request gives the reason in one line."""
    folder = long_folder(tmp_path)
    is_folder = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/proc/self/fd" and is_folder(path))
    control = ControlSocket(folder, VERBS)
    await control.start()
    with pytest.raises(Unanswered, match=f"longer than the {SOCKET_PATH_MAX_BYTES} bytes of a socket address"):
        ask(folder, "echo")
    await control.close()


@pytest.mark.parametrize("why", ["a folder is in its place", "it cannot listen"])
async def test_a_socket_that_does_not_come_about_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The start continues, whichever call failed, and the log has the reason in one event."""

    def refuse(_socket: socket.socket, _backlog: int = 0) -> None:
        raise OSError("not on this file system")

    if why == "it cannot listen":
        monkeypatch.setattr(socket.socket, "listen", refuse)
    else:
        (tmp_path / SOCKET_NAME).mkdir()
    control = ControlSocket(tmp_path, VERBS)
    with capture_logs() as events:
        await control.start()
    assert [event["event"] for event in events] == ["control.unavailable"]
    await control.close()


async def test_a_folder_in_the_place_of_the_socket_does_not_end_a_stop(tmp_path: Path) -> None:
    """The socket is closed; the folder, which somebody else made, stays."""
    control = ControlSocket(tmp_path, VERBS)
    await control.start()
    (tmp_path / SOCKET_NAME).unlink()
    (tmp_path / SOCKET_NAME).mkdir()
    await control.close()
    assert (tmp_path / SOCKET_NAME).is_dir()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not show locks")
@pytest.mark.parametrize("why", ["a folder is in its place", "it was removed", "it and lock were removed", "it is off"])
def test_a_broker_without_its_control_socket_is_not_taken_for_a_stopped_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    """The lock of the data folder shows that a broker runs; errors and the doctor say so until it has ended."""
    broker = BrokerProcess(tmp_path / "data")
    path = broker.folder / SOCKET_NAME
    command = ["status", "--data-dir", str(broker.folder)]
    if why == "a folder is in its place":
        path.mkdir(parents=True)
    elif why == "it is off":
        broker.environment["SLOTMQ_SERVER__CONTROL_SOCKET"] = "false"
    broker.start()
    if "removed" in why:
        path.unlink()
    if "lock" in why:
        (broker.folder / "lock").unlink()
    try:
        assert main(command) == 1
        told = capsys.readouterr().err
        assert told.startswith(
            f"slotmq: a broker runs on data folder {broker.folder} (another one: --data-dir D), but "
        )
        assert told.endswith("it starts or stops, or has no control.sock: see its log, and server.control_socket\n")
        assert told.count("\n") == 1
        assert main(["doctor", *command[1:]]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith(f"warn  broker: one runs on {broker.folder}, but ") for line in lines)
        assert not any("port" in line.partition(":")[0] for line in lines), "its port is not one that is taken"
    finally:
        broker.kill()
    assert main(command) == 1
    assert capsys.readouterr().err.startswith(f"slotmq: no broker runs on data folder {broker.folder}")


def test_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """A request in a folder that does not exist reports that no broker runs there."""
    with pytest.raises(Unanswered, match="no broker runs on data folder"):
        ask(tmp_path / "none", "echo")


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """Serve the socket from another thread, because only the main thread gets interrupts."""
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        control = ControlSocket(folder, VERBS)
        await control.start()
        ready.set()
        await asyncio.to_thread(over.wait)
        await control.close()

    server = threading.Thread(target=lambda: asyncio.run(serve()))
    server.start()
    try:
        assert ready.wait(DEADLINE_S)
        yield
    finally:
        over.set()
        server.join(DEADLINE_S)


def interrupt(_told: Any) -> None:
    """Do what Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_twice(told: Any) -> None:
    """Do what an impatient user does: Ctrl-C twice."""
    interrupt(told)
    interrupt(told)


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """Let an interrupt raise KeyboardInterrupt: a shell starts what runs in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_interrupt_asks_for_the_answer_and_a_second_one_ends_the_command(tmp_path: Path) -> None:
    """A command that handles interrupts gets its answer after one and ends at the second; others end at the first."""
    with served(tmp_path):
        before = signal.getsignal(signal.SIGINT)
        assert ask(tmp_path, "work_on", on_progress=interrupt, interruptible=True) == "stopped"
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(KeyboardInterrupt):
            ask(tmp_path, "work_on", on_progress=interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask(tmp_path, "work_on", on_progress=interrupt_twice, interruptible=True)
        assert signal.getsignal(signal.SIGINT) is before


# -- long listings -----------------------------------------------------------------------------------------------------

QUEUES: Final = 3000


async def turns_until(condition: Callable[[], bool]) -> int:
    """Return how many turns of the loop pass before a condition holds."""
    turns = 0
    while not condition():
        turns += 1
        await asyncio.sleep(0)
    return turns


@pytest.mark.parametrize("half", [False, True])
async def test_a_listing_ends_with_its_client(tmp_path: Path, half: bool) -> None:
    """A client that hangs up gives its place back with the slice in progress; one that ended its side is answered."""
    async with running_broker(tmp_path) as broker:
        for number in range(QUEUES):
            broker.vhosts["/"].queues.declare(f"q{number}")
        clients = broker.entrance.control._clients
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
        writer.write(b'{"verb":"list_queues"}\n')
        if half:
            writer.write_eof()
        await turns_until(lambda: bool(clients))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(clients) == 1
        if half:
            rows = json.loads(await reader.read())["result"]
            assert [row["name"] for row in rows] == [f"q{number}" for number in range(QUEUES)]
        writer.close()
        await writer.wait_closed()
        assert await turns_until(lambda: not clients) < 10


async def test_a_listing_and_scrapes_take_turns(tmp_path: Path) -> None:
    """A listing beside endless scrapes of all queues is complete and in order before they were answered often."""
    scrapers, answered, finished = 3, Counter[int](), asyncio.Event()
    async with running_broker(tmp_path, http={"enabled": True, "port": 0}) as broker:
        for number in range(QUEUES):
            broker.vhosts["/"].queues.declare(f"q{number}")

        async def scrape(number: int) -> None:
            while not finished.is_set():
                assert len((await asked(broker, "GET", "/api/queues")).json) == QUEUES
                answered[number] += 1

        async with asyncio.TaskGroup() as group:
            for number in range(scrapers):
                group.create_task(scrape(number))
            await turns_until(lambda: len(answered) == scrapers)
            answered.clear()
            rows = await told(broker, "list_queues")
            often = max(answered.values(), default=0)
            finished.set()
    assert [row["name"] for row in rows] == [f"q{number}" for number in range(QUEUES)]
    assert often <= 3
