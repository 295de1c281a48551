"""POST /v1/control: the protocol of the control socket over HTTP, for the command line on another machine.

The body is what a client would send to the control socket, and the answer is what the control socket would send back.
The end of a chunked body stops the command.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from broker.administration.slices import run_in_slices
from broker.core.definitions.json_text import SHORT, read_json, reading_json
from broker.event_log import get_logger
from broker.manage.answers import PieceResponse, Response
from broker.manage.call import ApiRoute, Call, Needs, UserAsker
from broker.manage.refusal import HttpRefused, bad_request
from broker.net.control import CLIENTS_MAX, OUTER_LEVELS, REQUEST_MAX_BYTES, answer_of, write_answer
from broker.operations.operation import MONITORING, Operation, carry_out, refusing
from broker.operations.request import Request, Verb, read
from broker.operations.table import OPERATIONS
from broker.tasks import Tasks, first_ended

LINES: Final = "application/x-ndjson"
STOP: Final = "stop"
ACCEPTS_MAX_BYTES: Final = 1 << 16  # the size of the lines after a request
PIECE_BYTES: Final = 64 << 10

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_log = get_logger()


async def converse(call: Call) -> Response:
    """Run a command with the protocol of the control socket."""
    conversations = call.broker.conversations
    conversations.enter(call.client, call.user.name, CLIENTS_MAX, f"{CLIENTS_MAX} commands run over HTTP already")
    async with AsyncExitStack() as undo:
        undo.callback(conversations.leave, call.client)
        conversation = await ControlConversation.of(call.request)
        undo.push_async_callback(conversation.end)
        await _begin(call, conversation)
        undo.pop_all()

    async def end() -> None:
        conversations.leave(call.client)  # at once, for the client's next command
        await conversation.end()

    return PieceResponse(conversation.pieces(), media_type=LINES, ended=end)


async def _begin(call: Call, conversation: ControlConversation) -> None:
    """Start the requested command. Raises: HttpRefused."""
    line = await conversation.request_line(call.broker.settings().http.timeout_ms / 1000)
    try:
        fields = read_json(line) if len(line) <= SHORT else await run_in_slices(reading_json(line, OUTER_LEVELS))
    except ValueError:
        fields = None
    name = str(fields.get("verb")) if isinstance(fields, dict) else ""
    operation = OPERATIONS.get(name)
    reads = operation is not None and operation.tag == MONITORING
    if not reads:
        Needs.ADMINISTRATOR.check(call.user)
    if operation is None:
        raise bad_request(f"the body should be a JSON object whose 'verb' is one of {', '.join(call.broker.verbs)}")
    log = _log.debug if reads else _log.info
    log("http.command", conn=call.client.peer.name, user=call.user.name, verb=name)
    if name != STOP:
        call.client.answer_endlessly()
    verb = _begin_stop(call.broker.verbs[name]) if name == STOP else _as_user(call, operation)
    conversation.begin({name: verb}, fields)


def _as_user(call: Call, operation: Operation[Any]) -> Verb:
    """Return a verb that runs an operation if the caller's permissions allow it; the tag has been checked."""

    def answer(request: Request) -> Any:
        asked = read(operation.parameters, request)

        def check() -> None:
            if operation.right is not None:
                operation.right(call.broker, call.user, asked)

        check()
        return carry_out(call.broker, operation, asked, UserAsker(call, request.asker, check))

    return refusing(answer)


class ControlConversation:
    """A request and its answer over a pair of sockets. The protocol of the control socket runs on the end `theirs`."""

    def __init__(self, request: HttpRequest, ours: Streams, theirs: Streams) -> None:
        self._request = request
        self._answer_reader, self._body_writer = ours
        self._body_reader, self._answer_writer = theirs
        self._tasks = Tasks.logged("control.failed")
        self._tasks.start(self._forward_body())

    @classmethod
    async def of(cls, request: HttpRequest) -> ControlConversation:
        ours, theirs = socket.socketpair()
        streams = await asyncio.open_connection(sock=ours)
        return cls(request, streams, await asyncio.open_connection(sock=theirs, limit=REQUEST_MAX_BYTES))

    async def request_line(self, timeout_s: float) -> bytes:
        """Return the first line of the body. Raises: HttpRefused."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._body_reader.readuntil(b"\n")
        except TimeoutError:
            raise HttpRefused(408, f"a request takes at most {timeout_s:g} s", fatal=True) from None
        except asyncio.IncompleteReadError as error:  # the last line needs no line feed
            return error.partial
        except asyncio.LimitOverrunError:
            raise HttpRefused(413, f"a request has at most {REQUEST_MAX_BYTES} bytes", fatal=True) from None

    def begin(self, verbs: Mapping[str, Verb], fields: Any) -> None:
        self._tasks.start(self._talk(verbs, fields))

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        while piece := await self._answer_reader.read(PIECE_BYTES):
            yield piece

    async def end(self) -> None:
        """Close the sockets, and cancel the command if it still runs."""
        self._answer_writer.close()
        self._body_writer.close()
        await self._tasks.stop()

    async def _forward_body(self) -> None:
        """Forward the body. Forward its end, which stops the command, only if the body is chunked."""
        size_bytes, last = 0, b""
        with suppress(ClientDisconnect, ConnectionError):
            async for piece in self._request.stream():
                size_bytes += len(piece)
                if size_bytes > REQUEST_MAX_BYTES + ACCEPTS_MAX_BYTES:
                    break
                last = piece or last
                self._body_writer.write(piece)
                await self._body_writer.drain()
            if "content-length" not in self._request.headers:
                self._body_writer.write_eof()
            elif not last.endswith(b"\n"):
                self._body_writer.write(b"\n")

    async def _talk(self, verbs: Mapping[str, Verb], fields: Any) -> None:
        try:
            await write_answer(
                self._answer_writer, await answer_of(verbs, fields, self._body_reader, self._answer_writer)
            )
        except (ConnectionError, TimeoutError):
            pass  # the client has disconnected
        finally:
            self._answer_writer.close()


def _begin_stop(stop: Verb) -> Verb:
    """Return a verb that begins the stop of the broker and answers at once, because HTTP ends before the broker."""

    async def begin(request: Request) -> Mapping[str, Any]:
        await first_ended(stop(request), asyncio.sleep(0))
        return {"stopping": True}

    return begin


ROUTES: Final = (ApiRoute("POST", "/v1/control", Needs.MONITORING, converse, ()),)
