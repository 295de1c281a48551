"""The connections of the scenarios without messages: thousands on one event loop, each through scripts of requests."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Self

from broker.perf import wire
from broker.perf.crew import Interruption
from broker.perf.faults import BrokenStream, Fault, Refusal, Stalled
from broker.perf.machine import ProcessTree, TreeUsage, make_room
from broker.perf.outcome import document, generator, used
from broker.perf.peer import CALL_LIMIT_S, Address, PeerConnection, Script, next_frame
from broker.perf.progress import RunProgress
from broker.perf.result import Figure, Result
from broker.perf.scanner import reason

TURN_S: Final = 0.2

_BEAT: Final = wire.frame(wire.HEARTBEAT, 0, b"")
_NOTICES: Final = (wire.CONNECTION_BLOCKED, wire.CONNECTION_UNBLOCKED)  # these scripts publish nothing
_CLOSES: Final = (wire.CONNECTION_CLOSE, wire.CHANNEL_CLOSE)


class Conversation(asyncio.Protocol):
    """One connection, which `ended` is told about when it is no longer open.

    Invariant: `fault` is the reason why the connection ended; None while it is open, and after connection.close-ok.
    """

    def __init__(self, ended: Callable[[Conversation], None]) -> None:
        self.fault: Fault | None = None
        self._ended = ended
        self._open = True
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._answer = (0, 0)
        self._waiting: asyncio.Future[bytes] | None = None

    @classmethod
    async def connect(cls, address: Address, ended: Callable[[Conversation], None], heartbeat_s: float = 0) -> Self:
        """Connect, through TLS if the address says so, and send nothing of AMQP but heartbeats, twice per interval.

        Raises: OSError.
        """
        loop, tls = asyncio.get_running_loop(), address.tls_context() if address.tls else None
        async with asyncio.timeout(CALL_LIMIT_S):
            _, made = await loop.create_connection(
                lambda: cls(ended), address.host, address.port, ssl=tls, family=address.family
            )
        if heartbeat_s:
            loop.call_later(heartbeat_s / 2, made.beat, heartbeat_s / 2)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass the answer to the waiting script."""
        self._received += data
        while self._open and (found := next_frame(self._received)) is not None:
            kind, payload = found
            if kind == wire.METHOD:
                self._answered(payload)
            elif kind != wire.HEARTBEAT:
                self.end(BrokenStream(f"a frame of type {kind} where no message is awaited"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the script that the connection is lost."""
        why = (
            f"the connection is gone: {getattr(exc, 'strerror', None) or exc}"
            if exc
            else "the broker closed the socket"
        )
        self.end(Refusal(why))

    async def follow(self, script: Script) -> Any:
        """Send the requests of a script, each after the answer to the one before, and return the script's value.

        Raises: Refusal, BrokenStream, Stalled.
        """
        try:
            request, answer = next(script)
            while True:
                request, answer = script.send(await self._call(request, answer))
        except StopIteration as ended:
            return ended.value

    def end(self, fault: Fault | None = None) -> None:
        """Close the socket without a closing handshake, and raise the fault in the script that waits."""
        if not self._open:
            return
        self._open, self.fault = False, fault
        self._transport.abort()
        if self._waiting is not None and not self._waiting.done() and fault is not None:
            self._waiting.set_exception(fault)
        self._ended(self)

    def beat(self, every_s: float) -> None:
        """Send a heartbeat, now and as often as this, while the connection is open."""
        if self._open:
            self._transport.write(_BEAT)
            asyncio.get_running_loop().call_later(every_s, self.beat, every_s)

    async def _call(self, request: bytes, answer: tuple[int, int]) -> bytes:
        if not self._open:
            raise self.fault or Refusal("the connection is closed")
        self._answer, self._waiting = answer, asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                return await self._waiting
        except TimeoutError:
            fault = Stalled(f"no answer from the broker for {CALL_LIMIT_S:.0f} s")
            self.end(fault)
            raise fault from None
        finally:
            self._waiting = None

    def _answered(self, payload: bytes) -> None:
        name = wire.METHOD_HEAD.unpack_from(payload)
        if self._waiting is not None and name == self._answer and not self._waiting.done():
            self._waiting.set_result(payload)
            if name == wire.CONNECTION_CLOSE_OK:
                self.end()
        elif name in _CLOSES:
            self.end(Refusal(reason(payload)))
        elif name not in _NOTICES:
            self.end(Refusal(f"the broker sent method {name} unasked"))


class ScriptedRun:
    """The conversations of a run, and the resource usage since its start.

    Invariant: `fault` is the first fault of any conversation, None without one; `lost` counts those that had one.
    """

    def __init__(
        self,
        options: Namespace,
        progress: RunProgress,
        interruption: Interruption,
        sockets: int,
        heartbeat_s: float = 0,
    ) -> None:
        """Connect to the broker and read the usage of its process; `sockets` is the number that the run needs.

        Raises: Fault, OSError for a broker that refuses a first connection, or a process that does not exist.
        """
        make_room(sockets + 1)
        self.options = options
        self.progress = progress
        self.interruption = interruption
        self.address: Address = options.uri
        self.open: set[Conversation] = set()
        self.fault: Fault | None = None
        self.lost = 0
        self._heartbeat_s = heartbeat_s
        first = PeerConnection(self.address, 1)
        self._product = first.product
        first.close()
        self._tree = ProcessTree(options.pid) if options.pid else None
        self._outset = self.usage()
        if self._tree is not None:
            if self._outset is None or not self._outset.rss_bytes:
                raise Fault(f"no process {options.pid} on this machine")
            self._tree.reset_peak()
        self._watch = Stopwatch()

    @property
    def stopping(self) -> bool:
        """Whether nothing further may begin, after a fault or Ctrl-C."""
        return self.fault is not None or self.interruption.asked

    def usage(self) -> TreeUsage | None:
        """Return the broker's usage so far, None if its process is unknown."""
        return self._tree.usage() if self._tree else None

    async def dial(self, script: Script) -> Conversation | None:
        """Return a new conversation that has followed `script`; None, with the fault, if it could not."""
        try:
            talk = await Conversation.connect(self.address, self._forget, self._heartbeat_s)
        except OSError as error:
            self._note(Refusal(f"no more connections: {error.strerror or error}"))
            return None
        self.open.add(talk)
        return talk if await self.follow(talk, script) else None

    async def follow(self, talk: Conversation, script: Script) -> bool:
        """Return whether the conversation could follow a script to its end."""
        with suppress(Fault):  # which `_forget` has noted
            await talk.follow(script)
            return True
        return False

    def result(self, figures: Mapping[str, Figure], failures: Iterable[str], busy_share: float) -> Result:
        """Close open connections, and return the result document."""
        for talk in list(self.open):
            talk.end()
        return document(
            self.options,
            self._product,
            self._watch.seconds(),
            generator=generator(self._watch.cpu_s(), busy_share),
            process=used(self._outset, self.usage(), 0),
            figures=dict(figures),
            failures=tuple(failures),
        )

    def _forget(self, talk: Conversation) -> None:
        self.open.discard(talk)
        if talk.fault is not None:
            self._note(talk.fault)

    def _note(self, fault: Fault) -> None:
        self.fault = self.fault or fault
        self.lost += 1


class Stopwatch:
    """Measures the duration of a stage and the CPU time that this process spends in it."""

    def __init__(self) -> None:
        self._began_s, self._cpu_s = time.monotonic(), time.process_time()

    def seconds(self) -> float:
        """Return the elapsed time; never 0."""
        return max(1e-9, time.monotonic() - self._began_s)

    def cpu_s(self) -> float:
        """Return the CPU time that this process used."""
        return time.process_time() - self._cpu_s

    def busy_share(self) -> float:
        """Return the CPU time of this process as a share of the elapsed time."""
        return self.cpu_s() / self.seconds()
