"""One AMQP connection with one channel, for the source or the target of a migration."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pamqp import commands

from broker.amqp.client import ClientConnection, Received
from broker.amqp.codec import Method, encode_method
from broker.amqp.lenient_methods import PublishAny
from broker.client.address import AmqpAddress
from broker.client.link import CallRefused, ClientEvents, ClientLink, ConnectionLost

CHANNEL: Final = 1
HEARTBEAT_S: Final = 30
OPEN_LIMIT_S: Final = 30.0
RECEIVED_MAX_BYTES: Final = 64 << 20  # the socket is not read while the queued deliveries are larger
FLUSH_BYTES: Final = 64 << 10  # unsent publishes are written once they are larger


class MigrationFault(Exception):
    """Messages cannot be moved; the text is one line for the user."""


class MethodRefused(MigrationFault):
    """A broker refused a method and closed the channel, or refused or returned a publish."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class MigrationLink(ClientEvents):
    """The client side of a connection, used by one task.

    Shapes: `deliveries` are received and not yet taken; `confirmed` counts publishes, which are confirmed in order.
    """

    cancelled = "the queue was deleted or its node is gone"

    def __init__(self, name: str, vhost: str, login: tuple[str, str]) -> None:
        """`name` names the broker in error texts."""
        self.name = name
        self.deliveries: deque[Received] = deque()
        self.published = 0
        self.confirmed = 0
        self._client = ClientConnection(
            vhost, login, properties={"connection_name": "slotmq migrate"}, heartbeat_s=HEARTBEAT_S
        )
        self._link = ClientLink(self._client, self)
        self._waiting_bytes = 0
        self._fault: MigrationFault | None = None
        self._changed = asyncio.Event()
        self._is_full = False

    # -- calls of the task --------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, address: AmqpAddress, name: str) -> MigrationLink:
        """Connect, log in and open the channel. Raises: MigrationFault."""
        link = cls(name, address.vhost, address.login)
        try:
            async with asyncio.timeout(OPEN_LIMIT_S):
                await link._link.dial(address)
                await link._link.open()
        except TimeoutError:
            link.abort()
            raise MigrationFault(f"{name}: no answer within {OPEN_LIMIT_S:g} s") from None
        except ssl.SSLError as error:
            raise MigrationFault(f"{name}: no TLS with {address.host} port {address.port}: {error.reason}") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise MigrationFault(f"{name}: cannot reach {address.host} port {address.port}: {reason}") from None
        except CallRefused as refused:
            raise link._fault_of(refused) from None
        except BaseException:
            link.abort()
            raise
        return link

    @property
    def product(self) -> str:
        """The broker's product name and version."""
        properties = self._client.server_properties
        return " ".join(str(properties[name]) for name in ("product", "version") if name in properties)

    async def reopen(self) -> None:
        """Open the channel again after a method was refused. Raises: MigrationFault."""
        await self.call(commands.Channel.Open())

    async def call(self, method: Method) -> Any:
        """Send a method and return its answer. Raises: MigrationFault."""
        try:
            return await self._link.call(CHANNEL, method)
        except CallRefused as refused:
            raise self._fault or self._fault_of(refused) from None

    def send(self, method: Method) -> None:
        """Send a method, after the unsent publishes."""
        self._link.cast(CHANNEL, method)

    def publish(self, exchange: str, key: str, header: bytes, body: bytes) -> None:
        """Queue a mandatory publish, which is sent at the latest by the next `send`, `call` or `until`."""
        self.published += 1
        method = PublishAny(exchange=exchange, routing_key=key, mandatory=True)
        self._client.publish(CHANNEL, encode_method(CHANNEL, method), header, body)
        if self._client.out_bytes > FLUSH_BYTES:
            self._link.flush()

    def take(self) -> Received:
        """Remove the first delivery and return it."""
        delivery = self.deliveries.popleft()
        self._waiting_bytes -= len(delivery.body)
        if self._waiting_bytes < RECEIVED_MAX_BYTES:
            self._link.resume_reading()
        return delivery

    async def until(self, met: Callable[[], bool]) -> None:
        """Send the queued publishes, and wait until a condition is true. Raises: MigrationFault."""
        self._link.flush()
        while not met():
            if self._fault is not None:
                raise self._fault
            self._changed.clear()
            await self._changed.wait()

    async def until_writable(self) -> None:
        """Wait until the broker reads again. Raises: MigrationFault."""
        if self._is_full or self._fault is not None:
            await self.until(lambda: not self._is_full and self._fault is None)

    async def close(self) -> None:
        """Close the connection cleanly, or abort it if the broker does not answer in time."""
        await self._link.close("done")

    def abort(self) -> None:
        self._link.abort()

    # -- events of the connection -------------------------------------------------------------------------------------

    def delivered(self, message: Received) -> None:
        """Queue a delivery, and stop reading when too many bytes are queued."""
        self.deliveries.append(message)
        self._waiting_bytes += len(message.body)
        if self._waiting_bytes >= RECEIVED_MAX_BYTES:
            self._link.pause_reading()

    def settled(self, tag: int, *, multiple: bool, accepted: bool) -> None:
        if accepted:
            self.confirmed = max(self.confirmed, tag)
        else:
            self._stop(MethodRefused(0, f"{self.name} refused a message: the queue is full"))

    def returned(self, message: Received) -> None:
        """Stop, because the broker could not route a message."""
        code, text = message.method.reply_code, message.method.reply_text
        self._stop(MethodRefused(code or 0, f"{self.name} returned a message: {code} {text}"))

    def read(self) -> None:
        self._changed.set()

    def writable(self, *, is_writable: bool) -> None:
        self._is_full = not is_writable
        self._changed.set()

    def ended(self, error: CallRefused) -> None:
        self._stop(self._fault_of(error))

    def _stop(self, fault: MigrationFault) -> None:
        self._fault = self._fault or fault
        self._changed.set()

    def _fault_of(self, refused: CallRefused) -> MigrationFault:
        """Return a fault with a text for the user."""
        if not isinstance(refused, ConnectionLost):
            return MethodRefused(refused.code, f"{self.name}: {refused}")
        return MigrationFault(f"{self.name}: {refused.code or 'the connection is lost:'} {refused}")
