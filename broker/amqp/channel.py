"""A channel: check its frames, pass methods and publishes to its session, and send the replies.

A publish arrives as a method frame, a content header frame and body frames (AMQP 0-9-1 section 4.2.6). The session gets
their payloads together, not decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from pamqp import commands

from broker.amqp.codec import (
    METHODS,
    SETTLEMENT_BYTES,
    Method,
    content_frames,
    decode_method,
    decode_settlement,
    encode_method,
    unknown_method,
)
from broker.amqp.content_header import gauge_of
from broker.amqp.errors import ChannelError, ConnectionFault, broken_frame, describe_frame, non_method_frame
from broker.amqp.framing import (
    BASIC_CONTENT,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    LARGE_BYTES,
    PUBLISH,
    Octets,
    PublishRun,
)
from broker.amqp.header_facts import NO_PRIORITY, plain_facts
from broker.amqp.lenient_methods import AccessRequest
from broker.amqp.output import UNDECIDED, ConnectionOutput, Withheld
from broker.amqp.wire import PROPERTIES_AT


class ChannelState(Enum):
    """The state of a channel; a channel number without a Channel is not open."""

    OPEN = "open"
    CLOSING = "closing"  # channel.close was sent, and close-ok has not arrived (section 1.5.2.5)
    CLOSED = "closed"


def indexes_of(*methods: type[Method]) -> set[bytes]:
    """Return the class and method octets that begin the payloads of these methods."""
    return {method.index.to_bytes(4, "big") for method in methods}


# The methods that a channel decodes for its session. Methods that clients do not send on a channel are refused with
# 503, as in RabbitMQ.
CLIENT_METHODS: Final = indexes_of(
    AccessRequest,
    commands.Channel.Flow,
    commands.Exchange.Declare,
    commands.Exchange.Delete,
    commands.Exchange.Bind,
    commands.Exchange.Unbind,
    commands.Queue.Declare,
    commands.Queue.Bind,
    commands.Queue.Purge,
    commands.Queue.Delete,
    commands.Queue.Unbind,
    commands.Basic.Qos,
    commands.Basic.Consume,
    commands.Basic.Cancel,
    commands.Basic.Get,
    commands.Basic.Ack,
    commands.Basic.Reject,
    commands.Basic.RecoverAsync,
    commands.Basic.Recover,
    commands.Basic.Nack,
    commands.Tx.Select,
    commands.Tx.Commit,
    commands.Tx.Rollback,
    commands.Confirm.Select,
)
NO_METHOD: Final = b"\x00\x00\x00\x00"
(OPEN_METHOD,) = indexes_of(commands.Channel.Open)
(CLOSE_METHOD,) = indexes_of(commands.Channel.Close)
(CLOSE_OK_METHOD,) = indexes_of(commands.Channel.CloseOk)


def check_open(payload: bytes) -> None:
    """Check that the first method on a channel number is channel.open. Raises: ConnectionFault."""
    if payload[:4] != OPEN_METHOD:
        if payload[:4] not in METHODS:
            raise unknown_method(payload)
        raise ConnectionFault(504, "expected 'channel.open'")
    decode_method(payload)


BODY_SIZE: Final = struct.Struct(">Q")
HEADER_FIXED_BYTES: Final = 12
NO_KIND: Final = -1  # no frame has this type, so _refuse_frame() gets every frame of a closing channel
# A member of an Enum is slow to access, so the hot path uses this constant.
IS_OPEN: Final = ChannelState.OPEN
# These are equal for all channels.
OPEN_OK: Final = commands.Channel.OpenOk()
CLOSE_OK: Final = commands.Channel.CloseOk()
# The value of `facts` before the first publish of a channel.
NO_FACTS: Final = plain_facts(persistent=False, priority=NO_PRIORITY, expiration_ms=None)


class ChannelSession(Protocol):
    """The methods of a channel, implemented in core.

    A ProtocolError becomes a close method, Fatal propagates, and any other exception closes the connection with 541.
    """

    def method(self, method: Method) -> None:
        """Run a method other than basic.publish, channel.open and channel.close."""

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        """Publish one message: the encoded method, the encoded and measured content header, and the body."""

    def publish_run(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], start: int) -> int:
        """Publish messages with equal properties from index `start` on.

        Return the index of the first message that was not published.
        """

    def leave(self) -> None:
        """Finish work when the client sends channel.close; close() follows."""

    def close(self) -> None:
        """Release the resources of the channel. Called exactly once, however the channel ended."""


class Channel:
    """One open channel of a connection.

    Invariant: on an open channel, `_expects` is the only frame type that may be next.
    """

    __slots__ = ("_body", "_closed", "_expects", "_gauge", "_header", "_known", "_limit_bytes", "_missing_bytes",
                 "_publish", "_seen_header", "_session_open", "connection", "facts", "number", "progress", "session",
                 "state")  # fmt: skip
    __deletable__ = ("session",)

    session: ChannelSession

    def __init__(self, connection: ConnectionOutput, number: int, closed: Callable[[Channel], None]) -> None:
        self.connection = connection
        self._closed = closed  # called after the close handshake
        self.number = number
        self.state = ChannelState.OPEN
        self.facts = NO_FACTS
        # The class and method octets of the current method, for errors that do not name a method.
        self.progress = OPEN_METHOD
        self._session_open = False
        self._expects = FRAME_METHOD
        self._publish = b""
        self._header = b""
        self._missing_bytes = 0
        limits = connection.limits
        self._limit_bytes = limits.max_message_size_bytes
        self._gauge = gauge_of(limits.table_depth_max, limits.table_entries_max)
        self._known = self._gauge.known
        self._body: list[bytes | bytearray | memoryview] = []
        self._seen_header = b""

    def limit_messages(self, limit_bytes: int) -> None:
        """Set the maximum message size of this channel, in place of the limit for clients."""
        self._limit_bytes = limit_bytes

    @property
    def unfinished_bytes(self) -> int:
        """The number of buffered body bytes of an incomplete message."""
        return sum(map(len, self._body))

    def start(self, session: ChannelSession) -> None:
        """Set the session and send channel.open-ok."""
        self.session = session
        self._session_open = True
        self.send(OPEN_OK)

    def accepts_method(self, payload: bytes) -> bool:
        """Return whether a method frame with this payload would be passed to the session now."""
        return self.state is IS_OPEN and self._expects == FRAME_METHOD and payload[:4] in CLIENT_METHODS

    def accept(self, kind: int, payload: bytes) -> None:
        """Accept the next frame of this channel. HOT.

        Raises: ChannelError, ConnectionFault, and other errors of the session.
        """
        if kind != self._expects:
            self._refuse_frame(kind, payload)
        elif kind == FRAME_METHOD:
            if payload[:4] == PUBLISH:
                self.progress = PUBLISH
                self._publish = payload
                self._expects = FRAME_HEADER
            else:
                self._method(payload)
        elif kind == FRAME_HEADER:
            self._content_header(payload)
        else:
            self._content_body(payload)

    def accept_part(self, front: bytes, part: memoryview) -> None:
        """Accept a part of a body frame; `front` contains the first octets of the frame. Raises: as accept()."""
        if self._expects != FRAME_BODY:
            self._refuse_frame(FRAME_BODY, front)
            return
        missing_bytes = self._missing_bytes - len(part)
        if missing_bytes < 0:
            raise body_too_long()
        self._missing_bytes = missing_bytes
        self._append_body(part)
        if not missing_bytes:
            self._end_of_content(b"".join(self._body))

    def accept_run(self, run: PublishRun) -> int:
        """Process the publishes of a run, and return how many were processed. HOT.

        It may stop early; the caller then returns the remaining publishes to the buffer.
        """
        payloads = run.payloads
        count = len(payloads)
        if self._expects != FRAME_METHOD:
            self._refuse_frame(FRAME_METHOD, payloads[0])
            return count
        self.progress = PUBLISH
        if run.largest_bytes > self._limit_bytes:
            return self._accept_one_by_one(run)
        header = run.headers[0]
        if header is not self._seen_header:
            mark = self.facts.mark
            if (
                mark is None
                or len(header) != mark.header_bytes
                or not header.startswith(mark.before, PROPERTIES_AT)
                or not header.endswith(mark.after)
            ):
                # A refused header does not change the facts.
                self.facts = self._known.get(header[PROPERTIES_AT:]) or self._gauge.facts(header)
            self._seen_header = header
        session = self.session
        taken = 0
        while True:
            taken = session.publish_run(payloads, run.headers, run.bodies, taken)
            if taken == count or self._must_wait() or not payloads[taken].startswith(PUBLISH):
                return taken
            session.publish(payloads[taken], run.headers[taken], run.bodies[taken])
            taken += 1
            if self._expects != FRAME_METHOD:
                return count  # the channel is closing: its frames are discarded
            if taken == count or self._must_wait():
                return taken

    def _must_wait(self) -> bool:
        connection = self.connection
        return connection.held or connection.out_bytes > connection.limits.unsent_max_bytes

    def _accept_one_by_one(self, run: PublishRun) -> int:
        """Process a run in which at least one publish is too large; return the number of publishes processed."""
        for taken, payload in enumerate(run.payloads):
            if taken and (not payload.startswith(PUBLISH) or self._must_wait()):
                return taken
            self.accept(FRAME_METHOD, payload)
            self.accept(FRAME_HEADER, run.headers[taken])
            self.accept(FRAME_BODY, run.bodies[taken])
        return len(run.payloads)

    def send(self, method: Method) -> None:
        """Send a method; do nothing unless the channel is open."""
        if self.state is IS_OPEN:
            self.connection.write_behind(self.number, encode_method(self.number, method))

    def send_content(self, method: Method, header: bytes, body: bytes) -> None:
        if self.state is IS_OPEN:
            frames = content_frames(self.number, header, body, self.connection.frame_max)
            self.connection.write_behind(self.number, encode_method(self.number, method), *frames)

    def send_return(self, method: Method, header: bytes, body: bytes) -> None:
        """Send a basic.return without waiting for withheld answers, because its confirm does not wait either."""
        if self.state is IS_OPEN:
            frames = content_frames(self.number, header, body, self.connection.frame_max)
            self.connection.write(encode_method(self.number, method), *frames)

    def withhold(self, method: Method | None, number: int = UNDECIDED) -> Withheld:
        """Send an answer, if any, once a change is on disk; later answers of the channel wait, too."""
        answer = Withheld(() if method is None else (encode_method(self.number, method),), number)
        if self.state is IS_OPEN:
            self.connection.withhold(self.number, answer)
        return answer

    def begin_closing(self, error: ChannelError) -> None:
        """Send channel.close, close the session, and discard frames until close-ok."""
        self.send(commands.Channel.Close(error.reply_code, error.reply_text, error.class_id, error.method_id))
        self.state = ChannelState.CLOSING
        self._forget_content()
        self._expects = NO_KIND
        self.end_session()

    def end(self) -> None:
        """Close the session and the channel without notifying the client. Called exactly once."""
        try:
            self.end_session()
        finally:
            self.state = ChannelState.CLOSED
            self._forget_content()
            self._expects = NO_KIND
            del self.session  # breaks the reference cycle of channel and session

    def end_session(self) -> None:
        """Close the session if it is not closed yet."""
        if self._session_open:
            self._session_open = False
            self.session.close()

    def _method(self, payload: bytes) -> None:
        index = self.progress = payload[:4]
        if index in CLIENT_METHODS:
            method = decode_settlement(payload) if len(payload) == SETTLEMENT_BYTES else None
            if method is None:
                limits = self.connection.limits
                method = decode_method(payload, limits.table_depth_max, limits.table_entries_max)
            self.session.method(method)
        elif index == CLOSE_METHOD:
            decode_method(payload)
            self.session.leave()
            self.end_session()
            self.send(CLOSE_OK)
            self._closed(self)
        elif index == OPEN_METHOD:
            raise ConnectionFault(504, "second 'channel.open' seen")
        elif index in METHODS:
            raise ConnectionFault(503, "unimplemented method")
        else:
            raise unknown_method(payload)

    def _content_header(self, payload: bytes) -> None:
        if payload[:4] != BASIC_CONTENT or len(payload) < HEADER_FIXED_BYTES:
            raise wrong_content_header(payload)
        self.facts = self._gauge.facts(payload)
        self._seen_header = payload
        body_bytes: int = BODY_SIZE.unpack_from(payload, 4)[0]
        if body_bytes > self._limit_bytes:
            # Refused before any of its body is buffered.
            text = f"message size {body_bytes} is larger than configured max size {self._limit_bytes}"
            raise ChannelError(406, text)
        if body_bytes:
            self._header = payload
            self._missing_bytes = body_bytes
            self._expects = FRAME_BODY
        else:
            self._expects = FRAME_METHOD
            self.session.publish(self._publish, payload, b"")

    def _content_body(self, payload: bytes) -> None:
        missing_bytes = self._missing_bytes - len(payload)
        if missing_bytes < 0:
            raise body_too_long()
        if missing_bytes:
            self._missing_bytes = missing_bytes
            self._append_body(payload)
        elif self._body:
            self._end_of_content(b"".join((*self._body, payload)))
        else:
            self._end_of_content(payload)

    def _end_of_content(self, body: bytes) -> None:
        self._body.clear()
        self._expects = FRAME_METHOD
        self.session.publish(self._publish, self._header, body)

    def _append_body(self, payload: Octets) -> None:
        """Append a part of a body, and join consecutive small parts."""
        body = self._body
        if len(payload) >= LARGE_BYTES:
            body.append(payload)
        elif body and isinstance(body[-1], bytearray):
            body[-1] += payload
        else:
            body.append(bytearray(payload))

    def _forget_content(self) -> None:
        self._publish = self._header = b""
        self._body.clear()

    def _refuse_frame(self, kind: int, payload: bytes) -> None:
        """Refuse a frame that is out of sequence, or handle a frame of a closing channel."""
        if kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY):
            self.progress = NO_METHOD  # no method is at fault
            if kind == FRAME_HEARTBEAT and not payload:  # it belongs on channel 0 (section 4.2.7)
                raise ConnectionFault(505, describe_frame(kind, payload))
            raise broken_frame(kind, payload, "unknown_frame")
        if self.state is not ChannelState.OPEN:
            self._frame_while_closing(kind, payload)
        elif self._expects == FRAME_HEADER:
            raise ConnectionFault(505, "expected content header for class 60, got non content header frame instead")
        elif self._expects == FRAME_BODY:
            raise ConnectionFault(505, "expected content body, got non content body frame instead")
        else:
            self.progress = NO_METHOD
            raise non_method_frame()

    def _frame_while_closing(self, kind: int, payload: bytes) -> None:
        """Handle a frame that arrives after our channel.close; most are discarded."""
        if self.state is ChannelState.CLOSED or kind != FRAME_METHOD:
            return
        index = payload[:4]
        if index == CLOSE_METHOD:  # it crossed ours: answer it, and keep waiting for close-ok
            self.connection.write_behind(self.number, encode_method(self.number, CLOSE_OK))
        elif index == CLOSE_OK_METHOD:
            self._closed(self)
        elif index == OPEN_METHOD:  # as in RabbitMQ; otherwise the client would wait forever
            raise ConnectionFault(504, "second 'channel.open' seen", 20, 10)


def body_too_long() -> ConnectionFault:
    """Return the error for a body that is longer than its content header announced."""
    return ConnectionFault(501, "content body frame exceeds remaining content size")


def wrong_content_header(payload: bytes) -> ConnectionFault:
    """Return the error for a content header that cannot belong to a publish."""
    if len(payload) < HEADER_FIXED_BYTES:
        return broken_frame(FRAME_HEADER, payload, "unknown_frame")
    class_id = int.from_bytes(payload[:2], "big")
    if class_id != 60:
        return ConnectionFault(505, f"expected content header for class 60, got one for class {class_id} instead")
    # Section 4.2.6.1 requires a weight of 0; RabbitMQ refuses any other.
    return ConnectionFault(505, "expected content header for class 60, got non content header frame instead")
