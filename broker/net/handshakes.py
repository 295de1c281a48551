"""Handshakes in progress: clients that take too long are dropped. All clients have the same limit, so one timer for the
oldest handshake is enough. A timer for each connection costs as much as its password check.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from broker.core.auth.peer import Peer
from broker.net.strangers import Strangers


class HandshakeClient(Protocol):
    """A client in its handshake."""

    peer: Peer

    def handshake_late(self, timeout_s: float) -> None:
        """Drop the client, unless its handshake is over."""

    def abort(self) -> None:
        """Drop the client at once."""


class Handshakes:
    """Track the clients whose handshake is not finished. Shapes: `_due` has the loop's time at which each is late, in
    the order of their beginning. Units: `timeout_s` applies to handshakes that begin from now on; after it was lowered,
    they may have to wait for earlier ones.
    Cost: a dictionary entry per handshake.
    """

    __slots__ = ("_due", "_strangers", "_timer", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._due: dict[HandshakeClient, float] = {}
        self._strangers: Strangers[HandshakeClient] = Strangers()
        self._timer: asyncio.TimerHandle | None = None

    def set_timeout(self, timeout_s: float) -> None:
        """Set the time of handshakes that begin from now on."""
        self.timeout_s = timeout_s

    def begin(self, client: HandshakeClient) -> None:
        """Record the beginning of a handshake."""
        loop = asyncio.get_running_loop()
        self._due[client] = due = loop.time() + self.timeout_s
        self._strangers.add(client, client.peer.network)
        if self._timer is None:
            self._timer = loop.call_at(due, self._check)

    def end(self, client: HandshakeClient) -> None:
        """Record the end of a handshake, or of its client's connection."""
        self._due.pop(client, None)
        self._strangers.remove(client)

    def make_room(self) -> HandshakeClient | None:
        """Remove and return the oldest client of the busiest network; None if there is none."""
        client = self._strangers.take()
        if client is not None:
            del self._due[client]
        return client

    def stop(self) -> None:
        """Stop dropping clients: the listener has closed all connections."""
        self._due.clear()
        self._strangers = Strangers()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Drop late clients, and schedule the next check."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for client, due in list(self._due.items()):
            if due > loop.time():
                self._timer = loop.call_at(due, self._check)
                return
            self.end(client)
            client.handshake_late(self.timeout_s)
