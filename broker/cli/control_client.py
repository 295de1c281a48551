"""Send requests to the running broker, over the control socket in its data folder or over its HTTP API."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any, Final, Protocol

from broker.cli.broker_folder import is_locked, shown
from broker.cli.broker_url import AnyBroker, BrokerUrl, Unanswered, broker_of, called
from broker.cli.parser import BadUsage, Run
from broker.cli.table import print_json
from broker.net.control_address import socket_address

__all__ = ["Unanswered", "ask", "ask_for", "conversation", "first_interrupt", "read_line", "request"]

ANSWER_MAX_BYTES: Final = 1 << 28
NOT_SENT: Final = frozenset("config data_dir url cafile insecure json run version".split())  # local arguments
NOT_LISTENING: Final = "it starts or stops, or has no control.sock: see its log, and server.control_socket"
TIMEOUT_S: Final = 30.0  # the longest time in which the broker may send nothing


OnProgress = Callable[[Mapping[str, Any]], None]


class ControlStream(Protocol):
    """The connection to a broker: a socket, or an HTTP request whose body and answer are open at the same time."""

    def sendall(self, data: bytes, /) -> None:
        """Send bytes."""

    def recv(self, size: int, /) -> bytes:
        """Return received bytes, empty at the end."""

    def shutdown(self, how: int, /) -> None:
        """End the request; the answer may continue."""


def ask_for(command: argparse.Namespace, verb: str, /, *names: str, **more: Any) -> Any:
    """Return the result of `ask` for the chosen broker; `names` are command-line arguments to send unchanged.

    Raises: SettingsError, BadUsage, Unanswered.
    """
    return ask(broker_of(command), verb, **{name: getattr(command, name) for name in names}, **more)


def request(verb: str, show: Callable[[Any], None] = lambda _answer: None) -> Run:
    """Return a function that sends a verb with a command's arguments, and prints the answer with `show` or as JSON."""

    def run(arguments: argparse.Namespace) -> None:
        answer = ask_for(arguments, verb, *(name for name in vars(arguments) if name not in NOT_SENT))
        (print_json if getattr(arguments, "json", False) else show)(answer)

    return run


def ask(
    broker: AnyBroker,
    verb: str,
    *,
    on_progress: OnProgress | None = None,
    silence_s: float | None = TIMEOUT_S,
    accepts: bool = False,
    interruptible: bool = False,
    **arguments: Any,
) -> Any:
    """Send a verb to the broker and return its result. `on_progress` is called with each report of progress.

    With `accepts`, each report is acknowledged to the broker after `on_progress` has returned. With `interruptible`,
    the first interrupt asks the broker to end the work and answer; a second interrupt ends the command.
    Units: `silence_s` is how long the broker may send nothing; None sets no limit.
    Raises: Unanswered, BadUsage.
    """
    with (
        conversation(broker, verb, silence_s=silence_s, **arguments) as client,
        first_interrupt(lambda: client.shutdown(socket.SHUT_WR)) if interruptible else nullcontext(),
    ):
        return _result(client, called(broker), silence_s, on_progress, accepts=accepts)


@contextmanager
def conversation(
    broker: AnyBroker, verb: str, *, silence_s: float | None = TIMEOUT_S, **arguments: Any
) -> Iterator[ControlStream]:
    """Send a verb to the broker, and yield the connection, from which the answer can be read.

    Raises: Unanswered; BadUsage. Later failures of the connection may be OSErrors.
    """
    try:
        request = json.dumps({"verb": verb, **arguments}, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        raise BadUsage("names and texts should be UTF-8") from None
    with ExitStack() as stack:
        with _answering(called(broker), silence_s):
            opened = _remote(broker, silence_s) if isinstance(broker, BrokerUrl) else _local(broker, silence_s)
            client = stack.enter_context(opened)
            with suppress(BrokenPipeError, ConnectionResetError):  # the broker may have sent why it closed
                client.sendall(request)
        yield client


@contextmanager
def _answering(name: str, silence_s: float | None) -> Iterator[None]:
    """Raise OSErrors of the connection as Unanswered."""
    try:
        yield
    except TimeoutError:
        limit = "" if silence_s is None else f" within {silence_s:g} s"
        raise Unanswered(f"{name} did not answer{limit}") from None
    except OSError as error:
        raise Unanswered(f"{name} does not answer: {error.strerror or error}") from None


def _remote(broker: BrokerUrl, silence_s: float | None) -> AbstractContextManager[ControlStream]:
    from broker.cli.control_url import HttpConversation  # imports HTTP and TLS, which most commands do not need

    return closing(HttpConversation(broker, silence_s))


@contextmanager
def _local(folder: os.PathLike[str] | str, silence_s: float | None) -> Iterator[socket.socket]:
    folder = os.fspath(folder)
    try:
        address, descriptor = socket_address(folder)
    except FileNotFoundError:
        raise Unanswered(f"no broker runs on data folder {shown(folder)}") from None
    except OSError as error:
        raise Unanswered(f"no broker on data folder {shown(folder)}: {error.strerror or error}") from None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(silence_s)
            try:
                client.connect(address)
            except (FileNotFoundError, ConnectionRefusedError):
                if not is_locked(folder):
                    raise Unanswered(f"no broker runs on data folder {shown(folder)}") from None
                raise Unanswered(f"a broker runs on data folder {shown(folder)}, but {NOT_LISTENING}") from None
            yield client
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _result(
    client: ControlStream, name: str, silence_s: float | None, on_progress: OnProgress | None, *, accepts: bool
) -> Any:
    buffer = bytearray()
    while True:
        with _answering(name, silence_s):
            line = read_line(client, buffer)
        try:
            answer = json.loads(line)
            if "progress" in answer:
                if on_progress is not None:
                    on_progress(answer["progress"])
                if accepts:
                    with _answering(name, silence_s):
                        client.sendall(b"\n")
                continue
            if answer["ok"]:
                return answer["result"]
            reason = str(answer["error"])
        except (ValueError, KeyError, TypeError):
            raise Unanswered(f"{name} closed the connection") from None
        raise Unanswered(reason)


def read_line(client: ControlStream, buffer: bytearray) -> bytes:
    """Return the next line, or only its start if the connection ends or the line is too long. Cost: linear."""
    searched = 0
    while len(buffer) < ANSWER_MAX_BYTES:
        end = buffer.find(b"\n", searched)
        if end >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            return line
        searched = len(buffer)
        piece = client.recv(1 << 16)
        if not piece:
            break
        buffer += piece
    return bytes(buffer)


@contextmanager
def first_interrupt(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` at the first interrupt; only a second interrupt raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        action()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
