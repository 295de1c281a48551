"""Publishes many messages over one blocking connection, with confirms, and reports those that were refused.

It is fast because it reuses everything that messages share: a method frame per exchange and key, property octets per
distinct properties, one write for many messages. Confirms are read by offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final, NoReturn, Self

from pamqp import commands

from broker.amqp.framing import PUBLISH
from broker.amqp.table_writer import encode_short_text
from broker.amqp.wire import FRAME_HEAD, encode_frame
from broker.client.address import AmqpAddress
from broker.pipeline.faults import PublishFailed
from broker.pipeline.sink.amqp_link import CHANNEL, METHOD, AmqpLink, LinkLost
from broker.pipeline.sink.property_columns import SEQUENCE_OCTETS, NumberedProperties, producer_of
from broker.pipeline.sink.publish_window import Outgoing, PublishWindow, RefusedMessage

__all__ = ["AmqpPublisher", "Outgoing", "PublishFailed", "PublisherOptions", "RefusedMessage"]

HEADER, BODY, FRAME_END = 2, 3, 0xCE
ACK, NACK = 0x003C0050, 0x003C0078
CONFIRM: Final = Struct(">IQB")  # class and method, delivery tag, bits
MULTIPLE: Final = 1
DROPPED: Final = 2  # bit of an ack: the broker already had the messages
TICKET: Final = bytes(2)
CONTENT: Final = Struct(">BHIHHQ").pack  # the header of a content header frame, and its class, weight and body size
CONTENT_BYTES: Final = 12
BETWEEN: Final = Struct(">BBHI").pack  # the end of one frame and the header of the next
END: Final = bytes([FRAME_END])
FRAME_BYTES: Final = 8  # a frame without its payload
WRITE_BYTES: Final = 1 << 16
MESSAGE_BYTES: Final = 64  # approximate size of a message without its properties and body
PRODUCERS_MAX: Final = 100  # cached, one for each start of a broker that sealed a row
METHODS_MAX: Final = 100_000  # cached method frames, one for each exchange and key
LOOK_S: Final = 0.5
PAUSE_S, PAUSE_MAX_S = 0.05, 2.0  # before a nacked message is resent, and before reconnecting
RATE_SLICE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """How to publish.

    Units: ``rate`` is messages per second, 0 for as fast as the broker accepts; ``nack_attempts`` is the total number
        of attempts for a message that a full queue refuses; ``retry_s`` is the time limit of reconnecting.
    """

    producer: str = ""
    window: int = 1000
    mandatory: bool = True
    rate: float = 0.0
    nack_attempts: int = 8
    retry_s: float = 30.0
    confirm_timeout_s: float = 120.0
    blocked_timeout_s: float = 600.0
    name: str = "slotmq pipeline"


def _fail(refused: RefusedMessage) -> NoReturn:
    exchange, key = refused.message[:2]
    raise PublishFailed(f"exchange '{exchange}' with key '{key}': {refused.reason}")


class AmqpPublisher:
    """Publishes to one vhost.

    Messages with a sequence are numbered for the producer of the options, so that resending is safe: after a lost
    connection every unconfirmed message is sent again. Without numbers a lost connection is an error.
    Invariant: at most `window` messages are in flight; each finally refused message is passed to `refused` once.
    """

    def __init__(
        self,
        address: AmqpAddress,
        options: PublisherOptions | None = None,
        refused: Callable[[RefusedMessage], object] = _fail,
    ) -> None:
        """Connect and log in. Raises: PublishFailed when the broker refuses the login."""
        self._address = address
        self._options = options = options or PublisherOptions()
        self._refused = refused
        self._numbered: dict[str, NumberedProperties] = {}  # by producer
        self._methods: dict[tuple[str, str], bytes] = {}
        self._window = PublishWindow(self._octets_of)
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._again: list[tuple[Outgoing, int]] = []  # nacked messages, and the number of nacks
        self._return: commands.Basic.Return | None = None  # the method of a return whose content is incomplete
        self._blocked = ""
        self._rate_at = 0  # the number of messages to publish before the clock is checked again
        self._begun_s = 0.0
        self.published = 0
        self.dropped = 0  # of the published ones, because their numbers were already used
        try:
            self._link = AmqpLink(address, options.name)
        except LinkLost as error:
            raise PublishFailed(str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_others: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection; the fate of messages in flight is unknown."""
        self._link.abort()

    def close(self) -> None:
        """Wait for the messages in flight and close the connection. Raises: PublishFailed."""
        try:
            self.drain()
        except BaseException:
            self.abort()
            raise
        self._link.close()

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, messages: Iterable[Outgoing]) -> None:
        """Publish messages in order; return when the last one is sent, before it is confirmed.

        A message that a full queue refuses is resent later, out of order.
        Raises: PublishFailed.
        """
        waiting, options = self._window.waiting, self._options
        limit, rate = options.window, options.rate
        self._look(0)  # detect a lost connection before any message is in flight
        for message in messages:
            if len(waiting) >= limit:
                self._write()
                self._settle(limit * 3 // 4)
            if len(self._again) >= limit:
                self._send_again()
            if rate and self.published >= self._rate_at:
                self._pace(rate)
            self._send(message)
            self.published += 1
        self._write()
        self._look(0)

    def drain(self) -> None:
        """Wait until every message is confirmed or finally refused. Raises: PublishFailed."""
        self._write()
        self._settle(0)
        while self._again:
            self._send_again()

    def _send_again(self) -> None:
        """Resend the nacked messages after a pause, and wait for their outcome."""
        again, self._again = self._again, []
        time.sleep(min(PAUSE_S * 2 ** min(nacks for _, nacks in again), PAUSE_MAX_S))
        for message, nacks in again:
            if len(self._window) >= self._options.window:
                self._write()
                self._settle(self._options.window // 2)
            self._send(message, nacks)
        self._write()
        self._settle(0)

    def _send(self, message: Outgoing, nacks: int = 0) -> None:
        """Encode a message into the next write. HOT."""
        exchange, key, properties, body, sequence, place = message
        method = self._methods.get((exchange, key)) or self._method(exchange, key)
        size = len(body)
        pieces = self._pieces
        if sequence is None or not self._options.producer:
            length = CONTENT_BYTES + len(properties)
            pieces += (method, CONTENT(HEADER, CHANNEL, length, 60, 0, size), properties)
        else:
            before, after = self._parts(properties, place)
            length = CONTENT_BYTES + len(before) + 8 + len(after)
            head = CONTENT(HEADER, CHANNEL, length, 60, 0, size)
            pieces += (method, head, before, SEQUENCE_OCTETS(sequence), after)
        if size <= self._link.frame_max_bytes - FRAME_BYTES:
            pieces += (BETWEEN(FRAME_END, BODY, CHANNEL, size), body, END) if size else (END,)
        else:
            self._split(body)
        window = self._window
        tag = window.next_tag
        window.waiting[tag] = message
        window.next_tag = tag + 1
        if nacks:
            window.attempts[tag] = nacks
        self._pieces_bytes += length + size + MESSAGE_BYTES
        if self._pieces_bytes >= WRITE_BYTES:
            self._write()
            self._look(0)

    def _parts(self, properties: bytes, place: object) -> tuple[bytes, bytes]:
        """Return the octets of properties before and after the sequence number."""
        producer = producer_of(self._options.producer, place)
        numbered = self._numbered.get(producer)
        if numbered is None:
            if len(self._numbered) >= PRODUCERS_MAX:
                self._numbered.clear()
            numbered = self._numbered[producer] = NumberedProperties(producer)
        return numbered.parts(properties)

    def _split(self, body: bytes) -> None:
        limit = self._link.frame_max_bytes - FRAME_BYTES
        for at in range(0, len(body), limit):
            piece = body[at : at + limit]
            self._pieces += (BETWEEN(FRAME_END, BODY, CHANNEL, len(piece)), piece)
        self._pieces.append(END)

    def _method(self, exchange: str, key: str) -> bytes:
        """Return the method frame of a route. Raises: PublishFailed when it cannot be encoded."""
        if len(self._methods) >= METHODS_MAX:
            self._methods.clear()
        try:
            names = encode_short_text(exchange) + encode_short_text(key)
        except ValueError as error:
            raise PublishFailed(f"nothing can go to exchange {exchange!r} with key {key[:64]!r}: {error}") from None
        payload = b"".join((PUBLISH, TICKET, names, bytes([self._options.mandatory])))
        method = encode_frame(METHOD, CHANNEL, payload)
        self._methods[exchange, key] = method
        return method

    def _octets_of(self, message: Outgoing) -> bytes:
        properties, sequence = message[2], message[4]
        if sequence is None or not self._options.producer:
            return properties
        before, after = self._parts(properties, message[5])
        return before + SEQUENCE_OCTETS(sequence) + after

    def _write(self) -> None:
        """Write the encoded messages once the broker is not blocked. Raises: PublishFailed."""
        if self._blocked:
            self._wait_unblocked()
        if not self._pieces:
            return
        octets = b"".join(self._pieces)
        self._pieces.clear()
        self._pieces_bytes = 0
        try:
            self._link.send(octets)
        except LinkLost as error:
            self._reconnect(error)

    def _pace(self, rate: float) -> None:
        """Wait until the next slice of messages is due."""
        if not self._begun_s:
            self._begun_s = time.monotonic()
        wait_s = self._begun_s + self.published / rate - time.monotonic()
        if wait_s > 0:
            self._write()
            self._look(0)
            time.sleep(wait_s)
        self._rate_at = self.published + max(1, int(rate * RATE_SLICE_S))

    # -- the broker's answers -----------------------------------------------------------------------------------------

    def _settle(self, upto: int) -> None:
        """Wait until at most `upto` messages are in flight. Raises: PublishFailed."""
        window, limit_s = self._window, self._options.confirm_timeout_s
        count, since_s = len(window), time.monotonic()
        while len(window) > upto:
            self._look(LOOK_S)
            self._write()  # it waits while the broker is blocked; connection.blocked shows that the broker is alive
            if len(window) != count or self._blocked:
                count, since_s = len(window), time.monotonic()
            elif time.monotonic() - since_s > limit_s:
                raise PublishFailed(f"{self._address} has not confirmed {count} messages for {limit_s:g} s")

    def _look(self, timeout_s: float) -> None:
        """Read the received frames, waiting up to `timeout_s` for the first. Raises: PublishFailed."""
        try:
            octets = self._link.receive(timeout_s)
            if octets:
                self._read(octets)
        except LinkLost as error:
            self._reconnect(error)

    def _read(self, octets: bytes) -> None:
        """Process the received frames. HOT. Raises: PublishFailed, LinkLost."""
        at, length = 0, len(octets)
        while length - at >= FRAME_BYTES:
            kind, _channel, size = FRAME_HEAD.unpack_from(octets, at)
            start, end = at + FRAME_HEAD.size, at + FRAME_BYTES + size
            if end > length:
                break
            if kind == METHOD:
                index, tag, bits = CONFIRM.unpack_from(octets, start) if size >= CONFIRM.size else (0, 0, 0)
                if index == ACK:
                    before = len(self._window) if bits & DROPPED else 0
                    for refused in self._window.acked(tag, multiple=bool(bits & MULTIPLE)):
                        self._refused(refused)
                    if bits & DROPPED:
                        self.dropped += before - len(self._window)
                elif index == NACK:
                    self._nacked(tag, multiple=bool(bits & MULTIPLE))
                else:
                    self._hear(octets[start : end - 1])
            elif self._return is not None and self._window.take_content(self._return, kind, octets[start : end - 1]):
                self._return = None
            at = end
        if at < length:
            self._link.give_back(octets[at:])

    def _nacked(self, tag: int, *, multiple: bool) -> None:
        for message, nacks in self._window.nacked(tag, multiple=multiple):
            if nacks < self._options.nack_attempts:
                self._again.append((message, nacks))
            else:
                self._refused(RefusedMessage(message, 0, f"a full queue refused it {nacks} times"))

    def _hear(self, payload: bytes) -> None:
        """Handle any other method. Raises: PublishFailed when the broker closes the channel, LinkLost at its stop."""
        method = self._link.method(payload)
        if isinstance(method, commands.Basic.Return):
            self._return = method
        elif isinstance(method, commands.Connection.Blocked):
            self._blocked = method.reason or "for no reason that it gives"
        elif isinstance(method, commands.Connection.Unblocked):
            self._blocked = ""
        else:
            self._link.check(method)

    def _wait_unblocked(self) -> None:
        """Wait for the end of an alarm of the broker. Raises: PublishFailed."""
        end_s = time.monotonic() + self._options.blocked_timeout_s
        while self._blocked:
            self._look(LOOK_S)
            if self._blocked and time.monotonic() > end_s:
                raise PublishFailed(f"{self._address} is blocked: {self._blocked}")

    def _reconnect(self, error: LinkLost) -> None:
        """Reconnect and resend every unconfirmed message. Raises: PublishFailed."""
        self._link.abort()
        left = self._window.restart()
        self._pieces.clear()
        self._pieces_bytes = 0
        self._return = None
        self._blocked = ""
        unnumbered = sum(message[4] is None or not self._options.producer for message, _ in left)
        if unnumbered:
            raise PublishFailed(
                f"{error}; {unnumbered} messages were not confirmed and have no numbers to be sent again"
            )
        end_s, pause_s = time.monotonic() + self._options.retry_s, PAUSE_S
        while True:
            try:
                self._link = AmqpLink(self._address, self._options.name)
                break
            except LinkLost as again:
                if time.monotonic() + pause_s > end_s:
                    raise PublishFailed(f"{error}; {again}") from None
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
        for message, nacks in left:
            self._send(message, nacks)
        self._write()
