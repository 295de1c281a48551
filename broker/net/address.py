"""The address that a broker listens on, taken before anything else is touched."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from broker.amqp.errors import BrokerError

if TYPE_CHECKING:
    from broker.settings import Settings

__all__ = ["AddressTaken", "Bound", "CannotListen", "bind", "close", "listening"]

EVERY_ADDRESS: Final = "::"


class CannotListen(BrokerError):
    """Says which address and port cannot be listened on, and why."""

    def __init__(self, host: str, port: int, reason: str, setting: str = "") -> None:
        shown = f"[{host}]" if ":" in host else host
        super().__init__(f"cannot listen on {shown}:{port}{f' ({setting})' if setting else ''}: {reason}")


class AddressTaken(BrokerError):
    """Says that somebody else listens there."""

    def __init__(self, host: str, port: int, another: str) -> None:
        super().__init__(f"port {port} on {host} is in use; another one: {another}")


class Bound:
    """The sockets of a broker's listeners, bound and not listening yet. Raises: what `bind` raises."""

    def __init__(self, settings: Settings) -> None:
        self.amqp: list[socket.socket] = []
        self.tls: list[socket.socket] = []
        self.http: list[socket.socket] = []
        server = settings.server
        try:
            if not settings.tls.only:
                self.amqp = bind(server.host, server.port)
            if settings.tls.is_on:
                self.tls = bind(server.host, settings.tls.port, "tls.port")
            if settings.http.enabled:
                setting = "http.host" if settings.http.host else "server.host"
                self.http = bind(settings.http_host, settings.http.port, "http.port", setting)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the addresses back."""
        close(self.amqp + self.tls + self.http)


def bind(host: str, port: int, another: str = "", setting: str = "server.host") -> list[socket.socket]:
    """Return a bound socket for each address that the host stands for; nobody can connect yet.

    Shapes: port 0 takes a free one, the same for all; `another` is how to say which port to take instead, and
        `setting` where the host comes from. The host :: is every address, those of IPv4 among them.
    Raises: AddressTaken; CannotListen for an address that is none, or not this machine's, or a port that is not ours.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as error:  # ValueError: a name that no name server could be asked for
        raise CannotListen(host, port, f"no such address: {_reason(error)}", setting) from error
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
        raise CannotListen(host, port, _reason(error), setting) from error
    return bound


@contextmanager
def listening(bound: socket.socket) -> Iterator[None]:
    """Name the address when listening on a bound socket fails: another may listen by now. Raises: CannotListen."""
    try:
        yield
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise CannotListen(host, port, _reason(error)) from error


def _reason(error: OSError | ValueError) -> str:
    """Return the system's words for it; some loops put more around them."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None or isinstance(error, socket.gaierror):
        return str(getattr(error, "strerror", None) or error)
    return os.strerror(number)


def close(sockets: Iterable[socket.socket]) -> None:
    """Give the addresses back."""
    for one in sockets:
        one.close()
