"""A connection without a broker: the test holds the other end of the socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from broker.perf.peer import PeerConnection


class LoosePeer:
    """The part of a peer that a sender or receiver uses."""

    def __init__(self, end: socket.socket, channel: int) -> None:
        self.socket = end
        self.channel = channel
        self.received = bytearray()


@contextmanager
def loose_peer(channel: int = 1) -> Iterator[tuple[PeerConnection, socket.socket]]:
    """Return a peer and the broker's end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield cast("PeerConnection", LoosePeer(ours, channel)), theirs
