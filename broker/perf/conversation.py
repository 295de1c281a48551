"""Drives thousands of connections in one thread, each through a script of requests and responses.

If a connection is refused or lost, the error is raised in its script; when the script ends, the connection stays open
and idle.
"""

from __future__ import annotations

import selectors
import ssl
import time
from collections import deque

from broker.perf import wire
from broker.perf.faults import BrokenStream, Fault, Refusal, Stalled
from broker.perf.peer import CALL_LIMIT_S, NOT_NOW, Address, Script, next_frame
from broker.perf.scanner import reason

_READ_BYTES = 65_536
_BEAT = wire.frame(wire.HEARTBEAT, 0, b"")
_NOTICES = (wire.CONNECTION_BLOCKED, wire.CONNECTION_UNBLOCKED)  # these scripts publish nothing
_CLOSES = (wire.CONNECTION_CLOSE, wire.CHANNEL_CLOSE)


class Conversation:
    """One connection and the state of its script.

    Invariant: `fault` is the reason why the connection ended, None while it is open; after connection.close-ok it is
    `closed`.
    """

    def __init__(self, address: Address) -> None:
        """Connect, through TLS if the address says so; nothing of AMQP is sent yet."""
        self.socket = address.connect(CALL_LIMIT_S)
        self.fault: Fault | None = None
        self.closed = False
        self._script: Script | None = None
        self._answer = (0, 0)
        self._received = bytearray()

    @property
    def busy(self) -> bool:
        """Return whether its script is still running."""
        return self._script is not None

    def follow(self, script: Script) -> None:
        """Start a script.

        Raises: RuntimeError while another script is running.
        """
        if self._script is not None:
            raise RuntimeError("a connection follows one script at a time")
        self._script = script
        self._step(None)

    def readable(self) -> None:
        """Read the received bytes and advance the script as far as they allow."""
        try:
            while chunk := self.socket.recv(_READ_BYTES):
                self._received += chunk
                if len(chunk) < _READ_BYTES and not _pending(self.socket):
                    break
            else:
                self._end(Refusal("the broker closed the socket"))
        except NOT_NOW:
            pass
        except OSError as error:
            self._end(_gone(error))
        while self.fault is None and (found := next_frame(self._received)) is not None:
            kind, payload = found
            if kind == wire.METHOD:
                self._answered(payload)
            elif kind != wire.HEARTBEAT:
                self._end(BrokenStream(f"a frame of type {kind} where no message is awaited"))

    def send(self, request: bytes = _BEAT) -> None:
        """Send a request, or else a heartbeat."""
        try:
            try:
                sent = self.socket.send(request)
            except NOT_NOW:
                sent = 0
            if sent < len(request):  # the broker reads nothing: wait for it, as a blocking client would
                self.socket.settimeout(CALL_LIMIT_S)
                self.socket.sendall(request[sent:])
                self.socket.setblocking(False)
        except OSError as error:
            self._end(_gone(error))

    def _end(self, fault: Fault) -> None:
        """Record why the connection ended and raise the fault in its script."""
        self.fault = fault
        script, self._script = self._script, None
        if script is not None:
            try:
                script.throw(fault)
            except (Fault, StopIteration):
                pass

    def _answered(self, payload: bytes) -> None:
        name = wire.METHOD_HEAD.unpack_from(payload)
        if name in _NOTICES:
            return
        if self._script is not None and name == self._answer:
            self._step(payload)
        elif name in _CLOSES:
            self._end(Refusal(reason(payload)))
        else:
            self._end(Refusal(f"the broker sent method {name} unasked"))

    def _step(self, payload: bytes | None) -> None:
        assert self._script is not None
        try:
            request, self._answer = next(self._script) if payload is None else self._script.send(payload)
        except StopIteration:
            self._script = None
            self.closed = self._answer == wire.CONNECTION_CLOSE_OK
        else:
            self.send(request)


class Switchboard:
    """All connections of a thread.

    Invariant: the socket of a conversation that has a fault, or is `closed`, is closed.
    """

    def __init__(self, heartbeat_s: float = 0) -> None:
        """Create the switchboard; heartbeats are sent twice per agreed interval, 0 means none."""
        self.open: set[Conversation] = set()
        self._every_s = heartbeat_s / 2
        self._beats: deque[tuple[float, Conversation]] = deque()
        self._selector = selectors.DefaultSelector()
        self._moved_at = time.monotonic()

    def dial(self, address: Address, script: Script) -> Conversation:
        """Return a new conversation that follows `script`.

        Raises: OSError.
        """
        talk = Conversation(address)
        talk.socket.setblocking(False)
        self._selector.register(talk.socket, selectors.EVENT_READ, talk)
        self.open.add(talk)
        if self._every_s:
            self._beats.append((time.monotonic() + self._every_s, talk))
        self.follow(talk, script)
        return talk

    def follow(self, talk: Conversation, script: Script) -> None:
        """Start a script on an idle conversation."""
        self._moved_at = time.monotonic()
        talk.follow(script)
        if talk.fault is not None:
            self.hang_up(talk)

    def turn(self, limit_s: float) -> list[Conversation]:
        """Wait up to `limit_s` for the broker, and return the conversations that made progress.

        Raises: Stalled when scripts wait and none makes progress for too long.
        """
        now = time.monotonic()
        while self._beats and self._beats[0][0] <= now:
            _, talk = self._beats.popleft()
            if talk in self.open:
                talk.send()
                if talk.fault is None:
                    self._beats.append((now + self._every_s, talk))
                else:
                    self.hang_up(talk)
        if self._beats:
            limit_s = min(limit_s, self._beats[0][0] - now)
        moved: list[Conversation] = [key.data for key, _ in self._selector.select(max(0.0, limit_s))]
        for talk in moved:
            talk.readable()
            if talk.fault is not None or talk.closed:
                self.hang_up(talk)
        if moved:
            self._moved_at = time.monotonic()
        elif time.monotonic() - self._moved_at > CALL_LIMIT_S and any(talk.busy for talk in self.open):
            raise Stalled(f"no answer from the broker for {CALL_LIMIT_S:.0f} s")
        return moved

    def hang_up(self, talk: Conversation) -> None:
        """Close a conversation's socket without a closing handshake."""
        if talk in self.open:
            self.open.remove(talk)
            self._selector.unregister(talk.socket)
            talk.socket.close()

    def close(self) -> None:
        """Close every socket."""
        for talk in list(self.open):
            self.hang_up(talk)
        self._selector.close()


def _gone(error: OSError) -> Refusal:
    return Refusal(f"the connection is gone: {error.strerror or error}")


def _pending(connection: object) -> bool:
    return isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
