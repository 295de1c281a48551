"""The address that a broker listens on, taken before anything else is touched."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import Final

from broker.amqp.errors import BrokerError

__all__ = ["AddressTaken", "bind", "close"]

EVERY_ADDRESS: Final = "::"


class AddressTaken(BrokerError):
    """Says that somebody else listens there."""

    def __init__(self, host: str, port: int, another: str) -> None:
        super().__init__(f"port {port} on {host} is in use; another one: {another}")


def bind(host: str, port: int, another: str = "") -> list[socket.socket]:
    """Returns a bound socket for each address that the host stands for; nobody can connect yet.

    Shapes: port 0 takes a free one, the same for all; `another` is how to say which port to take instead.
    The host :: is every address, those of IPv4 among them.
    Raises: AddressTaken; OSError for an address that is not this machine's.
    """
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _name, address in dict.fromkeys(infos):
            made = socket.socket(family, kind, protocol)
            bound.append(made)
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != EVERY_ADDRESS)
            made.bind((address[0], port, *address[2:]))
            port = made.getsockname()[1]
    except OSError as error:
        close(bound)
        if error.errno == errno.EADDRINUSE:
            raise AddressTaken(host, port, another or f"--port {port + 1}") from error
        raise
    return bound


def close(sockets: Iterable[socket.socket]) -> None:
    """Gives the addresses back."""
    for one in sockets:
        one.close()
