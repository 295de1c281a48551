"""Handshakes in progress: clients that take too long are dropped.

All clients have the same limit, so one timer for the oldest handshake is enough.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from broker.core.auth.peer import Peer
from broker.net.pending_clients import PendingClients


class HandshakeClient(Protocol):
    """A client in its handshake."""

    peer: Peer

    def handshake_late(self, timeout_s: float) -> None:
        """Drop the client unless its handshake is complete."""

    def abort(self) -> None:
        """Drop the client at once."""


class Handshakes:
    """The clients whose handshake is not complete.

    Shapes: `_due` maps each client to the loop's time at which it is late, in the order in which the handshakes began.
    Units: `timeout_s` applies to new handshakes; after it is lowered, new clients may be dropped late.
    """

    __slots__ = ("_due", "_pending", "_timer", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._due: dict[HandshakeClient, float] = {}
        self._pending: PendingClients[HandshakeClient] = PendingClients()
        self._timer: asyncio.TimerHandle | None = None

    def set_timeout(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def begin(self, client: HandshakeClient) -> None:
        loop = asyncio.get_running_loop()
        self._due[client] = due = loop.time() + self.timeout_s
        self._pending.add(client, client.peer.network)
        if self._timer is None:
            self._timer = loop.call_at(due, self._check)

    def end(self, client: HandshakeClient) -> None:
        """Record the end of a handshake, or of its client's connection."""
        self._due.pop(client, None)
        self._pending.remove(client)

    def make_room(self) -> HandshakeClient | None:
        """Remove and return the oldest client of the network with the most clients, or None if there are none."""
        client = self._pending.take()
        if client is not None:
            del self._due[client]
        return client

    def stop(self) -> None:
        """Stop the timer and remove all clients, because the listener closes their connections."""
        self._due.clear()
        self._pending = PendingClients()
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
