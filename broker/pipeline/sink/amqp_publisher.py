"""Publish many messages over one blocking connection, with confirms, and report the refused ones.

Method frames and encoded properties are cached, and many messages are sent with one write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final, NoReturn, Self

from pamqp import commands

from broker import __version__
from broker.amqp.client import CAPABILITIES, Received
from broker.amqp.framing import FRAME_METHOD, PUBLISH
from broker.amqp.table_writer import encode_short_text
from broker.amqp.wire import PROPERTIES_AT, encode_frame
from broker.client.address import AmqpAddress
from broker.client.blocking import BlockingLink, LinkLost, LinkRefused
from broker.pipeline.faults import PublishFailed, restated
from broker.pipeline.sink.property_columns import SEQUENCE_OCTETS, Memo, NumberedProperties, producer_of

# Exchange, routing key, property octets from the flags on, body, sequence or None, and the caller's identifier.
Outgoing = tuple[str, str, bytes, bytes, int | None, object]


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that was finally refused. `code` is the broker's reply code; 0 means a full queue or an invalid row."""

    message: Outgoing
    code: int
    reason: str


class PublishWindow:
    """The messages in flight.

    Shapes: delivery tags are consecutive and begin at 1 on each connection; `waiting` maps each tag, in ascending
        order, to the message and the number of its nacks.
    """

    def __init__(self, octets_of: Callable[[Outgoing], bytes]) -> None:
        self._octets_of = octets_of
        self.waiting: dict[int, tuple[Outgoing, int]] = {}
        self.next_tag = 1
        self._returned: dict[int, tuple[int, str]] = {}  # code and text by tag, until the ack arrives
        self._last_returned = 0  # the tag of the latest return

    def __len__(self) -> int:
        return len(self.waiting)

    def acked(self, tag: int, *, multiple: bool) -> list[RefusedMessage]:
        """Remove the acked messages, and return those for which a basic.return had arrived. HOT."""
        if multiple and not self._returned:
            waiting = self.waiting
            first = next(iter(waiting), tag + 1)
            if len(waiting) == tag - first + 1:
                waiting.clear()
            else:
                for known in range(first, tag + 1):
                    waiting.pop(known, None)
            return []
        refused = []
        for known in self._tags(tag, multiple=multiple):
            message = self.waiting.pop(known)[0]
            returned = self._returned.pop(known, None)
            if returned is not None:
                refused.append(RefusedMessage(message, *returned))
        return refused

    def nacked(self, tag: int, *, multiple: bool) -> list[tuple[Outgoing, int]]:
        """Remove the nacked messages, and return them with the number of their nacks."""
        found = [self.waiting.pop(known) for known in self._tags(tag, multiple=multiple)]
        return [(message, nacks + 1) for message, nacks in found]

    def _tags(self, tag: int, *, multiple: bool) -> list[int]:
        if not multiple:
            return [tag] if tag in self.waiting else []
        return [known for known in self.waiting if known <= tag]

    def restart(self) -> list[tuple[Outgoing, int]]:
        """Prepare for a new connection, and return the messages that were in flight, in order."""
        left = list(self.waiting.values())
        self.waiting.clear()
        self._returned.clear()
        self.next_tag = 1
        self._last_returned = 0
        return left

    # -- returns ------------------------------------------------------------------------------------------------------

    def returned(self, method: commands.Basic.Return, properties: bytes, body: bytes) -> None:
        """Record that the broker returned a message; its ack follows."""
        tag = self._match(method, properties, body)
        if tag:
            self._last_returned = tag
            self._returned[tag] = (method.reply_code or 0, method.reply_text)

    def _match(self, method: commands.Basic.Return, properties: bytes, body: bytes) -> int:
        """Return the tag of the message to which a basic.return refers, or 0 if there is none.

        Returns arrive in the order of publishes, so this is the first equal message after the previous return. If no
        message is equal, it is the first that differs only in its properties, which the broker may have changed.
        """
        candidate = 0
        route = (method.exchange, method.routing_key)
        for tag in range(self._last_returned + 1, self.next_tag):
            message, _nacks = self.waiting.get(tag, (None, 0))
            if message is None or message[3] != body or message[:2] != route:
                continue
            if self._octets_of(message) == properties:
                return tag
            candidate = candidate or tag
        return candidate


