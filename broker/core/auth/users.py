"""Knows the configured users and checks a PLAIN answer against them.

Never logs, prints or quotes what a client answered: the reasons name the user at most.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv6Address, ip_address

from broker.amqp.errors import Refused

MECHANISM = "PLAIN"
LOOPBACK_ONLY = frozenset({"guest"})  # RabbitMQ's loopback_users: its password is known to everybody


@dataclass(frozen=True, slots=True)
class User:
    """Is somebody who may log in."""

    name: str
    password: str = field(repr=False)
    tags: tuple[str, ...] = ()


class Users:
    """Holds the configured users by name."""

    __slots__ = ("_by_name", "_loopback_only")

    def __init__(self, users: Iterable[User], loopback_only: Iterable[str] = LOOPBACK_ONLY) -> None:
        """Takes the users, and the names that may only come from a loopback address."""
        self._by_name = {user.name: user for user in users}
        self._loopback_only = frozenset(loopback_only)

    def __contains__(self, name: object) -> bool:
        """Tells whether a user of that name is configured."""
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names."""
        return iter(self._by_name)

    def authenticate(self, mechanism: str, response: bytes, peer_address: str) -> User:
        """Returns the user that the answer proves.

        Raises: Refused, with the reason for the log.
        Source: RFC 4616; RabbitMQ's texts.
        """
        if mechanism != MECHANISM:
            raise Refused(f"{mechanism} login refused: unknown authentication mechanism")
        name, password = split_plain(response)
        if not password:
            raise Refused(f"{MECHANISM} login refused: user '{name}' attempted to log in with a blank password")
        user = self._by_name.get(name)
        # An unknown user costs the same comparison, so the time tells nobody which names exist.
        right = hmac.compare_digest(_digest(password), _digest(user.password.encode() if user is not None else b""))
        if user is None or not right:
            raise Refused(f"{MECHANISM} login refused: user '{name}' - invalid credentials")
        if name in self._loopback_only and not is_loopback(peer_address):
            raise Refused(f"{MECHANISM} login refused: user '{name}' can only connect via localhost")
        return user


def split_plain(response: bytes) -> tuple[str, bytes]:
    """Returns the name and the password of a PLAIN answer: NUL name NUL password.

    An authorization identity in front is refused as RabbitMQ does: nobody here acts for somebody else.
    Raises: Refused, without quoting the answer.
    """
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise Refused(f"{MECHANISM} login refused: response invalid")
    try:
        return parts[1].decode(), parts[2]
    except UnicodeDecodeError:
        raise Refused(f"{MECHANISM} login refused: response invalid") from None


def is_loopback(address: str) -> bool:
    """Tells whether a peer's address is this machine's loopback; an address that cannot be read is not."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback


def _digest(password: bytes) -> bytes:
    return sha256(password).digest()
