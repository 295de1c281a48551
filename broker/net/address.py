"""The sockets of the listeners, which the broker binds before it opens its data folder."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterable
from typing import Final

from broker.amqp.errors import BrokerError, NotNow
from broker.settings import Settings

EVERY_ADDRESS: Final = "::"
HTTP: Final = ("http", "metrics")  # sections whose sockets are bound later, if at all


class CannotListen(BrokerError):
    """The broker cannot listen on an address and port, for the reason in the text."""

    def __init__(self, host: str, port: int, reason: str, setting: str = "") -> None:
        shown = f"[{host}]" if ":" in host else host
        super().__init__(f"cannot listen on {shown}:{port}{f' ({setting})' if setting else ''}: {reason}")


class AddressTaken(NotNow):
    """Another socket uses this address and port."""

    def __init__(self, host: str, port: int, another: str) -> None:
        super().__init__(f"port {port} on {host} is in use; another one: {another}")


class Bound:
    """The sockets of the AMQP and MQTT listeners, bound but not listening. Raises: as `bind`."""

    def __init__(self, settings: Settings) -> None:
        self._sockets: dict[str, list[socket.socket]] = {}
        try:
            for key, host, port, _is_needed in settings.ports():
                section = key.partition(".")[0]
                if section not in HTTP:
                    asked = "mqtt.host" if section == "mqtt" and settings.mqtt.host else "server.host"
                    self._sockets[key] = bind(host, port, "" if section == "server" else key, asked)
        except BaseException:
            self.close()
            raise

    def of(self, key: str) -> list[socket.socket]:
        """Return the sockets of a port by the name of its setting, or an empty list if the port is not used."""
        return self._sockets.get(key, [])

    def close(self) -> None:
        for sockets in self._sockets.values():
            close(sockets)


def bind(host: str, port: int, another: str = "", setting: str = "server.host") -> list[socket.socket]:
    """Return a bound socket for each address of the host; clients cannot connect yet.

    Shapes: with port 0, all sockets get the same free port; `another` is the hint for choosing another port, and
        `setting` is the name of the host's setting. The host :: stands for all addresses, including those of IPv4.
    Raises: AddressTaken; CannotListen for other errors.
    """
    try:
        # For a str, Python loads the codec idna, which takes 0.4 MB; few host names need it.
        name = host.encode() if host.isascii() else host
        infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as error:  # ValueError: not a valid host name
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


def listen(bound: socket.socket, backlog: int) -> None:
    """Listen on a bound socket. Raises: CannotListen.

    Call it before a loop serves the socket: uvloop silently closes a socket on which it cannot listen.
    """
    try:
        bound.listen(backlog)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise CannotListen(host, port, _reason(error)) from error


def _reason(error: OSError | ValueError) -> str:
    """Return the system's error text without the prefix that some event loops add."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None or isinstance(error, socket.gaierror):
        return str(getattr(error, "strerror", None) or error)
    return os.strerror(number)


def close(sockets: Iterable[socket.socket]) -> None:
    """Close the sockets."""
    for one in sockets:
        one.close()


def close_servers(servers: Iterable[asyncio.Server]) -> None:
    """Stop accepting clients now, and close the servers in the next turn of the loop.

    Before Python 3.12.9, asyncio leaks an accepted socket if its server is closed before the socket has a transport.
    Source: python/cpython#109564.
    """
    for server in servers:
        loop = server.get_loop()
        for one in server.sockets:
            loop.remove_reader(one.fileno())
        loop.call_soon(server.close)
