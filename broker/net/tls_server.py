"""A server with TLS: accepts sockets, and bounds the number of handshakes under way. asyncio's own server passes on a
client only after the handshake, so clients that never finish one could use up all descriptors of the process.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from broker.core.auth.peer import network_of
from broker.event_log import get_logger
from broker.net.strangers import Strangers, descriptors_for_clients
from broker.tasks import Tasks

HANDSHAKES_MAX: Final = 1024
PART: Final = 4  # of the descriptors for clients; a handshake takes milliseconds
AGAIN_S: Final = 1.0  # how long nothing is accepted after descriptors have run out

_log = get_logger()


def handshakes_max() -> int:
    """Return the limit on handshakes under way at one server."""
    return min(HANDSHAKES_MAX, descriptors_for_clients() // PART)


class TlsServer:
    """Accept the clients of one listening socket, which it owns. Invariant: with `handshakes_max` handshakes under way,
    the oldest of the network with most of them is dropped for a new one.
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
        """Begin to listen, and to accept in the running loop. Raises: OSError."""
        self._socket = listening
        self._protocol = protocol
        self._context = context
        self._backlog = backlog
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._strangers: Strangers[socket.socket] = Strangers()
        self._most = handshakes_max()
        self._descriptors_max = descriptors_for_clients()
        self._tasks = Tasks.logged("tls.failed")
        self._closed = False
        listening.setblocking(False)
        listening.listen(backlog)
        self._loop.add_reader(listening.fileno(), self._accept)

    @property
    def handshakes(self) -> int:
        """The number of handshakes under way."""
        return len(self._strangers)

    def close(self) -> None:
        """Accept no more clients; handshakes continue."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def abort(self) -> None:
        """Drop the clients whose handshake is under way."""
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
                _log.warning("connection.refused", reason=f"nothing can be accepted: {error.strerror}")
                self._make_room()
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(AGAIN_S, self._accept_again)
                return
            self._shake_hands(client, network_of(str(address[0])))

    def _accept_again(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _shake_hands(self, client: socket.socket, network: str) -> None:
        few = client.fileno() >= self._descriptors_max
        if few or len(self._strangers) >= self._most:
            reason = "few descriptors left: ulimit -n" if few else f"{len(self._strangers)} TLS handshakes"
            _log.warning("connection.handshake_dropped", network=network, reason=reason)
            self._make_room()
        if few:
            client.close()
            return
        client.setblocking(False)
        self._strangers.add(client, network)
        self._tasks.start(self._hand_over(client))

    async def _hand_over(self, client: socket.socket) -> None:
        """Create the connection of a client after its handshake; the context logs failures."""
        wait: Any = self._loop.connect_accepted_socket  # typeshed lacks the type for a plain factory
        try:
            await wait(self._protocol, client, ssl=self._context, ssl_handshake_timeout=self._timeout_s)
        except OSError:  # ssl.SSLError, a reset, a timeout
            pass
        finally:
            self._strangers.remove(client)

    def _make_room(self) -> bool:
        """Drop the oldest handshake of the busiest network; return False when there is none."""
        client = self._strangers.take()
        if client is None:
            return False
        try:
            client.shutdown(socket.SHUT_RDWR)  # the loop, which has the descriptor, closes it
        except OSError:  # it has left
            pass
        return True
