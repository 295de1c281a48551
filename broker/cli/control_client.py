"""Asks the running broker over the control socket in its data folder."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final

from broker.cli.broker_folder import shown
from broker.cli.interrupt import first_interrupt
from broker.cli.parser import BadUsage
from broker.net.control_address import socket_address

__all__ = ["Unanswered", "ask", "conversation", "read_line"]

ANSWER_MAX_BYTES: Final = 1 << 28
TIMEOUT_S: Final = 30.0  # between two lines of the broker, or pieces of one line


class Unanswered(Exception):
    """The broker could not be reached, or refused; the text is one line for the user."""


def _nobody(_progress: Mapping[str, Any]) -> None:
    """Ignore progress."""


def ask(
    folder: os.PathLike[str] | str,
    verb: str,
    *,
    told: Callable[[Mapping[str, Any]], None] = _nobody,
    silence_s: float | None = TIMEOUT_S,
    accepts: bool = False,
    interruptible: bool = False,
    **arguments: Any,
) -> Any:
    """Return the result of a verb; `told` gets its progress.

    With `accepts` the broker is told each time that `told` has returned. With `interruptible` the first interrupt asks
    the broker to stop and answer; a second one ends the command.
    Units: `silence_s` is how long the broker may be silent, None for ever.
    Raises: Unanswered, BadUsage.
    """
    with (
        conversation(folder, verb, silence_s=silence_s, **arguments) as client,
        first_interrupt(lambda: client.shutdown(socket.SHUT_WR)) if interruptible else nullcontext(),
    ):
        return _result(client, os.fspath(folder), partial(_tell, told, client) if accepts else told)


@contextmanager
def conversation(
    folder: os.PathLike[str] | str, verb: str, *, silence_s: float | None = TIMEOUT_S, **arguments: Any
) -> Iterator[socket.socket]:
    """Yield a socket to the broker that has been sent a verb.

    Raises: Unanswered, also for later failures of the socket; BadUsage.
    """
    try:
        request = json.dumps({"verb": verb, **arguments}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadUsage("names and texts should be UTF-8") from None
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
            client.connect(address)
            with suppress(BrokenPipeError, ConnectionResetError):  # the broker may have sent a reason first
                client.sendall(request + b"\n")
            yield client
    except (FileNotFoundError, ConnectionRefusedError):
        raise Unanswered(f"no broker runs on data folder {shown(folder)}") from None
    except TimeoutError:
        raise Unanswered(f"the broker on data folder {folder} did not answer within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise Unanswered(f"the broker on data folder {folder} cannot be asked: {error.strerror or error}") from None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _tell(told: Callable[[Mapping[str, Any]], None], client: socket.socket, progress: Mapping[str, Any]) -> None:
    told(progress)
    client.sendall(b"\n")


def _result(client: socket.socket, folder: str, told: Callable[[Mapping[str, Any]], None]) -> Any:
    buffer = bytearray()
    while True:
        line = read_line(client, buffer)
        try:
            answer = json.loads(line)
            if "progress" in answer:
                told(answer["progress"])
                continue
            if answer["ok"]:
                return answer["result"]
            reason = str(answer["error"])
        except (ValueError, KeyError, TypeError):
            raise Unanswered(f"the broker on data folder {folder} ended the conversation") from None
        raise Unanswered(reason)


def read_line(client: socket.socket, buffer: bytearray) -> bytes:
    """Return the next line, or a part of it when the broker ends. Cost: linear in its length."""
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
