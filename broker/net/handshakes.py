"""Handshakes in progress: a client that takes too long is dropped.

All clients have the same time, so one timer for the one that began first is enough. A timer for each connection costs
as much as its password check.
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
    """Holds the clients whose handshake is not over.

    Shapes: `_due` has the loop's time at which each is late, in the order in which they began.
    Units: `timeout_s` is for handshakes that begin from now on; when it was lowered, they may have to wait for those
        that began before.
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
        """Note that a handshake has begun."""
        loop = asyncio.get_running_loop()
        self._due[client] = due = loop.time() + self.timeout_s
        self._strangers.add(client, client.peer.network)
        if self._timer is None:
            self._timer = loop.call_at(due, self._check)

    def end(self, client: HandshakeClient) -> None:
        """Note that a handshake is over, or its client has gone."""
        self._due.pop(client, None)
        self._strangers.remove(client)

    def make_room(self) -> HandshakeClient | None:
        """Forget and return the client that began first of those from the busiest network; None if there is none."""
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
        """Drop those that are late, and look again when the next one is."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for client, due in list(self._due.items()):
            if due > loop.time():
                self._timer = loop.call_at(due, self._check)
                return
            self.end(client)
            client.handshake_late(self.timeout_s)
