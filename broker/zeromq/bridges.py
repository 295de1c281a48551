"""All ØMQ bridges of a broker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from threading import Thread
from typing import Any, Final

import zmq

from broker.amqp.errors import BrokerError
from broker.client.link import ClientLink
from broker.core.auth.peer import Peer
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.settings import Settings
from broker.zeromq.bridge import Bridge, BridgeContext
from broker.zeromq.publish_bridge import PublishBridge
from broker.zeromq.subscribe_bridge import SubscribeBridge

_log = get_logger()

END_S: Final = 1.0  # how long libzmq may take to end, in addition to sending the remaining messages
VERSION_MIN: Final = (4, 3, 5)  # older versions corrupt subscriptions of 246 to 255 bytes (libzmq 4564)


class Bridges:
    """Open the endpoints, and run a bridge for each.

    Raises: BrokerError for an endpoint that cannot be opened, and for an old libzmq.
    """

    def __init__(
        self,
        settings: Settings,
        vhosts: Mapping[str, Vhost],
        attach: Callable[[socket.socket, Peer], Awaitable[None]],
        follow_overlay: Callable[[str, str, Callable[[str, bool], None]], None],
    ) -> None:
        if zmq.zmq_version_info() < VERSION_MIN:
            wanted = ".".join(map(str, VERSION_MIN))
            raise BrokerError(f"libzmq {zmq.zmq_version()} is too old: the bridge needs {wanted} or newer")
        self._attach = attach
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context = BridgeContext(self._context, self._dial, vhosts, follow_overlay, settings)
        self._bridges: list[Bridge] = []
        try:
            for publish in settings.zmq.publish:
                self._bridges.append(PublishBridge(publish, context))
            for subscribe in settings.zmq.subscribe:
                self._bridges.append(SubscribeBridge(subscribe, context))
        except BaseException:
            self.abort()
            raise

    def start(self) -> None:
        """Connect the bridges to the broker."""
        for bridge in self._bridges:
            bridge.start()

    async def stop(self, timeout_s: float) -> None:
        """Forward the received messages, and close the sockets once ØMQ has sent its messages, or after the timeout."""
        await asyncio.gather(*[bridge.stop(timeout_s) for bridge in self._bridges])
        self.tick()  # log the counts of the last, incomplete second
        for bridge in self._bridges:
            bridge.close(int(timeout_s * 1000))
        await asyncio.to_thread(self._end, timeout_s + END_S)

    def abort(self) -> None:
        """Close the sockets at once."""
        for bridge in self._bridges:
            bridge.close(0)
        self._end(END_S)

    def tick(self) -> None:
        """Log lost messages; called once a second."""
        for bridge in self._bridges:
            bridge.tick()

    def facts(self) -> list[dict[str, Any]]:
        """Return a row for each bridge, as JSON."""
        return [bridge.facts() for bridge in self._bridges]

    async def _dial(self, connection: ClientLink, user: str, name: str) -> None:
        """Connect a client within the process. Raises: OSError."""
        peer = Peer(name, inside=user)
        await connection.dial_within(lambda end: self._attach(end, peer))

    def _end(self, timeout_s: float) -> None:
        """Terminate the ØMQ context in a thread, and wait for it until the timeout. *Blocking.*

        In rare cases libzmq does not return, although all sockets are closed (libzmq 2586). The broker stops
        nevertheless, because the thread is a daemon.
        """
        ending = Thread(target=self._context.term, name="zmq-end", daemon=True)
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():
            _log.warning("zmq.not_ended", timeout_s=timeout_s)