CHANNEL: Final = 1
CLIENT: Final = {
    "product": "slotmq pipeline",
    "version": __version__,
    "capabilities": {**CAPABILITIES, "slotmq.dropped_publishes": True},
}
TICKET: Final = bytes(2)
CONTENT: Final = Struct(">HHQ").pack  # encodes class, weight and body size of a content header
BASIC: Final = 60  # the class id
WRITE_BYTES: Final = 1 << 16
PRODUCERS_MAX: Final = 100  # the size of a cache; each run of the broker that sealed rows is a producer of its own
METHODS_MAX: Final = 100_000  # the size of a cache with a frame for each exchange and key
POLL_S: Final = 0.5
PAUSE_S, PAUSE_MAX_S = 0.05, 2.0  # before resending a nacked message, and before reconnecting
RATE_SLICE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """The options of publishing.

    Units: `rate` is messages per second, or 0 for as fast as the broker accepts; `nack_attempts` is the number of
        attempts for a message that a full queue refuses; `retry_s` limits the time of reconnecting.
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
    raise PublishFailed(
        f"exchange '{exchange}' with key '{key}': {refused.reason}; the option badRecords names a folder for such rows"
    )


class AmqpPublisher:
    """Publish to one vhost.

    After a lost connection every unconfirmed message is sent again. This is safe for messages with a sequence number of
    the producer in the options; an unconfirmed message without a number is an error.
    Invariant: at most `window` messages are in flight.
    """

    def __init__(
        self,
        address: AmqpAddress,
        options: PublisherOptions | None = None,
        refused: Callable[[RefusedMessage], object] = _fail,
    ) -> None:
        """Connect and log in; `refused` is called with each finally refused message. Raises: PublishFailed."""
        self._address = address
        self._options = options = options or PublisherOptions()
        self.refused = refused
        self._numbered = Memo(NumberedProperties, PRODUCERS_MAX)
        self._methods = Memo(self._method, METHODS_MAX)
        self._window = PublishWindow(self._octets_of)
        self._retries: list[tuple[Outgoing, int]] = []  # nacked messages, and the number of nacks
        self._rate_at = 0  # the number of published messages at which to check the clock again
        self._begun_s = 0.0
        self.published = 0
        self.dropped = 0  # published messages that the broker dropped, because it already had their numbers
        with restated(LinkLost, PublishFailed):
            self._link = self._connect()

    def _connect(self) -> BlockingLink:
        """Return a new connection with a channel in confirm mode. Raises: PublishFailed if it is refused; LinkLost."""
        with restated(LinkRefused, PublishFailed):
            link = BlockingLink(self._address, {**CLIENT, "connection_name": self._options.name})
            try:
                link.call(CHANNEL, commands.Confirm.Select())
            except BaseException:
                link.abort()
                raise
        return link

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_others: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once; messages in flight may or may not have been published."""
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
        """Send messages in order, without waiting for the last confirms.

        A message that a full queue refuses is resent later, out of order.
        Raises: PublishFailed.
        """
        waiting, options = self._window.waiting, self._options
        limit, rate = options.window, options.rate
        self._poll(0)  # detect a lost connection before more messages are in flight
        for message in messages:
            if len(waiting) >= limit:
                self._write()
                self._settle(limit * 3 // 4)
            if len(self._retries) >= limit:
                self._resend()
            if rate and self.published >= self._rate_at:
                self._pace(rate)
            self._send(message)
            self.published += 1
        self._write()
        self._poll(0)

    def drain(self) -> None:
        """Wait until every message is confirmed or finally refused. Raises: PublishFailed."""
        self._write()
        self._settle(0)
        while self._retries:
            self._resend()

    def _resend(self) -> None:
        """Resend the nacked messages after a pause, and wait for the answers."""
        again, self._retries = self._retries, []
        time.sleep(min(PAUSE_S * 2 ** min(nacks for _, nacks in again), PAUSE_MAX_S))
        for message, nacks in again:
            if len(self._window) >= self._options.window:
                self._write()
                self._settle(self._options.window // 2)
            self._send(message, nacks)
        self._write()
        self._settle(0)

    def _send(self, message: Outgoing, nacks: int = 0) -> None:
        """Encode a message for the next write. HOT."""
        exchange, key, _properties, body, _sequence, _place = message
        method = self._methods[exchange, key]
        client = self._link.client
        client.publish(CHANNEL, method, CONTENT(BASIC, 0, len(body)) + self._octets_of(message), body)
        window = self._window
        tag = window.next_tag
        window.waiting[tag] = (message, nacks)
        window.next_tag = tag + 1
        if client.out_bytes >= WRITE_BYTES:
            self._write()
            self._poll(0)

    def _method(self, route: tuple[str, str]) -> bytes:
        """Return the method frame of an exchange and a key. Raises: PublishFailed if it cannot be encoded."""
        exchange, key = route
        with restated(ValueError, PublishFailed, f"nothing can go to exchange {exchange!r} with key {key[:64]!r}: "):
            names = encode_short_text(exchange) + encode_short_text(key)
        payload = b"".join((PUBLISH, TICKET, names, bytes([self._options.mandatory])))
        return encode_frame(FRAME_METHOD, CHANNEL, payload)

    def _octets_of(self, message: Outgoing) -> bytes:
        """Return the property octets with which a message is sent. HOT."""
        properties, sequence = message[2], message[4]
        if sequence is None or not self._options.producer:
            return properties
        before, after = self._numbered[producer_of(self._options.producer, message[5])].parts[properties]
        return before + SEQUENCE_OCTETS(sequence) + after

    def _write(self) -> None:
        """Write the encoded messages; if the broker blocks publishers, wait first. Raises: PublishFailed."""
        if self._link.client.blocked:
            self._wait_unblocked()
        try:
            self._link.flush()
        except LinkLost as error:
            self._reconnect(error)

    def _pace(self, rate: float) -> None:
        if not self._begun_s:
            self._begun_s = time.monotonic()
        wait_s = self._begun_s + self.published / rate - time.monotonic()
        if wait_s > 0:
            self._write()
            self._poll(0)
            time.sleep(wait_s)
        self._rate_at = self.published + max(1, int(rate * RATE_SLICE_S))

    # -- the broker's answers -----------------------------------------------------------------------------------------

    def _settle(self, upto: int) -> None:
        """Wait until at most `upto` messages are in flight. Raises: PublishFailed."""
        window, limit_s = self._window, self._options.confirm_timeout_s
        count, since_s = len(window), time.monotonic()
        while len(window) > upto:
            self._poll(POLL_S)
            self._write()  # waits while the broker blocks publishers
            if len(window) != count or self._link.client.blocked:
                count, since_s = len(window), time.monotonic()
            elif time.monotonic() - since_s > limit_s:
                raise PublishFailed(f"{self._address} has not confirmed {count} messages for {limit_s:g} s")

    def _poll(self, timeout_s: float) -> None:
        """Handle the broker's answers, waiting up to `timeout_s` for the first one. Raises: PublishFailed."""
        try:
            for received in self._link.receive(timeout_s):
                self._handle(received)
        except LinkLost as error:
            self._reconnect(error)
        except LinkRefused as error:
            raise PublishFailed(str(error)) from None

    def _handle(self, received: Received) -> None:
        """Handle one answer. HOT. Raises: PublishFailed."""
        window, method = self._window, received.method
        if isinstance(method, commands.Basic.Ack):
            before = len(window)
            for refused in window.acked(method.delivery_tag, multiple=method.multiple):
                self.refused(refused)
            if received.dropped:
                self.dropped += before - len(window)
        elif isinstance(method, commands.Basic.Nack):
            self._nacked(method.delivery_tag, multiple=method.multiple)
        elif isinstance(method, commands.Basic.Return):
            window.returned(method, received.header[PROPERTIES_AT:], received.body)

    def _nacked(self, tag: int, *, multiple: bool) -> None:
        for message, nacks in self._window.nacked(tag, multiple=multiple):
            if nacks < self._options.nack_attempts:
                self._retries.append((message, nacks))
            else:
                self.refused(RefusedMessage(message, 0, f"a full queue refused it {nacks} times"))

    def _wait_unblocked(self) -> None:
        """Wait until the broker no longer blocks publishers. Raises: PublishFailed."""
        end_s = time.monotonic() + self._options.blocked_timeout_s
        while blocked := self._link.client.blocked:
            self._poll(POLL_S)
            if self._link.client.blocked and time.monotonic() > end_s:
                raise PublishFailed(f"{self._address} is blocked: {blocked}")

    def _reconnect(self, error: LinkLost) -> None:
        """Reconnect and resend every unconfirmed message. Raises: PublishFailed."""
        self._link.abort()
        left = self._window.restart()
        unnumbered = sum(message[4] is None or not self._options.producer for message, _ in left)
        if unnumbered:
            raise PublishFailed(
                f"{error}; {unnumbered} messages were not confirmed and have no numbers to be sent again"
            )
        end_s, pause_s = time.monotonic() + self._options.retry_s, PAUSE_S
        while True:
            try:
                self._link = self._connect()
                break
            except LinkLost as again:
                if time.monotonic() + pause_s > end_s:
                    raise PublishFailed(f"{error}; {again}") from None
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
        for message, nacks in left:
            self._send(message, nacks)
        self._write()
