"""A connection as a value: received bytes in, bytes to send out, and sessions that do what the methods ask.

No socket, task or clock is here. The transport calls feed() with what it read and writes what take_output() returns.
Errors end here: logic raises them, this file alone turns them into close methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pamqp import commands

from broker.amqp.channel import NO_METHOD, OPEN_METHOD, Channel, ChannelState, non_method_frame
from broker.amqp.codec import METHODS, Method, decode_method, encode_method, unknown_method
from broker.amqp.control import ConnectionState, accept_method
from broker.amqp.errors import ChannelError, ConnectionFault, Fatal, ProtocolError, Refused
from broker.amqp.framing import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    HEARTBEAT,
    RUN_OF_PUBLISHES,
    FrameCutter,
    Octets,
    broken_frame,
    describe_frame,
    join_small,
)
from broker.amqp.handshake import (
    MECHANISMS,
    PROTOCOL_HEADER,
    PROTOCOL_HEADER_BYTES,
    ConnectionLimits,
    serves,
    start,
    tune,
)
from broker.amqp.session import ChannelSession, ConnectionSession

__all__ = ["Channel", "ChannelSession", "Connection", "ConnectionLimits", "ConnectionSession", "ConnectionState"]

# Members of an Enum are slow to reach; these are asked for at each read and write.
GREETING: Final = ConnectionState.GREETING
CLOSED: Final = ConnectionState.CLOSED


class Connection:
    """The server's side of one connection.

    Invariant: feed() lets out no protocol error. Every session is closed exactly once, the connection's own last.
    """

    __slots__ = (
        "_cutter",
        "_greeting",
        "_on_error",
        "_progress",
        "_session_open",
        "_wake",
        "_woken",
        "capabilities",
        "channel_max",
        "channels",
        "client_properties",
        "drained",
        "failure",
        "frame_max",
        "heartbeat_s",
        "held",
        "large_at",
        "limits",
        "mechanisms",
        "orderly",
        "out",
        "out_bytes",
        "received",
        "sent",
        "server_properties",
        "session",
        "state",
    )

    def __init__(
        self,
        session_factory: Callable[[Connection], ConnectionSession],
        limits: ConnectionLimits,
        server_properties: Mapping[str, Any],
        wake: Callable[[Connection], None],
        on_error: Callable[[Connection, int, ProtocolError | Refused], None] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
    ) -> None:
        """`wake` is called once when output appears, until it is taken. `on_error` sees each error that closes a
        channel or the connection, with the channel's number.
        """
        self.limits = limits
        self.mechanisms = mechanisms
        self.state = ConnectionState.GREETING
        self.channels: dict[int, Channel] = {}
        self.client_properties: dict[str, Any] = {}
        self.capabilities: frozenset[str] = frozenset()
        self.frame_max = limits.frame_max_bytes
        self.channel_max = limits.channel_max
        self.heartbeat_s = limits.heartbeat_s
        self.out: list[Octets] = []
        self.large_at: list[int] = []  # where in `out` pieces are that are too large to be joined with others
        self.out_bytes = 0
        self.received = 0
        self.sent = 0
        self.held = False
        self.drained = False  # the client said close-ok to our close: nothing of it is under way
        self.orderly = False
        self.failure: ProtocolError | Refused | None = None
        self._cutter = FrameCutter(limits.initial_frame_max_bytes)
        self._greeting = b""
        self._progress = NO_METHOD
        self.server_properties = server_properties
        self._wake = wake
        self._woken = False
        self._on_error = on_error
        self._session_open = True
        self.session = session_factory(self)

    @property
    def finished(self) -> bool:
        """Return whether nothing more will be read; what is left in the output is still to be written."""
        return self.state is ConnectionState.CLOSED

    @property
    def closing(self) -> bool:
        """Return whether connection.close was sent and close-ok is awaited."""
        return self.state is ConnectionState.CLOSING

    @property
    def unfinished_bytes(self) -> int:
        """Return how many body bytes of messages that are not complete yet are held."""
        return sum(channel.unfinished_bytes for channel in self.channels.values())

    @property
    def buffered_bytes(self) -> int:
        """Return how many received bytes wait to be processed."""
        return self._cutter.buffered_bytes

    def has_capability(self, name: str) -> bool:
        """Return whether the client announced the capability."""
        return name in self.capabilities

    # ---- input -------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, budget_bytes: int | None = None) -> bool:
        """Process received bytes, and return False when whole frames are left: because of the budget, a hold, or too
        much output that was not taken yet.

        Called with no bytes it goes on with those. It lets out Fatal alone. HOT.
        Cost: linear in the frames processed, which pass the budget by one frame at most.
        """
        self.received += len(data)
        if self.state is GREETING:
            data = self._greet(data)
        if self.state is CLOSED:
            return True
        if data:
            self._cutter.feed(data)
        frames = self._cutter.frames(budget_bytes)
        channels = self.channels
        channel: Channel | None = None
        number = 0
        held = self.held
        limit_bytes = self.limits.unsent_max_bytes
        while not held:
            try:
                for kind, number, payload, run in frames:
                    channel = channels.get(number)
                    if channel is None:
                        # Without its channel a publish is refused or discarded whole, at its method frame.
                        self._accept(FRAME_METHOD if kind == RUN_OF_PUBLISHES else kind, number, payload)
                    elif run is not None:
                        self._cutter.take_back(run, channel.accept_run(run))
                    else:
                        channel.accept(kind, payload)
                    if self.held or self.out_bytes > limit_bytes:
                        break
                break
            except Fatal:
                raise
            except ProtocolError as error:
                # The loop is entered again: an error on one channel does not keep the frames of the others.
                self._blame(error, channel)
                self.fail(error, 0 if self._cutter.broken else number)
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends this connection and no other
                self.session.crashed(error)
                self.fail(ConnectionFault(541, "unexpected error, see the broker's log"))
            held = self.held or self.out_bytes > limit_bytes
        return not self._cutter.has_frame

    def hold(self) -> None:
        """Stop processing behind the present frame, because its answer comes later."""
        self.held = True

    def release(self) -> None:
        """End a hold and wake the transport, which goes on with feed(b"")."""
        self.held = False
        self.touch()

    def lost(self) -> None:
        """Close every session, because the transport is gone."""
        self.finish()
        self.out.clear()
        self.large_at.clear()
        self.out_bytes = 0

    # ---- output ------------------------------------------------------------------------------------------------------

    def send(self, channel: int, method: Method) -> None:
        """Send a method."""
        self.write(encode_method(channel, method))

    def write(self, *frames: Octets) -> None:
        """Append whole frames, also in pieces, to the output."""
        if self.state is CLOSED:
            return
        self.out += frames
        self.out_bytes += sum(map(len, frames))
        self.touch()

    def send_heartbeat(self) -> None:
        """Send a heartbeat frame."""
        self.write(HEARTBEAT)

    def touch(self) -> None:
        """Wake the transport, once until it takes the output."""
        if not self._woken:
            self._woken = True
            self._wake(self)

    def take_output(self) -> list[Octets]:
        """Return what is to be written, in pieces that are large or that stand between large ones, and forgets it."""
        self._woken = False
        pieces = join_small(self.out, self.large_at)
        self.out.clear()
        self.large_at.clear()
        self.out_bytes = 0
        self.sent += sum(map(len, pieces))
        return pieces

    # ---- failure and end ---------------------------------------------------------------------------------------------

    def fail(self, error: ProtocolError, channel: int = 0) -> None:
        """Tell the client of an error: a soft one closes its channel, any other the connection."""
        if self.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            if self._cutter.broken:
                self.finish()
            return
        if self._on_error is not None:
            self._on_error(self, channel, error)
        faulty = self.channels.get(channel)
        if not isinstance(error, ChannelError) or faulty is None:
            self._close(error)
        elif faulty.state is ChannelState.OPEN:
            self._guard(lambda: faulty.begin_closing(error))

    def admit(self) -> None:
        """Let the user in, also when the verdict came after a hold, and proposes limits."""
        if self.state is not ConnectionState.STARTING:
            return
        self.state = ConnectionState.TUNING
        self.send(0, tune(self.limits))
        if self.held:
            self.release()

    def refuse(self, error: Refused, mechanism: str) -> None:
        """Turn the client away: in words only where it announced that it listens (section 1.4.2.2 wants silence)."""
        if self.state is not ConnectionState.STARTING:
            return
        self.held = False
        if self._on_error is not None:
            self._on_error(self, 0, error)
        if error.told and self.has_capability("authentication_failure_close"):
            text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
            self._close(ConnectionFault(403, text))
        else:
            self.finish()
        self.failure = error

    def finish(self) -> None:
        """End the connection: what still comes is discarded, and every session is closed."""
        self.state = ConnectionState.CLOSED
        # Also ends the loop in feed(), which finds no further frame.
        self._cutter.clear()
        self.end_sessions()
        self.touch()  # the transport closes the socket, also when there is nothing left to say

    def end_sessions(self) -> None:
        """Close the sessions that are still open, the connection's own last."""
        ending = list(self.channels.values())
        self.channels.clear()
        for channel in ending:
            self._guard(channel.end)
        if self._session_open:
            self._session_open = False
            self._guard(self.session.close)

    def forget_channel(self, channel: Channel) -> None:
        """Free the number of a channel whose close handshake is over."""
        self.channels.pop(channel.number, None)
        channel.end()

    def take_limits(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        """Take the negotiated limits, which hold from the next frame on."""
        self.frame_max = self._cutter.limit_bytes = frame_max
        self.channel_max = channel_max
        self.heartbeat_s = heartbeat_s

    def _close(self, error: ProtocolError) -> None:
        self.failure = error
        self.held = False
        if self.state is ConnectionState.GREETING:
            self.finish()
            return
        close = commands.Connection.Close(error.reply_code, error.reply_text, error.class_id, error.method_id)
        self.send(0, close)
        self.state = ConnectionState.CLOSING
        self.end_sessions()
        # Behind a broken frame nothing can be read any more, close-ok included.
        if self._cutter.broken:
            self.finish()

    def _blame(self, error: ProtocolError, channel: Channel | None) -> None:
        """Fill in the method at fault, where the error does not name one."""
        if error.class_id == 0 and not self._cutter.broken:
            progress = self._progress if channel is None else channel.progress
            error.class_id = int.from_bytes(progress[:2], "big")
            error.method_id = int.from_bytes(progress[2:4], "big")

    def _guard(self, close: Callable[[], None]) -> None:
        """Call what closes a session; an error in it is logged."""
        try:
            close()
        except Fatal:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other sessions have to be closed too
            self.session.crashed(error)

    # ---- frames that belong to no open channel -----------------------------------------------------------------------

    def _greet(self, data: bytes) -> bytes:
        """Take the protocol header, and return the octets behind it."""
        self._greeting += data
        verdict = serves(self._greeting)
        if verdict is None:
            return b""
        rest, self._greeting = self._greeting[PROTOCOL_HEADER_BYTES:], b""
        if verdict:
            self.send(0, start(self.server_properties, self.mechanisms))
            self.state = ConnectionState.STARTING
            return rest
        # Section 4.2.2: a server that does not serve the protocol says which it does, and closes.
        self.write(PROTOCOL_HEADER)
        self.failure = Refused("not an AMQP 0-9-1 protocol header")
        self.finish()
        return b""

    def _accept(self, kind: int, number: int, payload: bytes) -> None:
        self._progress = NO_METHOD
        if kind == FRAME_HEARTBEAT and not payload:
            if number:
                raise ConnectionFault(505, describe_frame(kind, payload))
            return
        if kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY):
            raise broken_frame(kind, payload, "unknown_frame")
        if self.state is ConnectionState.CLOSING and (number or kind != FRAME_METHOD):
            return
        if number == 0 and kind == FRAME_METHOD:
            self._progress = payload[:4]
            accept_method(self, payload)
        elif number == 0 or self.state is not ConnectionState.RUNNING:
            raise ConnectionFault(505, describe_frame(kind, payload))
        elif kind != FRAME_METHOD:
            raise non_method_frame()
        else:
            self._progress = payload[:4]
            self._open_channel(number, payload)

    def _open_channel(self, number: int, payload: bytes) -> None:
        if payload[:4] != OPEN_METHOD:
            if payload[:4] not in METHODS:
                raise unknown_method(payload)
            raise ConnectionFault(504, "expected 'channel.open'")
        decode_method(payload)
        opened, limit = len(self.channels), self.channel_max
        if limit and opened >= limit:
            self._progress = NO_METHOD  # RabbitMQ blames none
            text = f"number of channels opened ({opened}) has reached the negotiated channel_max ({limit})"
            raise ConnectionFault(530, text)
        channel = Channel(self, number)
        session = self.session.open_channel(channel)
        self.channels[number] = channel
        channel.start(session)
