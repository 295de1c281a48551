"""A client's socket: received bytes are fed to the connection, and its output is written once per turn of the loop.

It has no task and no lock, only a few callbacks. Reading stops while one of the reasons in `Stop` applies. The loop
then does not notice that the client has disconnected, so `tick` checks clients that an alarm blocks.
"""

from __future__ import annotations

import asyncio
import select
import socket as sockets
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from broker.amqp.connection import Connection
from broker.amqp.control import CLOSED, RUNNING
from broker.amqp.errors import ConnectionFault, Refused
from broker.amqp.framing import Octets
from broker.core.auth.peer import Peer
from broker.core.session.connection import SessionOfConnection
from broker.delivery.turn import Outlet, Turn
from broker.event_log import get_logger
from broker.net.handshakes import Handshakes
from broker.net.heartbeats import SHORT_INTERVAL_MAX_S, Heartbeats
from broker.net.publisher_throttle import PublisherThrottle, Stop
from broker.net.receive_buffer import LARGE_READ_BYTES, ReceiveBuffer
from broker.net.tls import peer_of

REPLIES_MAX_BYTES: Final = 2 << 20  # with more unsent output, reading stops
UNKNOWN: Final = Peer("")
EOF_TICKS: Final = 2  # one to two seconds in which a client may close its socket after close-ok
CLOSE_TICKS: Final = 5  # seconds in which a client must answer connection.close and close its socket
OPEN_TICKS: Final = 3  # seconds that a client waits for the answer to connection.open while turns cannot run
SMALL_READ_BYTES: Final = 4096  # up to this size, a read is not limited by the turn's share, and the turn may follow
DELAYED_MS: Final = 38
"""A client that sends this long after an unanswered read may have waited for our ACK."""
DELAYED_MAX_MS: Final = 60
"""The kernel's delay of 40 to 44 ms, a short round trip and a margin; longer pauses have other reasons."""
WAITS: Final = 1
"""After this many waits in a row, reads are acknowledged at once."""
WAITS_MAX: Final = 48
"""The required number of waits doubles, up to this limit, each time that prompt acknowledgements do not help."""
PROMPT_ACKS: Final = 1000
"""The number of reads that are acknowledged at once before the client must be detected again."""
HANGUP: Final[int] = getattr(select, "POLLRDHUP", 0)  # macOS reports only POLLHUP and POLLERR
_log = get_logger()


def has_left(descriptor: int, events: int = HANGUP) -> bool:
    """Return whether the peer of a socket has disconnected, even if input from it is still unread.

    With `events` of 0, a peer that has closed only its sending side still counts as connected.
    """
    if descriptor < 0 or not hasattr(select, "poll"):
        return False
    poller = select.poll()
    poller.register(descriptor, events)
    return bool(poller.poll(0))


def write_pieces(socket: asyncio.Transport, pieces: list[Octets], high_water_bytes: int) -> None:
    """Write pieces in one call; `pause_writing` is called when more than `high_water_bytes` are unsent."""
    socket.writelines(pieces)
    # Setting the limit makes the loop check it, which some asyncio releases forget in writelines (gh-127655).
    socket.set_write_buffer_limits(high=high_water_bytes)


class PromptAck:
    """A policy that decides which reads of one client to acknowledge at once, in case it uses Nagle's algorithm.

    Such a client sends its second small segment only when the first is acknowledged, and Linux delays acknowledgements
    by 40 ms while the broker has nothing to send. So a small read that ends within a message is acknowledged at once,
    because the client may wait before it sends the rest. Other reads are acknowledged at once only after the client was
    detected waiting, because most publishes are not followed by anything.
    """

    __slots__ = ("_left", "_needed", "_unanswered_ms", "_waits")

    def __init__(self) -> None:
        self._unanswered_ms = 0  # the time of the last read, 0 if it was answered
        self._waits = 0
        self._needed = WAITS
        self._left = 0

    def after_read(self, now_ms: int, answered: bool, amid_message: bool) -> bool:
        """Return whether to acknowledge a read now; an answer acknowledges it anyway. HOT."""
        if self._unanswered_ms:
            if DELAYED_MS <= now_ms - self._unanswered_ms <= DELAYED_MAX_MS:
                self._note_wait()
            else:
                self._waits = 0
        if answered or amid_message:
            self._unanswered_ms = 0
            return not answered
        self._unanswered_ms = now_ms
        if self._left:
            self._left -= 1
            return True
        return False

    def _note_wait(self) -> None:
        """Count a possible wait for an acknowledgement; if prompt ones did not help, require more waits next time."""
        self._waits += 1
        if self._left:
            self._left = self._waits = 0
            self._needed = min(2 * self._needed, WAITS_MAX)
        elif self._waits >= self._needed:
            self._waits = 0
            self._left = PROMPT_ACKS


