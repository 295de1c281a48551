"""Publishes many messages over one blocking connection, with confirms, and says which were not taken.

Fast because nothing is made per message that can be made once: a method frame per exchange and key, property octets per
distinct properties, one write for many messages, and confirms are read by offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final, NoReturn, Self

from pamqp import commands

from broker.amqp.framing import PUBLISH, encode_frame
from broker.amqp.table_writer import encode_short_text
from broker.amqp.wire import FRAME_HEAD
from broker.pipeline.faults import PublishFailed
from broker.pipeline.sink.amqp_address import AmqpAddress
from broker.pipeline.sink.amqp_link import CHANNEL, METHOD, AmqpLink, LinkLost
from broker.pipeline.sink.property_columns import SEQUENCE_OCTETS, NumberedProperties, producer_of
from broker.pipeline.sink.publish_window import Outgoing, PublishWindow, RefusedMessage

__all__ = ["AmqpPublisher", "Outgoing", "PublishFailed", "PublisherOptions", "RefusedMessage"]

HEADER, BODY, FRAME_END = 2, 3, 0xCE
ACK, NACK = 0x003C0050, 0x003C0078
CONFIRM: Final = Struct(">IQB")  # class and method, delivery tag, bits
MULTIPLE: Final = 1
DROPPED: Final = 2  # of an ack: the broker had the messages already
TICKET: Final = bytes(2)
CONTENT: Final = Struct(">BHIHHQ").pack  # the head of a content header frame, and its class, weight and body size
CONTENT_BYTES: Final = 12
BETWEEN: Final = Struct(">BBHI").pack  # the end of one frame and the head of the next
END: Final = bytes([FRAME_END])
FRAME_BYTES: Final = 8  # a frame beside its payload
WRITE_BYTES: Final = 1 << 16
MESSAGE_BYTES: Final = 64  # about what a message takes beside its properties and its body
PRODUCERS_MAX: Final = 100  # remembered, one for each start of a broker that sealed a row
METHODS_MAX: Final = 100_000  # method frames remembered, one for each exchange and key
LOOK_S: Final = 0.5
PAUSE_S, PAUSE_MAX_S = 0.05, 2.0  # before what was nacked is sent again, and before a lost broker is tried again
RATE_SLICE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """How to publish.

    Units: ``rate`` is messages per second, 0 as fast as the broker takes them; ``nack_attempts`` is how often in all a
        message is sent that a full queue refuses; ``retry_s`` is for how long a lost connection is tried again.
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

    Messages with a sequence are numbered for the producer of the options, so that sending one again is safe: after a
    lost connection everything unconfirmed is. Without numbers a lost connection is an error.
    Invariant: at most `window` messages are under way; each that is refused for good is handed to `refused` once.
    """

    def __init__(
        self,
        address: AmqpAddress,
        options: PublisherOptions | None = None,
        refused: Callable[[RefusedMessage], object] = _fail,
    ) -> None:
        """Connect and log in. Raises: PublishFailed when the broker does not let us in."""
        self._address = address
        self._options = options = options or PublisherOptions()
        self._refused = refused
        self._numbered: dict[str, NumberedProperties] = {}  # by producer
        self._methods: dict[tuple[str, str], bytes] = {}
        self._window = PublishWindow(self._octets_of)
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._again: list[tuple[Outgoing, int]] = []  # what was nacked, and how often
        self._return: commands.Basic.Return | None = None  # the method of a return whose content is not whole yet
        self._blocked = ""
        self._rate_at = 0  # so many may be published before the next look at the clock
        self._begun_s = 0.0
        self.published = 0
        self.dropped = 0  # of those, as their numbers were used before
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
        """End the connection; what became of what is under way nobody knows."""
        self._link.abort()

    def close(self) -> None:
        """Wait for what is under way and says goodbye. Raises: PublishFailed."""
        try:
            self.drain()
        except BaseException:
            self.abort()
            raise
        self._link.close()

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, messages: Iterable[Outgoing]) -> None:
        """Publish messages in order; returns when the last one is on its way, not when it is confirmed.

        What a full queue refuses is sent again later, out of order.
        Raises: PublishFailed.
        """
        waiting, options = self._window.waiting, self._options
        limit, rate = options.window, options.rate
        self._look(0)  # whether the connection is there still is asked before anything is under way
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
        """Return when everything is confirmed or refused for good. Raises: PublishFailed."""
        self._write()
        self._settle(0)
        while self._again:
            self._send_again()

    def _send_again(self) -> None:
        """Send what was nacked once more, after a pause, and waits for what becomes of it."""
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
        """Encode a message into what is written next. HOT."""
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
        """Return the octets of properties before and behind the number of a place."""
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
        """Return the method frame of a route. Raises: PublishFailed when it cannot be said."""
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
        """Write what was encoded, as soon as the broker lets us. Raises: PublishFailed."""
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
        """Wait until the next slice of messages may go."""
        if not self._begun_s:
            self._begun_s = time.monotonic()
        wait_s = self._begun_s + self.published / rate - time.monotonic()
        if wait_s > 0:
            self._write()
            self._look(0)
            time.sleep(wait_s)
        self._rate_at = self.published + max(1, int(rate * RATE_SLICE_S))

    # -- what the broker says -----------------------------------------------------------------------------------------

    def _settle(self, upto: int) -> None:
        """Wait until no more than so many messages are under way. Raises: PublishFailed."""
        window, limit_s = self._window, self._options.confirm_timeout_s
        count, since_s = len(window), time.monotonic()
        while len(window) > upto:
            self._look(LOOK_S)
            self._write()  # it waits while the broker is blocked, which says that it is there
            if len(window) != count or self._blocked:
                count, since_s = len(window), time.monotonic()
            elif time.monotonic() - since_s > limit_s:
                raise PublishFailed(f"{self._address} has not confirmed {count} messages for {limit_s:g} s")

    def _look(self, timeout_s: float) -> None:
        """Read what has come, waiting at most so long for it. Raises: PublishFailed."""
        try:
            octets = self._link.receive(timeout_s)
            if octets:
                self._read(octets)
        except LinkLost as error:
            self._reconnect(error)

    def _read(self, octets: bytes) -> None:
        """Take the frames that came. HOT. Raises: PublishFailed, LinkLost."""
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
        """Take any other method. Raises: PublishFailed when the broker ends the channel, LinkLost when it stops."""
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
        """Connect anew and send everything unconfirmed again. Raises: PublishFailed."""
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
