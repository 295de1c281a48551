"""The server's side of a connection without I/O: received bytes in, bytes to send out; sessions run the methods.

It has no socket, task or clock. The transport calls feed() with the bytes that it has read, and writes the result of
take_output(). Other code raises errors, and this module turns them into close methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from pamqp import commands

from broker.amqp.channel import NO_METHOD, Channel, ChannelSession, ChannelState, check_open
from broker.amqp.codec import decode_method, encode_method
from broker.amqp.control import (
    CLOSED,
    CLOSING,
    GREETING,
    OPENING,
    RUNNING,
    STARTING,
    TUNING,
    expected_kind,
    opens_channel,
)
from broker.amqp.errors import UNEXPECTED, ChannelError, ConnectionFault, Fatal, ProtocolError, Refused
from broker.amqp.framing import FRAME_METHOD, NO_FRAME, RUN_OF_PUBLISHES, FrameCutter, PublishRun
from broker.amqp.handshake import (
    MECHANISMS,
    PROTOCOL_HEADER,
    PROTOCOL_HEADER_BYTES,
    ConnectionLimits,
    check_tune_ok,
    has_supported_header,
    octets_of,
    start,
    tune,
)
from broker.amqp.output import ConnectionOutput, OutputTaker

CHANNEL_OPEN: Final = ChannelState.OPEN  # members of an Enum are slow to access
# These are equal for all clients.
OPEN_OK: Final = commands.Connection.OpenOk()
CLOSE_OK: Final = commands.Connection.CloseOk()


class ConnectionSession(Protocol):
    """The methods of a connection."""

    def authenticate(self, mechanism: str, response: bytes) -> None:
        """Log in the user, or raise Refused, also for a mechanism that was not offered.

        If the session calls connection.hold() here, it decides later, with connection.admit() or connection.refuse().
        """

    def open(self, vhost: str) -> None:
        """Open the virtual host, or raise ConnectionFault."""

    def open_channel(self, channel: Channel) -> ChannelSession:
        """Return the session of a new channel."""

    def update_secret(self, secret: bytes, reason: str) -> None:
        """Accept a new secret for the user of this connection, or raise Refused."""

    def close(self) -> None:
        """Release the resources of the connection. Called exactly once, after the sessions of all channels were closed.

        If the session calls connection.hold() here, it sends close-ok later, with connection.answer_close().
        """

    def crashed(self, error: Exception) -> None:
        """Log an unexpected error of this connection."""


class Connection(ConnectionOutput):
    """The server's side of one connection.

    Invariant: feed() raises no protocol error. Every session is closed exactly once, the connection's own last.
    """

    __slots__ = ("_cutter", "_greeting", "_on_error", "_progress", "_session_open", "amid_message", "channel_max",
                 "channels", "client_properties", "drained", "failure", "heartbeat_s", "mechanisms", "orderly",
                 "received", "server_properties", "session")  # fmt: skip
    __deletable__ = ("session",)

    session: ConnectionSession

    def __init__(
        self,
        session_factory: Callable[[Connection], ConnectionSession],
        limits: ConnectionLimits,
        server_properties: Mapping[str, Any],
        taker: OutputTaker,
        on_error: Callable[[Connection, int, ProtocolError | Refused], None] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
    ) -> None:
        """Shapes: `on_error` is called with an error and the number of its channel, or 0 for the connection."""
        super().__init__(limits, taker)
        self.mechanisms = mechanisms
        self.channels: dict[int, Channel] = {}
        self.client_properties: dict[str, Any] = {}
        self.channel_max = limits.channel_max
        self.heartbeat_s = limits.heartbeat_s
        self.received = 0
        self.amid_message = False  # a hint: the received bytes end within a message
        self.drained = False  # the client has answered our close, so none of its frames are in transit
        self.orderly = False  # the client has sent connection.close
        self.failure: ProtocolError | Refused | None = None
        self._cutter = FrameCutter(limits.initial_frame_max_bytes)
        self._greeting = b""
        self._progress = NO_METHOD
        self.server_properties = server_properties
        self._on_error = on_error
        self._session_open = True
        self.session = session_factory(self)

    @property
    def finished(self) -> bool:
        """Whether nothing more will be read; the output may still need to be written."""
        return self.state is CLOSED

    @property
    def closing(self) -> bool:
        """Whether connection.close was sent and close-ok has not arrived."""
        return self.state is CLOSING

    @property
    def unfinished_bytes(self) -> int:
        """The number of buffered body bytes of incomplete messages."""
        return sum(channel.unfinished_bytes for channel in self.channels.values())

    @property
    def buffered_bytes(self) -> int:
        """The number of received bytes that are not processed yet."""
        return self._cutter.buffered_bytes

    @property
    def spared_bytes(self) -> int:
        """The number of processed bytes that did not count towards a budget."""
        return self._cutter.spared_bytes

    @property
    def protocol(self) -> str:
        """The name of the protocol, as RabbitMQ shows it."""
        return "AMQP 0-9-1"

    @property
    def client_facts(self) -> dict[str, Any] | None:
        """Facts about a client whose session may outlive the connection; None in AMQP."""
        return None

    def has_capability(self, name: str) -> bool:
        """Return whether the client announced the capability."""
        announced = self.client_properties.get("capabilities")
        return isinstance(announced, dict) and announced.get(name) is True

    # ---- input -------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, budget_bytes: int | None = None) -> bool:
        """Process received bytes, and return False if frames are left to process. HOT.

        Frames are left because of the budget, a hold, or too much output; a call without bytes continues with them.
        Raises: only Fatal.
        Cost: linear in the processed frames; the last one may exceed the budget.
        """
        self.received += len(data)
        if self.state is GREETING:
            data = self._greet(data)
        if self.state is CLOSED:
            return True
        cutter = self._cutter
        if data:
            cutter.feed(data)
        cutter.begin(budget_bytes)
        channel: Channel | None = None
        number = 0
        held, all_cut = self.held, False
        limit_bytes = self.limits.unsent_max_bytes
        while not held:
            try:
                while (frame := cutter.next_frame())[0] != NO_FRAME:
                    kind, number, payload, run = frame
                    channel = self.channels.get(number)
                    if channel is None:
                        # A publish on a channel that is not open is refused or discarded at its method frame.
                        self._accept(FRAME_METHOD if kind == RUN_OF_PUBLISHES else kind, number, payload)
                    elif run is None:
                        channel.accept(kind, payload)
                    elif isinstance(run, PublishRun):
                        taken = channel.accept_run(run)
                        if taken < len(run.bodies):
                            cutter.take_back(run, taken)
                    else:
                        channel.accept_part(payload, run)
                    if self.held or self.out_bytes > limit_bytes:
                        break
                    if cutter.at >= cutter.stop_at:
                        all_cut = budget_bytes is None
                        break
                else:
                    all_cut = budget_bytes is None
                break
            except Fatal:
                raise
            except ProtocolError as error:  # then continue with the frames of other channels
                self._blame(error, channel)
                self.fail(error, 0 if cutter.broken else number)
            except Exception as error:  # noqa: BLE001 - any error ends this connection and no other
                self.session.crashed(error)
                self.fail(ConnectionFault(541, UNEXPECTED))
            held = self.held or self.out_bytes > limit_bytes
        self.amid_message = cutter.amid_message
        return all_cut or not cutter.has_frame

    def upcoming(self, count: int) -> Iterator[tuple[Channel, Any]]:
        """Yield the next methods, at most `count`, on open channels, without processing them."""
        for number, payload in self._cutter.upcoming(count):
            channel = self.channels.get(number)
            if channel is None or not channel.accepts_method(payload):
                return
            try:
                method = decode_method(payload, self.limits.table_depth_max, self.limits.table_entries_max)
            except ProtocolError:
                return
            yield channel, method

    def lost(self) -> None:
        """Close every session, because the socket is closed. Called exactly once.

        The references to the transport and the session are dropped, so that no reference cycles remain.
        """
        self.finish()
        self.discard_output()
        self.forget_taker()
        del self.session

    # ---- failure and end ---------------------------------------------------------------------------------------------

    def fail(self, error: ProtocolError, channel: int = 0) -> None:
        """Report an error to the client: a ChannelError closes its channel, any other error the connection."""
        if self.state in (CLOSING, CLOSED):
            if self._cutter.broken:
                self._finish_in_order()
            return
        if self._on_error is not None:
            self._on_error(self, channel, error)
        faulty = self.channels.get(channel)
        if not isinstance(error, ChannelError) or faulty is None:
            self._close(error)
        elif faulty.state is CHANNEL_OPEN:
            self._guard(lambda: faulty.begin_closing(error))

    def encode_failure(self, error: ProtocolError) -> bytes:
        """Return the frame of a connection.close for an error that ends the broker."""
        return encode_method(0, commands.Connection.Close(error.reply_code, error.reply_text, 0, 0))

    def admit(self) -> None:
        """Accept the login, possibly after a hold, and propose limits."""
        if self.state is not STARTING:
            return
        self.state = TUNING
        self.write(tune(self.limits))
        if self.held:
            self.release()

    def refuse(self, error: Refused, mechanism: str) -> None:
        """Refuse the login: with a text if the error and the client allow one, else silently (section 1.4.2.2)."""
        if self.state is not STARTING:
            return
        self.end_holds()
        if self._on_error is not None:
            self._on_error(self, 0, error)
        self._end_refused(error, mechanism)
        self.failure = error.with_traceback(None)

    def _end_refused(self, error: Refused, mechanism: str) -> None:
        if error.told and self.has_capability("authentication_failure_close"):
            text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
            self._close(ConnectionFault(403, text))
        else:
            self.finish()

    def answer_close(self) -> None:
        """Once nothing is withheld, answer the client's connection.close, if it sent one, and end the connection."""
        self.when_all_sent(self._answer_close)

    def _answer_close(self) -> None:
        if self.orderly and self.state not in (CLOSING, CLOSED):
            self.end_holds()
            self.send(0, CLOSE_OK)
            self.finish()

    def finish(self) -> None:
        """End the connection: discard further frames, and close every session."""
        self.state = CLOSED
        self.drop_withheld()
        self._cutter.clear()  # this also ends the loop in feed()
        self.end_sessions()
        self.touch()  # the transport closes the socket, even without output

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
        """Free the number of a channel after its close handshake."""
        self.channels.pop(channel.number, None)
        channel.end()

    def apply_limits(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        """Set the negotiated limits, from the next frame on."""
        self.frame_max = frame_max
        self._cutter.set_frame_max(frame_max)
        self.channel_max = channel_max
        self.heartbeat_s = heartbeat_s

    def _close(self, error: ProtocolError) -> None:
        self.failure = error.with_traceback(None)  # the stack frames of a traceback refer to the connection
        self.end_holds()
        if self.state is GREETING:
            self.finish()
            return
        close = commands.Connection.Close(error.reply_code, error.reply_text, error.class_id, error.method_id)
        self.when_all_sent(partial(self.send, 0, close))
        self.state = CLOSING
        self.end_sessions()
        # After a broken frame nothing can be read, not even close-ok.
        if self._cutter.broken:
            self._finish_in_order()

    def _finish_in_order(self) -> None:
        """End the connection once nothing is withheld; until then process nothing."""
        if self.withholds:
            self.hold()
        self.when_all_sent(self.finish)

    def _blame(self, error: ProtocolError, channel: Channel | None) -> None:
        """Set the method at fault in an error that does not name one."""
        if error.class_id == 0 and not self._cutter.broken:
            progress = self._progress if channel is None else channel.progress
            error.blame(int.from_bytes(progress[:2], "big"), int.from_bytes(progress[2:4], "big"))

    def _guard(self, close: Callable[[], None]) -> None:
        """Call a function that closes a session, and log its errors."""
        try:
            close()
        except Fatal:
            raise
        except Exception as error:  # noqa: BLE001 - the other sessions must be closed in any case
            self.session.crashed(error)

    # ---- frames that belong to no open channel -----------------------------------------------------------------------

    def _greet(self, data: bytes) -> bytes:
        """Check the protocol header, and return the octets after it."""
        self._greeting += data
        verdict = has_supported_header(self._greeting)
        if verdict is None:
            return b""
        rest, self._greeting = self._greeting[PROTOCOL_HEADER_BYTES:], b""
        if verdict:
            self.write(start(self.server_properties, self.mechanisms))
            self.state = STARTING
            return rest
        # Section 4.2.2: a server that does not support the protocol names the one it supports, and closes.
        self.write(PROTOCOL_HEADER)
        self.failure = Refused("not an AMQP 0-9-1 protocol header")
        self.finish()
        return b""

    def _accept(self, kind: int, number: int, payload: bytes) -> None:
        self._progress = NO_METHOD
        if number == 0 and kind == FRAME_METHOD:
            self._progress = payload[:4]
            self._accept_control(payload)
        elif opens_channel(self.state, kind, number, payload):
            self._progress = payload[:4]
            self._open_channel(number, payload)

    def _accept_control(self, payload: bytes) -> None:
        """Handle a method on channel 0."""
        kind = expected_kind(self.state, payload)
        if kind is None:
            return
        if kind is commands.Connection.CloseOk:
            self.drained = True
            self.finish()
            return
        if self.state is CLOSING:
            # The client's close crossed ours: answer it, and keep waiting for the answer to ours.
            self.when_all_sent(partial(self.send, 0, CLOSE_OK))
            return
        method: Any = decode_method(payload, self.limits.table_depth_max, self.limits.table_entries_max)
        if kind is commands.Connection.StartOk:
            self._authenticate(method)
        elif kind is commands.Connection.TuneOk:
            check_tune_ok(self.limits, method)
            self.apply_limits(method.frame_max, method.channel_max, method.heartbeat)
            self.state = OPENING
        elif kind is commands.Connection.Open:
            self.session.open(method.virtual_host)
            self.state = RUNNING
            self.send(0, OPEN_OK)
        elif kind is commands.Connection.UpdateSecret:
            self._update_secret(method)
        else:
            self.orderly = True
            self.end_sessions()
            if not self.held:
                self.answer_close()

    def _authenticate(self, method: Any) -> None:
        """Accept or refuse the login, unless the session decides later."""
        self.client_properties = method.client_properties
        try:
            self.session.authenticate(method.mechanism, octets_of(method.response))
        except Refused as error:
            self.refuse(error, method.mechanism)
        else:
            if not self.held:
                self.admit()

    def _update_secret(self, method: Any) -> None:
        try:
            self.session.update_secret(octets_of(method.new_secret), method.reason or "")
        except Refused:
            raise ConnectionFault(530, "New secret was refused by one of the backends") from None
        self.send(0, commands.Connection.UpdateSecretOk())

    def _open_channel(self, number: int, payload: bytes) -> None:
        check_open(payload)
        opened, limit = len(self.channels), self.channel_max
        if limit and opened >= limit:
            self._progress = NO_METHOD  # as in RabbitMQ, the error names no method
            text = f"number of channels opened ({opened}) has reached the negotiated channel_max ({limit})"
            raise ConnectionFault(530, text)
        channel = Channel(self, number, self.forget_channel)
        session = self.session.open_channel(channel)
        self.channels[number] = channel
        channel.start(session)
