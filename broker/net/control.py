"""The control socket: a unix socket in the data folder by which the command line looks into the running broker.

One JSON object a line in each direction: `{"verb": "slots", "queue": "q"}` is answered by `{"ok": true, "result": ...}`
or `{"ok": false, "error": "..."}`. Whoever may open the file may ask: its mode is 0600, so that is the broker's user.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

__all__ = ["ControlRefused", "ControlSocket", "Verb", "socket_address"]

log = structlog.get_logger()

Verb = Callable[[Mapping[str, Any]], Any]  # request -> what JSON can say; raises ControlRefused

SOCKET_NAME: Final = "control.sock"
SOCKET_PATH_MAX_BYTES: Final = 103  # sun_path with its NUL: 108 on Linux, 104 on macOS and the BSDs; unix(7)
REQUEST_MAX_BYTES: Final = 1 << 16
CLIENTS_MAX: Final = 16
IDLE_MAX_S: Final = 30.0


class ControlRefused(Exception):
    """A verb cannot be carried out; the text is the answer."""


def socket_address(folder: Path) -> tuple[str, int | None]:
    """Returns the address of the folder's socket, and a descriptor that must stay open while the address is used.

    A path that does not fit into a socket address is reached through an open descriptor of its folder, where the system
    has /proc/self/fd. Raises: OSError (the folder is not there, or the path is too long and there is no such way).
    """
    path = folder / SOCKET_NAME
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX_BYTES:
        return str(path), None
    if not Path("/proc/self/fd").is_dir():
        raise OSError(f"the path {path} is longer than the {SOCKET_PATH_MAX_BYTES} bytes of a socket address")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/self/fd/{descriptor}/{SOCKET_NAME}", descriptor


class ControlSocket:
    """Listens in the data folder and answers verbs.

    Invariant: the caller holds the folder's lock, so a socket that is found there belongs to a broker that is gone.
    """

    def __init__(self, folder: Path, verbs: Mapping[str, Verb]) -> None:
        self._folder = folder
        self._verbs = verbs
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts listening. A broker that cannot have the socket serves all the same, and warns."""
        try:
            bound = self._bind()
        except OSError as error:
            log.warning("control.unavailable", folder=str(self._folder), reason=str(error))
            return
        self._server = await asyncio.start_unix_server(self._accept, sock=bound, limit=REQUEST_MAX_BYTES)

    async def close(self) -> None:
        """Stops listening, ends the clients and removes the file."""
        if self._server is None:
            return
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None
        (self._folder / SOCKET_NAME).unlink(missing_ok=True)

    def _bind(self) -> socket.socket:
        (self._folder / SOCKET_NAME).unlink(missing_ok=True)
        address, descriptor = socket_address(self._folder)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)  # the file is 0600 from its first moment; chmod afterwards would leave a gap
        try:
            bound.bind(address)
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
                await self._converse(reader, writer)
        except (ConnectionError, TimeoutError):
            pass  # the client left, or said nothing for too long
        finally:
            self._clients.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_MAX_S):  # not wait_for: before 3.12 it may swallow close()'s cancel
                    line = await reader.readline()
            except ValueError:  # StreamReader's own name for a line over its limit
                line = b""
                answer = _refusal(f"a request has at most {REQUEST_MAX_BYTES} bytes")
            else:
                if not line:
                    return
                answer = self._answer(line)
            writer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
            async with asyncio.timeout(IDLE_MAX_S):
                await writer.drain()
            if not line:
                return

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return _refusal("a request is one JSON object a line")
        verb = self._verbs.get(str(request.get("verb"))) if isinstance(request, dict) else None
        if verb is None:
            return _refusal(f"known verbs: {', '.join(sorted(self._verbs))}")
        try:
            return {"ok": True, "result": verb(request)}
        except ControlRefused as refused:
            return _refusal(str(refused))
        except Exception as error:  # one question must not end the broker
            log.exception("control.failed", verb=request["verb"])
            return _refusal(f"internal error: {type(error).__name__}")


def _refusal(text: str) -> dict[str, Any]:
    return {"ok": False, "error": text}
