"""The control socket: a unix socket in the data folder through which the command line talks to the running broker.

Requests and answers are JSON objects, one per line: `{"verb": "slots", "queue": "q"}` is answered by `{"ok": true,
"result": ...}` or `{"ok": false, "error": "..."}`. A long-running verb may send `{"progress": {...}}` any number of
times before its answer, and may stop early when the client closes its sending side. The file has mode 0600: only the
broker's user may connect.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from broker.administration.slices import run_in_slices
from broker.amqp.errors import UNEXPECTED
from broker.core.definitions.json_text import SHORT, read_json, reading_json
from broker.event_log import get_logger
from broker.net.control_address import SOCKET_NAME, socket_address
from broker.net.transport import has_left
from broker.operations.request import ROWS_AT_ONCE, Asker, OperationRefused, Request, Verb
from broker.tasks import Tasks

log = get_logger()

REQUEST_MAX_BYTES: Final = 64 << 20  # a definitions file is sent in one request
CLIENTS_MAX: Final = 16
IDLE_MAX_S: Final = 30.0
_encoded: Final = json.JSONEncoder(separators=(",", ":")).encode
OUTER_LEVELS: Final = 3  # levels of nesting in a request: a definitions document, its lists, their entries


class ControlSocket:
    """A server that answers verbs on the unix socket in the data folder.

    Invariant: the caller holds the folder's lock, so an existing socket belongs to a broker that has ended.
    """

    def __init__(self, folder: Path, verbs: Mapping[str, Verb]) -> None:
        self._folder = folder
        self._verbs = verbs
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start listening. If that fails, log a warning and run without the socket."""
        try:
            bound = self._bind()
        except OSError as error:
            log.warning("control.unavailable", folder=str(self._folder), reason=str(error))
            return
        self._server = await asyncio.start_unix_server(self._accept, sock=bound, limit=REQUEST_MAX_BYTES)

    async def close(self) -> None:
        """Stop listening, disconnect the clients and remove the file."""
        if self._server is None:
            return
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None
        with suppress(OSError):  # the next start removes the file, or logs a warning
            (self._folder / SOCKET_NAME).unlink()

    def _bind(self) -> socket.socket:
        (self._folder / SOCKET_NAME).unlink(missing_ok=True)
        address, descriptor = socket_address(self._folder)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)  # the file is created with mode 0600; a chmod afterwards would be too late
        try:
            bound.bind(address)
            bound.listen()  # here, because uvloop does not report a failure
        except OSError:
            bound.close()
            raise
        finally:
            os.umask(mask)
            if descriptor is not None:
                os.close(descriptor)
        return bound

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            if len(self._clients) <= CLIENTS_MAX:
                while await answer_line(self._verbs, reader, writer):
                    """Another request may follow."""
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # the client has disconnected or takes too long, or the broker stops
        finally:
            self._clients.discard(task)
            writer.close()


