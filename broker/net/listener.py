"""Accept clients' sockets, and create a transport, a connection and a session for each."""

from __future__ import annotations

import asyncio
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, cast

from broker import __version__
from broker.amqp.connection import Connection
from broker.amqp.errors import ChannelError, ConnectionFault, ProtocolError, Refused
from broker.amqp.handshake import ConnectionLimits
from broker.core.auth.logins import Logins
from broker.core.auth.peer import Peer
from broker.core.auth.permissions import Permissions
from broker.core.auth.usage import Usage
from broker.core.session.channel import SessionOfChannel
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost
from broker.delivery.turn import Turn
from broker.event_log import get_logger
from broker.net.address import close, close_servers, listen
from broker.net.handshakes import Handshakes
from broker.net.pending_clients import descriptors_for_clients
from broker.net.publisher_throttle import PublisherThrottle, Stop
from broker.net.tls import TlsContext
from broker.net.tls_server import TlsServer
from broker.net.transport import UNKNOWN, Transport
from broker.settings import Settings

_log = get_logger()

AMQP: Final = "amqp"
FORCED: Final = 320  # connection-forced
QUIET_S: Final = 0.5  # a stopping broker drops clients that have been silent for this long
STEPS: Final = 10  # the checks of all connections, once a second, are spread over this many steps
# A 3.x release of RabbitMQ and its Erlang: for version 4, kombu would not request a prefetch for the whole channel,
# which Celery's countdown needs.
RABBITMQ: Final = {"version": "3.10.8", "platform": "Erlang/OTP 25.2.3"}
VERSION_NUMBERS: Final = 3


