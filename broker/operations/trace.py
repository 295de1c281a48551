"""Operations on the firehose: switch it on and off per vhost, and trace messages live."""

from __future__ import annotations

import asyncio
from collections import deque
from fnmatch import translate
from re import Pattern
from re import compile as regex
from typing import Annotated, Any, Final

from broker.core.auth.users import User
from broker.core.deadlines import Clock
from broker.core.firehose import Passage
from broker.core.names import TRACE
from broker.event_log import get_logger
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.request import Asker, OperationRefused, Range, parameters
from broker.operations.rows import body_fields, properties_row
from broker.routing.listeners import Listeners

KEPT_MAX: Final = 1000
KEPT_MAX_BYTES: Final = 4 << 20
ROWS_AT_ONCE: Final = 20
BYTES_AT_ONCE: Final = 64 << 10  # bytes of bodies between two turns of the loop
TRACES_MAX: Final = 8  # each uses a connection of the control socket, or a command over HTTP
GLOB_MAX: Final = 255
CHECK_S: Final = 1.0  # after which an idle trace checks that its vhost still exists

_log = get_logger()


@parameters
class SetTracing:
    """Whether the firehose of a vhost publishes to its exchange."""

    vhost: str = "/"
    on: bool = False


@parameters
class Trace:
    """The messages to show, by globs and a topic pattern for routing keys, and how much of each body."""

    vhost: str = "/"
    body_bytes: Annotated[int, Range(0, 1 << 20)] = 256
    exchange: str | None = None
    queue: str | None = None
    key: str | None = None
    user: str | None = None


def set_tracing(broker: OperatedBroker, asked: SetTracing, _asker: Asker) -> None:
    """Switch the firehose of a vhost on or off."""
    vhost = broker.vhost(asked.vhost)
    vhost.firehose.switch(on=asked.on)
    _log.info("vhost.tracing_on" if asked.on else "vhost.tracing_off", vhost=vhost.name)


def _may_trace(broker: OperatedBroker, user: User, asked: Trace) -> None:
    broker.permissions.check(user, broker.vhost(asked.vhost).exchange_resource(TRACE), "read")


async def trace(broker: OperatedBroker, asked: Trace, asker: Asker) -> None:
    """Send the messages that clients publish and receive in a vhost, as they pass."""
    vhost = broker.vhost(asked.vhost)
    if len(broker.traces) >= TRACES_MAX:
        raise OperationRefused(f"{TRACES_MAX} traces run already")
    watch = TraceWatch(vhost.ports.clock, asked)
    broker.traces.add(watch)
    vhost.firehose.watch(watch)
    try:
        await asker.send_progress({"tracing": vhost.name})
        while broker.administration.vhosts.get(vhost.name) is vhost:
            rows = await watch.rows()
            if rows:
                await asker.send_progress({"passed": rows})
            if dropped := watch.take_dropped():
                await asker.send_progress({"dropped": dropped})
            await asyncio.sleep(0)
    finally:
        vhost.firehose.unwatch(watch)
        broker.traces.discard(watch)
    raise OperationRefused(f"vhost '{vhost.name}' is deleted")


class TraceWatch:
    """Buffer the messages of a trace for its client.

    Invariant: messages and bytes are limited, except that an empty buffer accepts a message of any size.
    """

    def __init__(self, clock: Clock, asked: Trace) -> None:
        """Compile the filters. Raises: BindingKeyError, ValueError."""
        self._clock = clock
        self._body_bytes = asked.body_bytes
        self._exchange = _glob(asked.exchange)
        self._queue = _glob(asked.queue)
        self._user = _glob(asked.user)
        self._keys: Listeners | None = None
        if asked.key is not None:
            self._keys = Listeners()
            self._keys.add(self, asked.key)
        self._kept: deque[tuple[int, Passage]] = deque()
        self._kept_bytes = 0
        self._ready = asyncio.Event()
        self.dropped = 0

    def offer(self, passage: Passage) -> None:
        """Buffer a message that the filters accept, if there is room."""
        if not self._wants(passage):
            return
        size = len(passage.header) + len(passage.body)
        if len(self._kept) >= KEPT_MAX or (self._kept and self._kept_bytes + size > KEPT_MAX_BYTES):
            self.dropped += 1
            return
        self._kept.append((self._clock.now_ms - self._clock.ahead_ms, passage))
        self._kept_bytes += size
        self._ready.set()

    def take_dropped(self) -> int:
        """Return the number of messages dropped since the last call."""
        dropped, self.dropped = self.dropped, 0
        return dropped

    async def rows(self) -> list[dict[str, Any]]:
        """Return the next messages, or an empty list if none arrives within `CHECK_S`."""
        try:
            async with asyncio.timeout(CHECK_S):
                await self._ready.wait()
        except TimeoutError:
            return []
        rows: list[dict[str, Any]] = []
        shown_bytes = 0
        while self._kept and len(rows) < ROWS_AT_ONCE and shown_bytes < BYTES_AT_ONCE:
            at_ms, passage = self._kept.popleft()
            shown_bytes += min(len(passage.body), self._body_bytes)
            self._kept_bytes -= len(passage.header) + len(passage.body)
            rows.append(self._row(at_ms, passage))
        if not self._kept:
            self._ready.clear()
        return rows

    def _wants(self, passage: Passage) -> bool:
        if self._exchange is not None and self._exchange.match(passage.exchange) is None:
            return False
        if self._user is not None and self._user.match(passage.user) is None:
            return False
        if self._queue is not None:
            queues = passage.queues if passage.redelivered is None else (passage.name,)
            if not any(map(self._queue.match, queues)):
                return False
        return self._keys is None or bool(self._keys.match(passage.keys))

    def _row(self, at_ms: int, passage: Passage) -> dict[str, Any]:
        where: dict[str, Any] = (
            {"routed_queues": list(passage.queues)}
            if passage.redelivered is None
            else {"queue": passage.name, "redelivered": passage.redelivered}
        )
        return {
            "at_ms": at_ms,
            "kind": passage.kind,
            "exchange": passage.exchange,
            "routing_keys": list(passage.keys),
            **where,
            "user": passage.user,
            "connection": passage.connection,
            "channel": passage.channel,
            "properties": properties_row(passage.header),
            **body_fields(passage.body, self._body_bytes),
        }


def _glob(text: str | None) -> Pattern[str] | None:
    """Return the regular expression of a glob, or None if there is no glob. Raises: ValueError."""
    if text is None:
        return None
    if len(text) > GLOB_MAX:
        raise ValueError(f"a glob has at most {GLOB_MAX} characters")
    return regex(translate(text))


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "set_tracing": Operation(set_tracing, SetTracing),
    "trace": Operation(trace, Trace, _may_trace),
}
