"""A bridge between one ØMQ socket and one exchange: its connection to the broker, and the form of its topics."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import zmq

from broker.amqp.client import ClientConnection
from broker.amqp.errors import BrokerError, NotNow
from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.client.link import CallRefused, ClientEvents, ClientLink
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.routing.exchange import Exchange
from broker.routing.pattern import HASH, STAR, split_words
from broker.settings import Settings
from broker.settings.zmq import ZmqEndpoint
from broker.tasks import Tasks
from broker.zeromq.interest import DerivedInterest
from broker.zeromq.loop_socket import LoopSocket

_log = get_logger()

PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
RECONNECT_MS: Final = 100  # ØMQ's first pause between connection attempts, with jitter
RECONNECT_MAX_MS: Final = 5000  # its longest pause
UNLIMITED: Final = 0
TEMPORARY: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ENODEV)  # the address is in use, or not available yet
# TCP detects a peer whose machine is down after 25 seconds. Not every peer answers ØMQ's heartbeats.
KEEPALIVE: Final = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
PEER_EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
PEER_EVENT: Final = Struct("=HI")  # a monitor's message: the event and its value, in native byte order
CLOSED: Final = "the bridge stops"
CHANNELS: Final = 2
DATA: Final = 1  # the channel of messages
BINDINGS: Final = 2  # the channel of bindings, which a refusal closes
WILDCARDS: Final = (STAR, HASH)
DOT: Final = b"."
SUBSCRIBE: Final = b"\x01"  # the first octet of a subscription message; the prefix follows
UNSUBSCRIBE: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class BridgeContext:
    """The broker's interface for bridges.

    Shapes: `sockets` creates ØMQ sockets. `dial` connects a client within the process, which logs in as a user.
        `follow_overlay` takes a vhost, an exchange and a function, and calls the function with each pattern that the
        overlay begins (True) or ceases (False) to want from the exchange.
    """

    sockets: zmq.Context[zmq.Socket[bytes]]
    dial: Callable[[ClientLink, str, str], Awaitable[None]]
    vhosts: Mapping[str, Vhost]
    follow_overlay: Callable[[str, str, Callable[[str, bool], None]], None]
    settings: Settings


class Bridge(ClientEvents):
    """Connect a ØMQ socket to an exchange.

    Shapes: `kind` is the type of the endpoint in the settings: publish or subscribe. `lingers` says whether a closed
        socket still sends its messages. `interest` is what the bridge requests from one side for the other.
    """

    kind: str
    lingers: bool
    interest: DerivedInterest[Any, Any]

    def __init__(self, settings: ZmqEndpoint, context: BridgeContext, socket_type: int) -> None:
        self.settings = settings
        self.context = context
        self.vhost = settings.vhost or context.settings.auth.default_vhost
        self.user = settings.user or context.settings.auth.default_user
        self.form = TopicForm(trailing_dot=settings.trailing_dot, words_max=context.settings.routing.words_max)
        self.endpoint = settings.endpoint
        self.connection: ClientLink | None = None  # None until `set_up` has returned
        self.problem = ""
        self._zmq_socket = context.sockets.socket(socket_type)
        self._tasks = Tasks.logged("zmq.bridge_crashed")
        self._stopping = False
        self.changed = asyncio.Event()
        self.socket = LoopSocket(self._zmq_socket, self.received, self.received_all)
        self._monitor = LoopSocket(self._zmq_socket.get_monitor_socket(PEER_EVENTS), self._peer_event)
        self._peers: set[int] = set()

    def received(self, frames: list[bytes]) -> None:
        """Handle a message of the ØMQ socket."""
        raise NotImplementedError

    def received_all(self) -> None:
        """Handle the end of a batch of received messages."""

    async def set_up(self, connection: ClientLink) -> None:
        """Set up a new connection. Raises: CallRefused."""
        raise NotImplementedError

    async def apply(self, connection: ClientLink) -> None:
        """Apply the pending changes of the interest. Raises: CallRefused."""

    async def drain(self) -> None:
        """Wait until all received messages are forwarded."""

    def detached(self) -> None:
        """Handle the end of the connection."""

    def tick(self) -> None:
        """Log lost messages; called once a second."""

    def find(self) -> tuple[Vhost, Exchange]:
        """Return the vhost and the exchange. Raises: CallRefused if either does not exist."""
        vhost = self.context.vhosts.get(self.vhost)
        if vhost is None:
            raise CallRefused(0, f"no vhost '{self.vhost}'")
        exchange = vhost.exchanges.get(self.settings.exchange)
        if exchange is None:
            raise CallRefused(0, f"no exchange '{self.settings.exchange}' in vhost '{self.vhost}'")
        return vhost, exchange

    # -- running ------------------------------------------------------------------------------------------------------

    def open(self, options: dict[int, int]) -> None:
        """Bind or connect the socket; close it if that fails. Raises: BrokerError."""
        common = {zmq.RECONNECT_IVL: RECONNECT_MS, zmq.RECONNECT_IVL_MAX: RECONNECT_MAX_MS, **KEEPALIVE}
        if "[" in self.settings.endpoint:
            common[zmq.IPV6] = 1
        for option, value in {**common, **options}.items():
            self._zmq_socket.setsockopt(option, value)
        try:
            if self.settings.connect:
                self._zmq_socket.connect(self.settings.endpoint)
            else:
                self._zmq_socket.bind(self.settings.endpoint)
                last: bytes = self._zmq_socket.getsockopt(zmq.LAST_ENDPOINT)
                self.endpoint = last.rstrip(b"\0").decode()
        except zmq.ZMQError as error:
            self.close(0)
            verb = "connect to" if self.settings.connect else "listen on"
            kind = NotNow if error.errno in TEMPORARY else BrokerError
            raise kind(f"cannot {verb} {self.settings.endpoint}: {zmq.strerror(error.errno)}") from error

    def start(self) -> None:
        """Start connecting to the broker."""
        self._monitor.resume()
        self._tasks.start(self._run())

    async def stop(self, timeout_s: float) -> None:
        """Forward the received messages and close the connection, within the timeout."""
        self._stopping = True
        connection = self.connection
        if connection is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.drain()
                    self.connection = None
                    await connection.close(CLOSED)
            except (CallRefused, TimeoutError) as error:
                _log.warning("zmq.bridge_cut", **self.facts_of_log, reason=str(error) or "not done in time")
        await self._tasks.stop()

    def close(self, linger_ms: int) -> None:
        self._zmq_socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(linger_ms if self.lingers else 0)

    def _peer_event(self, frames: list[bytes]) -> None:
        """Record a peer that connected or disconnected, by the descriptor of its connection."""
        event, descriptor = PEER_EVENT.unpack(frames[0])
        if event == zmq.EVENT_DISCONNECTED:
            self._peers.discard(descriptor)
        else:
            self._peers.add(descriptor)

    def _connection(self) -> ClientLink:
        properties = {"connection_name": f"zmq {self.kind} {self.endpoint}"}
        return ClientLink(ClientConnection(self.vhost, None, properties=properties, channels=CHANNELS), self)

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            event = "zmq.bridge_failed"
            connection = self._connection()
            try:
                self.find()
                await self.context.dial(connection, self.user, f"zmq {self.endpoint}")
                await connection.open()
                await self.set_up(connection)
                self.connection, self.problem, pause_s, event = connection, "", PAUSE_S, "zmq.bridge_lost"
                _log.info("zmq.bridge_opened", **self.facts_of_log, user=self.user)
                connection.ended.add_done_callback(lambda _: self.changed.set())
                self.changed.set()
                while not connection.ended.done():
                    await self.changed.wait()
                    self.changed.clear()
                    if not connection.ended.done():
                        await self.apply(connection)
                self.problem = connection.ended.result()
            except (CallRefused, OSError) as error:
                self.problem = str(error)
            except Exception as error:  # noqa: BLE001 - a defect: this bridge reconnects, and others continue
                self.problem = "unexpected error, see the broker's log"
                _log.error("zmq.bridge_crashed", **self.facts_of_log, exc_info=error)
            finally:
                self.connection = None
                self.detached()
                await connection.close(CLOSED)
            if self._stopping:
                return
            _log.warning(event, **self.facts_of_log, reason=self.problem, next_s=round(pause_s, 1))
            await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - jitter is not a secret
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    @property
    def facts_of_log(self) -> dict[str, Any]:
        """The fields of each log event of the bridge."""
        return {"endpoint": self.endpoint, "vhost": self.vhost, "exchange": self.settings.exchange}

    def facts(self) -> dict[str, Any]:
        """Return a row of facts, as JSON."""
        return {
            "kind": self.kind,
            **self.facts_of_log,
            "user": self.user,
            "state": "up" if self.connection is not None else "down",
            "problem": self.problem,
            "peers": len(self._peers),
            "subscriptions": len(self.interest),
            "passed_on": len(self.interest.asked),
            "everything": self.interest.is_everything,
        }


class TopicForm:
    """Convert between routing keys and ØMQ topics, and between binding keys and ØMQ prefixes, for one endpoint.

    ØMQ matches the first octets of a message; AMQP matches words. With a dot after the routing key, the prefix `a.b.`
    is equivalent to the binding key `a.b.#`: both also match the routing key `a.b`.
    Invariant: a converted prefix or binding key matches at least what the original matches; the receiver filters again.
    Shapes: with `trailing_dot` a topic frame is the routing key and a dot, otherwise the routing key alone.
    Units: `words_max` is the most words of a binding key.
    """

    def __init__(self, *, trailing_dot: bool, words_max: int) -> None:
        self._end = DOT if trailing_dot else b""
        self._words_max = words_max

    def topic(self, key: str) -> bytes:
        """Return the topic frame of a routing key."""
        return key.encode() + self._end

    def key(self, topic: bytes) -> str:
        """Return the routing key of a topic frame; a missing trailing dot is accepted.

        Raises: ValueError for a topic that cannot be a routing key.
        """
        octets = topic.removesuffix(self._end)
        if len(octets) > SHORT_STRING_MAX_BYTES:
            raise ValueError(f"a topic of {len(topic)} bytes, a routing key has {SHORT_STRING_MAX_BYTES} at most")
        try:
            return octets.decode()
        except UnicodeDecodeError:
            raise ValueError("a topic that is not UTF-8") from None

    def binding_key(self, prefix: bytes) -> str:
        """Return a binding key that matches the routing keys of all topics with a prefix.

        It contains the complete words of the prefix before the first word that cannot be in a binding key, and a `#`.
        """
        if prefix == DOT:  # the topic of the empty routing key, which has no words
            return HASH
        words = list(self._words(prefix))
        return ".".join([*words[: self._words_max - 1], HASH])

    def _words(self, prefix: bytes) -> Iterator[str]:
        left_bytes = SHORT_STRING_MAX_BYTES - len(HASH)
        for octets in prefix.split(DOT)[:-1]:
            left_bytes -= len(octets) + 1
            try:
                word = octets.decode()
            except UnicodeDecodeError:
                return
            if word in WILDCARDS or left_bytes < 0:
                return
            yield word

    def prefix(self, pattern: str) -> bytes:
        """Return a prefix of the topics of all routing keys that match a pattern: its words before any wildcard."""
        literal = []
        for word in split_words(pattern):
            if word in WILDCARDS:
                break
            literal.append(word.encode())
        if not literal:  # the empty pattern matches only the empty routing key
            return b"" if pattern else self._end
        return DOT.join(literal) + self._end
