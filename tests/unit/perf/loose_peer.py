"""A peer whose socket is connected to the test instead of a broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from broker.perf import wire
from broker.perf.peer import PeerSocket


class LoosePeer(PeerSocket):
    """A peer with the attributes that senders and receivers use."""

    def __init__(self, end: socket.socket, channel: int) -> None:
        super().__init__(end)
        self.channel = channel
        self.round_trip = wire.basic_qos(channel, 0)


@contextmanager
def loose_peer(channel: int = 1) -> Iterator[tuple[PeerSocket, socket.socket]]:
    """Yield a peer and the broker's end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield LoosePeer(ours, channel), theirs