async def answer_line(verbs: Mapping[str, Verb], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Read a request, answer it, and return whether another one may follow.

    Raises: TimeoutError if the client is silent or does not read, ConnectionError if it has disconnected.
    """
    try:
        line = await _read_line(reader)
    except ValueError:  # StreamReader's error for a line over its limit
        await write_answer(writer, _refusal(f"a request has at most {REQUEST_MAX_BYTES} bytes"))
        return False
    if line:
        try:
            fields = read_json(line) if len(line) <= SHORT else await run_in_slices(reading_json(line, OUTER_LEVELS))
        except ValueError as error:
            answer = _refusal(f"a request is one JSON object a line: {error}")
        else:
            answer = await answer_of(verbs, fields, reader, writer)
        await write_answer(writer, answer)
    return bool(line)


async def answer_of(
    verbs: Mapping[str, Verb], fields: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> dict[str, Any]:
    """Run a request and return its answer; later lines from the client arrive at `reader`.

    Raises: ConnectionError; CancelledError if the client interrupts a verb that sends progress.
    """
    verb = verbs.get(str(fields.get("verb"))) if isinstance(fields, dict) else None
    if verb is None:
        return _refusal(f"known verbs: {', '.join(sorted(verbs))}")
    client = _Client(reader, writer)
    try:
        result = verb(Request(fields, client))
        return {"ok": True, "result": await result if inspect.isawaitable(result) else result}
    except ConnectionError:
        raise
    except OperationRefused as refused:
        return _refusal(str(refused))
    except Exception:  # one request must not end the broker
        log.exception("control.failed", verb=fields["verb"])
        return _refusal(UNEXPECTED)
    finally:
        if client.listening is not None:
            client.listening.cancel()


async def write_answer(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    """Send an answer in pieces. Raises: TimeoutError, ConnectionError."""
    for piece in chain(_pieces(answer), "\n"):
        if writer.is_closing():  # the client has disconnected; uvloop refuses to write then
            return
        writer.write(piece.encode())
        async with asyncio.timeout(IDLE_MAX_S):
            await writer.drain()
        await asyncio.sleep(0)


class _Client(Asker):
    """The client of a request, for verbs that send progress or wait for the client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.listening: asyncio.Task[None] | None = None  # cancels the verb when the client hangs up or sends anything

    def write_progress(self, progress: Mapping[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(_encoded({"progress": progress}).encode() + b"\n")

    async def send_progress(self, progress: Mapping[str, Any]) -> None:
        """Send progress, and wait until more can be sent; from now on, cancel the verb when the client hangs up."""
        if self.listening is None:
            self.listening = Tasks.logged("control.failed").start(self._cancel(asyncio.current_task()))
        self.write_progress(progress)
        await self._writer.drain()

    def interrupted(self) -> bool:
        """Return whether the client has closed its sending side, or disconnected."""
        return self._reader.at_eof() or self._writer.is_closing()

    def is_gone(self) -> bool:
        """Return whether the client has disconnected; if only its sending side is closed, it still reads the answer."""
        return self._writer.is_closing() or has_left(self._writer.get_extra_info("socket").fileno(), 0)

    async def accepted(self) -> bool:
        """Wait for a line from the client, and return whether it arrived."""
        try:
            async with asyncio.timeout(IDLE_MAX_S):
                await self._writer.drain()
            return bool(await _read_line(self._reader))
        except (ConnectionError, TimeoutError):
            return False

    async def _cancel(self, verb: asyncio.Task[Any] | None) -> None:
        """Cancel the verb when the client hangs up or sends anything."""
        with suppress(ConnectionError):
            await self._reader.read(1)
        if verb is not None:
            verb.cancel()


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(IDLE_MAX_S):  # before Python 3.12, wait_for may swallow the cancellation by close()
        return await reader.readline()


def _pieces(answer: Any) -> Iterator[str]:
    """Yield an answer as pieces of JSON, each with at most ROWS_AT_ONCE rows."""
    if isinstance(answer, dict) and any(isinstance(value, (dict, list, Iterator)) for value in answer.values()):
        before = "{"
        for name, value in answer.items():
            yield before + _encoded(name) + ":"
            yield from _pieces(value)
            before = ","
        yield "}"
    elif isinstance(answer, Iterator) or (isinstance(answer, list) and len(answer) > ROWS_AT_ONCE):
        before = "["
        rest = _popped(answer) if isinstance(answer, list) else answer
        while rows := list(islice(rest, ROWS_AT_ONCE)):
            yield before + ",".join(map(_encoded, rows))
            before = ","
        yield "[]" if before == "[" else "]"
    else:
        yield _encoded(answer)


def _popped(rows: list[Any]) -> Iterator[Any]:
    """Yield and remove the rows of a list, because freeing many rows at once would block the loop."""
    rows.reverse()
    while rows:
        yield rows.pop()


def _refusal(text: str) -> dict[str, Any]:
    return {"ok": False, "error": text}