class Listener:
    """A server that accepts clients, and checks connected clients every second.

    Shapes: `transports` contains the clients in the order in which they connected.
    Raises: CannotListen from `serve`.
    """

    def __init__(
        self,
        settings: Settings,
        turn: Turn,
        throttle: PublisherThrottle,
        *,
        logins: Logins,
        permissions: Permissions,
        usage: Usage,
        vhosts: Mapping[str, Vhost],
        is_down: Callable[[str], bool] | None = None,
        tls: TlsContext | None = None,
    ) -> None:
        self._settings = settings
        self._turn = turn
        self._throttle = throttle
        self._logins = logins
        self._permissions = permissions
        self._usage = usage
        self._vhosts = vhosts
        self._is_down = is_down
        self.limits = limits_of(settings)
        self._announced = server_properties(settings.amqp.product)
        self._servers: list[asyncio.Server] = []
        self._tls = tls
        self._tls_bound: list[tuple[socket.socket, Callable[[], asyncio.Protocol]]] = []
        self._tls_servers: list[TlsServer] = []
        self.channel_opened: Callable[[SessionOfChannel], None] | None = None
        self._handshakes = Handshakes(settings.server.handshake_timeout_ms / 1000)
        # Bound methods that all transports share: separate ones would take 64 bytes each.
        self._make_machine = self._machine
        self._on_made = self._made
        self._on_lost = self._lost
        self._empty = asyncio.Event()
        self._empty.set()
        self.transports: dict[Transport, None] = {}
        self._short_heartbeats: dict[Transport, None] = {}
        self.received_before = 0  # bytes of closed connections
        self.sent_before = 0
        self._round: list[Transport] = []
        self._step = 0
        self._stopping = False
        self._descriptors_max = descriptors_for_clients()
        self.ports: dict[str, int] = {}
        self.protocols: dict[str, Callable[[], asyncio.Protocol]] = {}

    def apply_settings(self, settings: Settings) -> None:
        """Apply changed settings; limits that were negotiated with clients stay."""
        self._settings = settings
        self.limits = limits_of(settings)
        self._announced = server_properties(settings.amqp.product)
        self._handshakes.set_timeout(settings.server.handshake_timeout_ms / 1000)

    async def serve(
        self,
        protocol: str,
        bound: list[socket.socket],
        tls_bound: list[socket.socket],
        machine: Callable[[Transport], Connection] | None = None,
    ) -> None:
        """Listen for clients of a protocol on the bound sockets, with TLS on `tls_bound`; AMQP needs no `machine`.

        The port numbers are added to `ports`, and a factory for sockets that are accepted elsewhere to `protocols`.
        """
        loop, backlog = asyncio.get_running_loop(), self._settings.server.backlog
        make = self.protocols[protocol] = partial(self._transport, UNKNOWN, machine)
        for one in bound:
            listen(one, backlog)
            self._servers.append(await loop.create_server(make, sock=one, backlog=backlog))
            self.ports[protocol] = one.getsockname()[1]
        if self._tls is not None and tls_bound:
            self.ports[f"{protocol}/ssl"] = tls_bound[0].getsockname()[1]
            self._listen_with_tls(self._tls, [(one, make) for one in tls_bound])

    @property
    def port(self) -> int:
        """The port of AMQP, or 0 without a listener."""
        return self.ports.get(AMQP, 0)

    @property
    def tls_port(self) -> int:
        """The port of AMQP with TLS, or 0 without a listener."""
        return self.ports.get(f"{AMQP}/ssl", 0)

    def mechanisms(self, transport: Transport) -> Sequence[str]:
        """Return the SASL mechanisms that a client may use."""
        return self._logins.mechanisms(transport.peer)

    async def renew_tls(self) -> None:
        """Use the current certificate for new connections; open connections keep theirs.

        The sockets stay bound and listening, so that no client is refused.
        """
        if self._tls is not None and not self._stopping:
            stale, self._tls_servers = self._tls_servers, []
            bound, self._tls_bound = self._tls_bound, []
            self._listen_with_tls(self._tls, bound)
            for server in stale:
                server.close()

    def _listen_with_tls(
        self, tls: TlsContext, bound: list[tuple[socket.socket, Callable[[], asyncio.Protocol]]]
    ) -> None:
        backlog, timeout_s = self._settings.server.backlog, self._settings.tls.handshake_timeout_ms / 1000
        self._tls_bound += bound
        for one, _ in bound:
            listen(one, backlog)
        self._tls_servers += [
            TlsServer(one.dup(), make, tls.context, backlog=backlog, timeout_s=timeout_s) for one, make in bound
        ]

    async def attach(self, end: socket.socket, peer: Peer) -> None:
        """Serve a client within this process through one socket of a pair."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self._transport(peer), end)

    def sessions(self) -> list[SessionOfConnection]:
        return [transport.session for transport in self.transports]

    def blocked_sessions(self) -> list[SessionOfConnection]:
        return [transport.session for transport in self._throttle.blocked]

    def force_close(self, matches: Callable[[SessionOfConnection], bool], reason: str) -> None:
        """Close the matching connections on behalf of an operator. Source: RabbitMQ's reply code."""
        for session in self.sessions():
            if matches(session):
                session.force_close(reason)

    def announce_failure(self, reason: str) -> None:
        """Send the failure of the broker to the clients, bypassing their sessions, which must not act any more."""
        fault = ConnectionFault(541, reason)
        for transport in list(self.transports):
            transport.announce_failure(fault)

    def step(self) -> None:
        """Check the next tenth of the connections, and all short heartbeats; called ten times a second."""
        for transport in list(self._short_heartbeats):
            transport.beat(STEPS)
        if not self._step:
            self._round = list(self.transports)
        count, step = len(self._round), self._step
        self._step = (step + 1) % STEPS
        part = self._round[count * step // STEPS : count * (step + 1) // STEPS]
        self._check([transport for transport in part if transport in self.transports])  # still connected

    def _check(self, transports: list[Transport]) -> None:
        """Check heartbeats, close timeouts, and consumers that do not read or do not ack."""
        slow_s = -(-self._settings.flow.slow_client_ms // 1000)
        for transport in transports:
            transport.tick(slow_s)
        self._close_overdue(transports)

    def close_overdue(self) -> None:
        """Close the channels of consumers that have not acked a delivery in time."""
        self._close_overdue(list(self.transports))

    def _close_overdue(self, transports: list[Transport]) -> None:
        timeout_ms = self._settings.amqp.consumer_timeout_ms
        for transport in transports:
            if transport.is_open:
                transport.session.close_overdue(self._turn.now_ms, timeout_ms)

    def refuse_new(self) -> None:
        """Stop accepting sockets."""
        self._stopping = True
        self.protocols.clear()
        close_servers(self._servers)
        for server in self._tls_servers:
            server.close()
        close([one for one, _ in self._tls_bound])
        self._tls_bound = []

    def stop_reading(self) -> None:
        """Stop reading from all clients; only input received so far is processed."""
        for transport in list(self.transports):
            transport.stop_reading(Stop.STOPPING)

    async def wait_empty(self) -> None:
        """Wait until no clients are connected."""
        await self._empty.wait()

    async def close(self, timeout_s: float, progress: Callable[[int], None]) -> None:
        """Close every connection, and wait up to `timeout_s` for clients that still send or receive.

        Silent clients are dropped, because an idle connection of a pool reads nothing until its next use. `progress` is
        called with the number of open connections.
        Source: RabbitMQ's reply code and text for a stopping broker; RabbitMQ does not wait for close-ok either.
        """
        for transport in list(self.transports):
            transport.send_close()
        unanswered = 0
        try:
            async with asyncio.timeout(timeout_s):
                while self.transports:
                    progress(len(self.transports))
                    received_bytes = {transport: transport.received_bytes for transport in self.transports}
                    with suppress(TimeoutError):
                        async with asyncio.timeout(QUIET_S):
                            await self.wait_empty()
                    quiet = [one for one in self.transports if received_bytes.get(one) == one.received_bytes]
                    unanswered += sum([transport.close_silent() for transport in quiet])
        except TimeoutError:
            _log.warning(
                "connection.dropped", count=len(self.transports), reason="still sending or receiving while stopping"
            )
        if unanswered:
            _log.info("connection.left", count=unanswered, reason="no close-ok while stopping")
        self.abort()

    def abort(self) -> None:
        self._handshakes.stop()
        for server in self._tls_servers:
            server.abort()
        for transport in list(self.transports):
            transport.abort()

    def _transport(
        self, peer: Peer = UNKNOWN, machine: Callable[[Transport], Connection] | None = None
    ) -> asyncio.Protocol:
        transport = Transport(
            machine or self._make_machine,
            self._turn,
            self._throttle,
            handshakes=self._handshakes,
            short_heartbeats=self._short_heartbeats,
            on_made=self._on_made,
            on_lost=self._on_lost,
            peer=peer,
        )
        return cast("asyncio.Protocol", transport)

    def _machine(self, transport: Transport) -> Connection:
        return Connection(
            partial(self.session_of, transport, SessionOfConnection),
            self.limits,
            self._announced,
            transport,
            self.log_error,
            mechanisms=self.mechanisms(transport),
        )

    def session_of(
        self, transport: Transport, kind: type[SessionOfConnection], connection: Connection
    ) -> SessionOfConnection:
        self._turn.read_clock()
        session = kind(
            connection,
            logins=self._logins,
            permissions=self._permissions,
            usage=self._usage,
            vhosts=self._vhosts,
            peer=transport.peer,
            opened=self.channel_opened,
            is_down=self._is_down,
            connected_ms=self._turn.now_ms,
        )
        transport.set_session(session)
        session.output_window.set_high_water(self._settings.flow.high_water_bytes)
        return session

    def _made(self, transport: Transport) -> bool:
        if self._stopping:
            return False
        is_full = len(self.transports) >= self._settings.server.connections_max
        lacks_descriptors = transport.descriptor >= self._descriptors_max
        dropped = self._handshakes.make_room() if is_full or lacks_descriptors else None
        limit: dict[str, Any] = (
            {"reason": f"{len(self.transports)} connections", "setting": "server.connections_max"}
            if is_full
            else {"reason": "few descriptors left: ulimit -n"}
        )
        if dropped is not None:
            _log.warning("connection.handshake_dropped", conn=dropped.peer.name, **limit)
            dropped.abort()
        if lacks_descriptors or (is_full and dropped is None):
            _log.warning("connection.refused", conn=transport.session.name, **limit)
            return False
        self.transports[transport] = None
        self._empty.clear()
        return True

    def _lost(self, transport: Transport) -> None:
        self.transports.pop(transport, None)
        self.received_before += transport.connection.received
        self.sent_before += transport.connection.sent
        if not self.transports:
            self._empty.set()

    @staticmethod
    def log_error(connection: Connection, channel: int, error: ProtocolError | Refused) -> None:
        """Log an error that is sent to a client."""
        if isinstance(error, Refused):
            return  # the session has logged it, with the reason, which the client does not get
        event = "channel.failed" if isinstance(error, ChannelError) else "connection.failed"
        session: Any = connection.session
        log = _log.info if error.reply_code == FORCED else _log.warning  # FORCED: not the client's fault
        log(event, **session.facts, channel=channel, code=error.reply_code, text=error.reply_text)


def limits_of(settings: Settings) -> ConnectionLimits:
    """Return the limits of a new connection."""
    amqp = settings.amqp
    return ConnectionLimits(
        frame_max_bytes=amqp.frame_max_bytes,
        frame_min_bytes=min(amqp.frame_min_bytes, amqp.frame_max_bytes),
        initial_frame_max_bytes=min(amqp.initial_frame_max_bytes, amqp.frame_max_bytes),
        channel_max=amqp.channel_max,
        heartbeat_s=amqp.heartbeat_s,
        max_message_size_bytes=amqp.max_message_size_bytes,
        tx_max_bytes=amqp.tx_max_bytes,
        consumers_max=settings.limits.consumers_max,
        table_depth_max=amqp.table_depth_max,
        table_entries_max=amqp.table_entries_max,
    )


def server_properties(product: Literal["SlotMQ", "RabbitMQ"]) -> dict[str, Any]:
    """Return the server properties of connection.start for a product name, which the settings choose.

    Shapes: the version has only three numbers, because some clients cannot parse more.
    """
    version = ".".join(__version__.split(".")[:VERSION_NUMBERS])
    ours = {"version": version, "platform": f"Python {platform.python_version()}"}
    chosen = RABBITMQ if product == "RabbitMQ" else ours
    return {"product": product, **chosen, "copyright": "", "information": "AMQP 0-9-1 topic broker"}
