"""POST /v1/control: the conversation of the control socket over HTTP, for the command line on another machine.

The body has the lines that a client of the control socket sends: one request, then a line for each message that it
accepts; the end of a chunked body says that it has enough. The answer has the lines of the control socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from broker.administration.slices import finished
from broker.core.definitions.json_text import SHORT, read_json, reading_json
from broker.event_log import get_logger
from broker.manage.answers import PieceResponse, Response
from broker.manage.call import ApiRoute, Call, Needs, UserAsker
from broker.manage.client import ApiClient, payer
from broker.manage.refusal import HttpRefused, bad_request, not_authorised
from broker.net.control import CLIENTS_MAX, OUTER_LEVELS, REQUEST_MAX_BYTES, answer_request
from broker.operations.operation import MONITORING, Operation, refusing
from broker.operations.request import Request, Verb, read
from broker.operations.table import OPERATIONS
from broker.tasks import Tasks, first_ended

LINES: Final = "application/x-ndjson"
STOP: Final = "stop"
ACCEPTS_MAX_BYTES: Final = 1 << 16  # of the lines after a request
WAITING_MAX_BYTES: Final = 256 << 10  # of an answer that the client has not taken

Conversations = dict["ControlConversation", tuple[str, "ApiClient"]]  # with user and client, oldest first

_log = get_logger()


async def converse(call: Call) -> Response:
    """Run a command, in the same conversation as between the command line and the control socket."""
    conversations = call.broker.conversations
    _make_room(conversations, call.user.name)
    conversation = ControlConversation(call.request)
    conversations[conversation] = (call.user.name, call.client)
    try:
        return await _answer(call, conversation)
    except BaseException:
        conversations.pop(conversation, None)
        await conversation.end()
        raise


def _make_room(conversations: Conversations, user: str) -> None:
    """End the oldest command of the user with most, if too many run. Raises: HttpRefused if it is this one."""
    if len(conversations) < CLIENTS_MAX:
        return
    pays = payer([name for name, _client in conversations.values()], user)
    if pays == user:
        raise HttpRefused(503, f"{CLIENTS_MAX} commands run over HTTP already")
    oldest = next(one for one, (name, _client) in conversations.items() if name == pays)
    _name, client = conversations.pop(oldest)
    client.abort()


async def _answer(call: Call, conversation: ControlConversation) -> Response:
    line = await conversation.request_line(call.broker.settings().http.timeout_ms / 1000)
    try:
        fields = read_json(line) if len(line) <= SHORT else await finished(reading_json(line, OUTER_LEVELS))
    except ValueError:
        fields = None
    fields = fields if isinstance(fields, dict) else {}
    name = str(fields.get("verb"))
    operation = OPERATIONS.get(name)
    reads = operation is not None and operation.tag == MONITORING
    if not reads and not call.may(Needs.ADMINISTRATOR):
        raise not_authorised("Not administrator user")
    if operation is None:
        raise bad_request(f"the body should be a JSON object whose 'verb' is one of {', '.join(call.broker.verbs)}")
    said = _log.debug if reads else _log.info
    said("http.command", conn=call.client.peer.name, user=call.user.name, verb=name)
    if name != STOP:
        call.client.answer_endlessly()
    verb = _begin_stop(call.broker.verbs[name]) if name == STOP else _as_user(call, name, operation)
    conversation.begin({name: verb}, line)

    async def end() -> None:
        call.broker.conversations.pop(conversation, None)
        await conversation.end()

    return PieceResponse(conversation.pieces(), media_type=LINES, ended=end)


def _as_user(call: Call, name: str, operation: Operation[Any]) -> Verb:
    """Return a verb that is carried out if the caller's permissions allow it; the tag is checked."""

    def answer(request: Request) -> Any:
        asked = read(operation.parameters, request)

        def check() -> None:
            if operation.right is not None:
                operation.right(call.broker, call.user, asked)

        check()
        return call.broker.verbs[name](request.asked_by(UserAsker(call, request.asker, check)))

    return refusing(answer)


class ControlConversation:
    """One request with its answer. It is an `AnswerWriter`: output waits until the client takes it."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._said = asyncio.StreamReader(limit=REQUEST_MAX_BYTES)
        self._tasks = Tasks.logged("control.failed")
        self._tasks.start(self._listen())
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._moved = asyncio.Event()
        self._complete = False
        self._ended = False

    async def request_line(self, timeout_s: float) -> bytes:
        """Return the first line of the body. Raises: HttpRefused."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._said.readuntil(b"\n")
        except TimeoutError:
            raise HttpRefused(408, f"a request takes at most {timeout_s:g} s", fatal=True) from None
        except asyncio.IncompleteReadError as error:  # the last line needs no end
            return error.partial
        except asyncio.LimitOverrunError:
            raise HttpRefused(413, f"a request has at most {REQUEST_MAX_BYTES} bytes", fatal=True) from None

    def begin(self, verbs: Mapping[str, Verb], line: bytes) -> None:
        """Begin to answer a request."""
        self._tasks.start(self._talk(verbs, line))

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as it is written."""
        while self._waiting or not self._complete:
            if not self._waiting:
                self._moved.clear()
                await self._moved.wait()
                continue
            piece = b"".join(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            yield piece
            self._moved.set()

    async def end(self) -> None:
        """Cancel unfinished work for the client."""
        self._ended = True
        await self._tasks.stop()

    def write(self, data: bytes) -> None:
        """Send bytes later."""
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._moved.set()

    async def drain(self) -> None:
        """Wait until the client has taken enough."""
        while self._waiting_bytes > WAITING_MAX_BYTES:
            self._moved.clear()
            await self._moved.wait()

    def is_closing(self) -> bool:
        """Return whether the client has disconnected."""
        return self._ended

    async def _listen(self) -> None:
        """Read the body. Only the end of a chunked body has a meaning: the client wants no more."""
        size_bytes, last = 0, b""
        with suppress(ClientDisconnect):
            async for piece in self._request.stream():
                size_bytes += len(piece)
                if size_bytes > REQUEST_MAX_BYTES + ACCEPTS_MAX_BYTES:
                    break
                last = piece or last
                self._said.feed_data(piece)
        if "content-length" not in self._request.headers:
            self._said.feed_eof()
        elif not last.endswith(b"\n"):
            self._said.feed_data(b"\n")

    async def _talk(self, verbs: Mapping[str, Verb], line: bytes) -> None:
        try:
            await answer_request(verbs, line, self._said, self)
        except (ConnectionError, TimeoutError):
            """The client takes nothing any more."""
        finally:
            self._complete = True
            self._moved.set()


def _begin_stop(stop: Verb) -> Verb:
    """Return the verb that begins a stop and answers: the HTTP port closes before the broker has stopped."""

    async def begin(request: Request) -> Mapping[str, Any]:
        await first_ended(stop(request), asyncio.sleep(0))
        return {"stopping": True}

    return begin


ROUTES: Final = (ApiRoute("POST", "/v1/control", Needs.MONITORING, converse, ()),)