def acknowledge(end: sockets.socket | None) -> None:
    """Acknowledge a read from a TCP socket at once; do nothing for other sockets and systems."""
    if sys.platform == "linux" and end is not None:
        with suppress(OSError):
            end.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_QUICKACK, 1)


class Transport(Outlet):
    """An asyncio protocol (not a subclass, which could not be compiled) that connects a socket and a connection."""

    __slots__ = ("_blocked_s", "_closing_ticks", "_discarded_bytes", "_finishing", "_handshakes", "_heartbeats",
                 "_machine", "_on_lost", "_on_made", "_peer_closed", "_prompt_ack", "_publishes", "_receive_buffer",
                 "_shaking_hands", "_short_heartbeats", "_socket", "_stops", "_throttle", "_turn", "_unopened_s",
                 "_unopened_sent", "_unread_s", "connection", "peer", "session")  # fmt: skip

    _socket: asyncio.Transport
    connection: Connection
    session: SessionOfConnection

    def __init__(
        self,
        machine: Callable[[Transport], Connection],
        turn: Turn,
        throttle: PublisherThrottle,
        *,
        handshakes: Handshakes,
        short_heartbeats: dict[Transport, None],
        on_made: Callable[[Transport], bool],
        on_lost: Callable[[Transport], None],
        peer: Peer = UNKNOWN,
    ) -> None:
        """Shapes: `short_heartbeats` contains the clients for which `beat` is called; `peer` is given for a client
        within this process.
        """
        self._machine = machine
        self._turn = turn
        self._throttle = throttle
        self._handshakes = handshakes
        self._short_heartbeats = short_heartbeats
        self._on_made = on_made
        self._on_lost = on_lost
        self._shaking_hands = True
        self._publishes = False  # the throttle knows this client as a publisher
        self._prompt_ack = PromptAck()
        self._receive_buffer: ReceiveBuffer | None = None  # created at the first large read
        self._stops = 0
        self._heartbeats = Heartbeats()
        self._unread_s = self._closing_ticks = self._discarded_bytes = 0
        self._blocked_s = 0  # how long an alarm has blocked the client
        self._unopened_sent = 0  # bytes sent before the answer to connection.open
        self._unopened_s = 0  # how long this answer has waited for a turn
        self._finishing = False
        self._peer_closed = False  # the client has closed its sending side, or the socket is closed
        self.peer = peer

    @property
    def descriptor(self) -> int:
        """The socket's descriptor. The system assigns the lowest free one, so about that many were open."""
        found = self._socket.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    # -- callbacks of the loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Create the connection of an accepted socket; drop the socket if the listener refuses it."""
        self._socket = transport
        if not self.peer.inside:
            self.peer = peer_of(transport)
        self.connection = self._machine(self)
        transport.set_write_buffer_limits(high=self.session.output_window.high_water_bytes)
        if not self._on_made(self):
            transport.abort()
            return
        self._handshakes.begin(self)

    def data_received(self, data: bytes) -> None:
        """Feed the connection unless it has ended, and schedule or run a turn; bytes beyond the turn's share wait."""
        if self._finishing:
            self._discarded_bytes += len(data)
            return
        turn = self._turn
        size_bytes = len(data)
        try:
            if size_bytes <= SMALL_READ_BYTES or size_bytes <= turn.left_bytes:
                turn.left_bytes -= size_bytes  # hot: set directly
                if self._feed(data):
                    turn.run()
            else:
                self._feed_share(data)
            if size_bytes >= LARGE_READ_BYTES:
                self._size_receive_buffer(size_bytes)
        except Exception as error:  # noqa: BLE001 - a failed store, or a defect: asyncio would only log a line
            turn.fail(error)

    def _size_receive_buffer(self, read_bytes: int) -> None:
        """Fit the kernel's buffer to the rate at which the broker handles the input."""
        now_ms = self._turn.now_ms
        buffer = self._receive_buffer
        if buffer is not None:
            buffer.after_read(read_bytes, now_ms)
        else:
            has_tls = self._socket.get_extra_info("ssl_object") is not None  # large records need a large buffer
            self._receive_buffer = ReceiveBuffer(None if has_tls else self._socket.get_extra_info("socket"), now_ms)

    def set_session(self, session: SessionOfConnection) -> None:
        self.session = session

    def eof_received(self) -> bool:
        """Return False, so that the socket is closed."""
        self._peer_closed = True
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """End the session: the client has disconnected, cleanly or not."""
        self._peer_closed = True
        self._handshakes.end(self)
        self._short_heartbeats.pop(self, None)
        self.session.output_window.pause()
        try:
            self.connection.lost()
        except Exception as error:  # noqa: BLE001
            self._turn.fail(error)
        self._throttle.forget(self)
        self._on_lost(self)
        self._turn.schedule()

    def pause_writing(self) -> None:
        """Stop deliveries, because the client reads too slowly."""
        self.session.output_window.pause()

    def resume_writing(self) -> None:
        self.session.output_window.resume()
        self._unread_s = 0
        self._turn.touch(self)  # flush resumes reading and delivering

    # -- the turn -----------------------------------------------------------------------------------------------------

    def output_waits(self) -> None:
        """Schedule the output to be written in this turn or the next."""
        self._turn.touch(self)

    def flush(self) -> None:
        """Write the output in one call; resume reading and deliveries if possible, or finish an ended connection."""
        connection = self.connection
        socket = self._socket
        window = self.session.output_window
        pieces = connection.take_output()
        if self._peer_closed or (connection.state is not RUNNING and socket.is_closing()):
            return  # a closing socket would discard the output
        if len(pieces) == 1:
            socket.write(pieces[0])
        elif pieces:
            write_pieces(socket, pieces, window.high_water_bytes)
        if connection.state is CLOSED:
            self._finish()
            return
        if not window.writable:
            if socket.get_write_buffer_size() > REPLIES_MAX_BYTES:
                self.stop_reading(Stop.OUTPUT)
            if self._stops & Stop.HELD and not self.connection.held:
                self.resume_reading(Stop.HELD)  # a publishing client may not read before all its publishes were read
            return
        if self._stops:
            if self._stops & Stop.HELD and not connection.held:
                self.resume_reading(Stop.HELD)
            # A client that is closed while it is blocked must answer; its publishes are discarded.
            self.resume_reading(Stop.OUTPUT | Stop.ALARM | Stop.STORE if connection.closing else Stop.OUTPUT)
        if window.starved and window.take_starved():
            self.session.wake_consumers()  # those skipped because too much output was unsent

    def _finish(self) -> None:
        """Close the socket if the client has answered our close; otherwise wait for the client to close its socket.

        If a socket with unread input is closed, the kernel discards output that the client has not read yet, such as
        close-ok. A client that closes cleanly does not get an end of file at once, because some clients would mistake
        it for a failure.
        """
        if not self._finishing:
            self._finishing = True
            failure = self.connection.failure
            if isinstance(failure, Refused) and not self.connection.client_properties:  # the client never logged in
                _log.warning("connection.refused", conn=self.session.name, reason=failure.reason)
            if self._stops:
                self._stops = 0
                self._socket.resume_reading()
            if self.connection.drained:
                self._socket.close()
            elif not self.connection.orderly:
                self._end_output()

    def _end_output(self) -> None:
        """Close the sending side of the socket; with TLS, close both sides unless the client closes cleanly."""
        if self._socket.can_write_eof():
            try:
                self._socket.write_eof()
            except OSError:  # the client has reset the connection
                self._socket.abort()
        elif not self.connection.orderly:
            self._socket.close()

    def greet(self) -> None:
        """Write the output of a handshake, except the answer to connection.open, which waits for a turn."""
        if self._shaking_hands:
            self.flush()

    def resume(self) -> None:
        """Resume reading in the next turn."""
        self.resume_reading(Stop.TURN)

    # -- reading ------------------------------------------------------------------------------------------------------

    def stop_reading(self, reason: int) -> None:
        """Add a reason not to read, unless the connection has ended."""
        if self._finishing:
            return
        if not self._stops and not self._socket.is_closing():
            self._socket.pause_reading()
        self._stops |= reason

    def resume_reading(self, reason: int) -> None:
        """Remove one or more reasons; when none is left, process the buffered input and resume reading."""
        if not self._stops & reason:
            return
        self._stops &= ~reason
        if self._stops or self._socket.is_closing():
            return
        self._feed_share(b"")
        self._read_on()

    def _read_on(self) -> None:
        """Resume reading, unless the bytes that were just fed are a reason to stop again."""
        if not self._stops and not self._socket.is_closing():
            self._socket.resume_reading()

    def _feed_share(self, data: bytes) -> None:
        """Feed the connection at most as much as the turn's share allows."""
        turn, connection = self._turn, self.connection
        before_bytes = connection.buffered_bytes + connection.spared_bytes + len(data)
        self._feed(data, turn.piece_bytes())
        turn.left_bytes -= before_bytes - connection.buffered_bytes - connection.spared_bytes  # hot: set directly

    def _feed(self, data: bytes, budget_bytes: int | None = None) -> bool:
        """Feed the connection, stop reading if whole frames are left, and return whether to run the turn now. HOT."""
        connection = self.connection
        turn = self._turn
        throttle = self._throttle
        unwritten_bytes = self.session.unwritten_bytes if throttle.watching else 0
        runs_turn = budget_bytes is None and len(data) <= SMALL_READ_BYTES and turn.begin_read()
        if not turn.scheduled:
            turn.schedule()
        if not connection.feed(data, budget_bytes):
            if connection.held:
                self.stop_reading(Stop.HELD)
            elif connection.out_bytes > connection.limits.unsent_max_bytes:
                self.stop_reading(Stop.OUTPUT)
            else:
                self.stop_reading(Stop.TURN)
                turn.pause(self)
        elif connection.held:
            self.stop_reading(Stop.HELD)
        if connection.state is not RUNNING:
            if connection.out_bytes:
                return runs_turn
            if connection.state is CLOSED:
                self._finish()  # a turn would do this, but none runs on a node that its cluster has lost
            else:
                acknowledge(self._socket.get_extra_info("socket"))
            return runs_turn
        amid_message = connection.amid_message and len(data) <= SMALL_READ_BYTES and not self._stops
        if self._prompt_ack.after_read(turn.now_ms, connection.out_bytes > 0, amid_message):
            acknowledge(self._socket.get_extra_info("socket"))
        if self.session.publishing:
            if throttle.watching or not self._publishes:
                self._publishes = True
                throttle.published(self, unwritten_bytes)
        elif throttle.watching and throttle.alarmed and connection.unfinished_bytes:
            throttle.published(self)
        if self._shaking_hands:
            self._shaking_hands = False
            self._unopened_sent = connection.sent
            self._handshakes.end(self)
            if 0 < connection.heartbeat_s <= SHORT_INTERVAL_MAX_S and connection.heartbeat:
                self._short_heartbeats[self] = None
        return runs_turn

    @property
    def is_open(self) -> bool:
        """Whether the handshake is over and neither side has begun to close."""
        return self.connection.state is RUNNING

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, slow_s: int = 0) -> None:
        """Check heartbeats, the close timeout, and whether the client is alive and reads; called once a second.

        A client that has not read enough for `slow_s` seconds is logged once; 0 disables this.
        Source: AMQP 0-9-1, 4.2.7.
        """
        connection = self.connection
        if connection.state is not RUNNING:
            if connection.closing or connection.finished:
                self._closing_ticks += 1
                if self._closing_ticks == EOF_TICKS and self._finishing and connection.orderly:
                    self._end_output()
                if self._closing_ticks > CLOSE_TICKS:
                    self._socket.abort()
            return
        if connection.sent == self._unopened_sent and not self._turn.may_run:
            self._unopened_s += 1
            if self._unopened_s > OPEN_TICKS:
                self.drop("this node waits for the database of its cluster: connect to another node, or later")
                return
        if not self._stops & Stop.ALARM:
            self._blocked_s = 0
        elif not self._socket.is_closing() and self._tick_blocked():
            return
        if not self.session.output_window.writable:
            self._unread_s += 1
            if self._unread_s == slow_s:
                self.session.log_unread(slow_s, self._socket.get_write_buffer_size())
        interval = connection.heartbeat_s
        if not interval:
            return
        if interval > SHORT_INTERVAL_MAX_S:
            self._beat(interval)
        heartbeats = self._heartbeats
        if heartbeats.is_silent(connection.received, interval, reading=not self._stops):
            silent_s = heartbeats.silent_s
            _log.warning("connection.silent", conn=self.session.name, silent_s=silent_s, heartbeat_s=interval)
            self._socket.abort()

    def _tick_blocked(self) -> bool:
        """Check a client that an alarm blocks, and return whether it was closed after its maximum time."""
        limit_s = self.session.blocked_max_s
        self._blocked_s += 1
        if has_left(self.descriptor):
            self.resume_reading(Stop.ALARM)  # its earlier input is read, then the end of file
        elif limit_s == 0:  # an operator has lowered the limit to 0 in the meantime
            self._throttle.unblock(self)
        elif limit_s is not None and self._blocked_s >= limit_s:
            self.session.warn("connection.blocked_too_long", blocked_s=self._blocked_s)
            self.drop(f"{self._throttle.reason}: publishing was blocked for {limit_s} s, publish again later", 406)
            return True
        return False

    def beat(self, calls_per_s: int) -> None:
        """Send a heartbeat if one is due; called `calls_per_s` times a second for a client with a short interval."""
        connection = self.connection
        if connection.state is RUNNING and connection.heartbeat_s:
            self._beat(connection.heartbeat_s * calls_per_s)

    def _beat(self, interval_calls: int) -> None:
        heartbeats, connection = self._heartbeats, self.connection
        heartbeat = connection.heartbeat
        if heartbeat and heartbeats.is_due(connection.sent, interval_calls):
            if self._turn.may_run:
                connection.write(heartbeat)
            else:  # bypass the connection's output, which waits: the client must learn that the broker is alive
                self._socket.write(heartbeat)
            heartbeats.sent(connection.sent)

    def drop(self, reason: str, code: int = 320) -> None:
        """Send connection.close at once, even without a turn, and discard the unwritten output."""
        self.connection.discard_output()
        self.session.force_close(reason, code)
        self.flush()
        self._resume_for_close()

    def announce_failure(self, fault: ConnectionFault) -> None:
        """Send the failure of the broker to an open client, bypassing the output of its connection."""
        if self.is_open and not self._socket.is_closing():
            self._socket.write(self.connection.encode_failure(fault))

    def send_close(self) -> None:
        """Send connection.close to an open client, because the broker stops, and read on; close other sockets."""
        if self.is_open:
            self.connection.fail(ConnectionFault(320, "broker forced connection closure with reason 'shutdown'"))
            self._resume_for_close()
        elif self._finishing:
            self._socket.close()  # not abort: the client may not have read the last output yet
        else:
            self._socket.abort()

    def _resume_for_close(self) -> None:
        """Resume reading, whatever the reasons to stop, because the client must answer the close."""
        self._stops = Stop.STOPPING
        self.resume_reading(Stop.STOPPING)

    @property
    def received_bytes(self) -> int:
        return self.connection.received + self._discarded_bytes

    def close_silent(self) -> bool:
        """Close the socket of a silent client, unless it is paused or output is unsent; return whether it was closed.

        The kernel keeps the sent output for the client, but discards it if the client sends something.
        """
        socket = self._socket
        if self._stops or socket.get_write_buffer_size():
            return False
        if socket.is_closing():
            socket.abort()  # with TLS, close() waits for the client's close
            return False
        socket.close()
        return True

    def abort(self) -> None:
        """Drop the socket at once."""
        self._socket.abort()

    def handshake_late(self, timeout_s: float) -> None:
        """Drop a client that has not logged in and opened its vhost in time."""
        connection = self.connection
        if not self.is_open and not connection.closing and not connection.finished:  # `tick` aborts refused clients
            _log.warning("connection.handshake_late", conn=self.session.name, timeout_s=timeout_s)
            self._socket.abort()
