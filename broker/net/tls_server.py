"""A TLS server that limits the number of handshakes in progress.

asyncio's own server reports a client only after the handshake, so clients that never finish it could use up all
descriptors of the process.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from broker.core.auth.peer import network_of
from broker.event_log import get_logger
from broker.net.pending_clients import PendingClients, descriptors_for_clients
from broker.tasks import Tasks

HANDSHAKES_MAX: Final = 1024
HANDSHAKES_SHARE: Final = 4  # handshakes use at most 1/HANDSHAKES_SHARE of the descriptors for clients
RETRY_S: Final = 1.0  # nothing is accepted for this long after descriptors have run out

_log = get_logger()


class TlsServer:
    """A server for one listening socket, which it owns.

    At the limit on handshakes in progress, a new handshake replaces the oldest of the network that has the most.
    """

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        *,
        backlog: int,
        timeout_s: float,
    ) -> None:
        """Listen, and accept clients in the running loop. Raises: OSError."""
        self._socket = listening
        self._protocol = protocol
        self._context = context
        self._backlog = backlog
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._pending: PendingClients[socket.socket] = PendingClients()
        self._descriptors_max = descriptors_for_clients()
        self._handshakes_max = min(HANDSHAKES_MAX, self._descriptors_max // HANDSHAKES_SHARE)
        self._tasks = Tasks.logged("tls.failed")
        self._closed = False
        listening.setblocking(False)
        listening.listen(backlog)
        self._loop.add_reader(listening.fileno(), self._accept)

    @property
    def handshakes(self) -> int:
        return len(self._pending)

    def close(self) -> None:
        """Stop accepting clients; handshakes continue."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def abort(self) -> None:
        """Drop the clients whose handshake is in progress."""
        while self._make_room():
            pass

    def _accept(self) -> None:
        """Accept waiting clients, as many as asyncio would at a time."""
        for _ in range(self._backlog):
            try:
                client, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or memory left
                _log.warning("connection.refused", reason=f"cannot accept clients: {error.strerror}")
                self._make_room()
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(RETRY_S, self._accept_again)
                return
            self._shake_hands(client, network_of(str(address[0])))

    def _accept_again(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _shake_hands(self, client: socket.socket, network: str) -> None:
        lacks_descriptors = client.fileno() >= self._descriptors_max
        if lacks_descriptors or len(self._pending) >= self._handshakes_max:
            reason = "few descriptors left: ulimit -n" if lacks_descriptors else f"{len(self._pending)} TLS handshakes"
            _log.warning("connection.handshake_dropped", network=network, reason=reason)
            self._make_room()
        if lacks_descriptors:
            client.close()
            return
        client.setblocking(False)
        self._pending.add(client, network)
        self._tasks.start(self._hand_over(client))

    async def _hand_over(self, client: socket.socket) -> None:
        """Create the connection of a client after its handshake; the context logs failures."""
        wait: Any = self._loop.connect_accepted_socket  # typeshed lacks the type for a plain factory
        try:
            await wait(self._protocol, client, ssl=self._context, ssl_handshake_timeout=self._timeout_s)
        except OSError:  # ssl.SSLError, a reset, a timeout
            pass
        finally:
            self._pending.remove(client)

    def _make_room(self) -> bool:
        """Drop the oldest handshake of the network with the most handshakes; return False if there are none."""
        client = self._pending.take()
        if client is None:
            return False
        try:
            client.shutdown(socket.SHUT_RDWR)  # the loop then closes the socket
        except OSError:  # the client has disconnected
            pass
        return True
