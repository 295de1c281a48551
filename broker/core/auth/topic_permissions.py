"""Decide which routing keys of a topic exchange a user may publish to or bind."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final, Literal

from broker.core.auth.users import Users
from broker.core.bounded_pattern import BoundedPattern
from broker.core.names import Resource

FIELDS: Final = ("user", "vhost", "exchange", "write", "read")
CLIENT_ID: Final = "{client_id}"
CLIENTS_MAX: Final = 4096
TopicKind = Literal["write", "read"]


class TopicPermissions:
    """Store two regular expressions over routing keys for each user, vhost and exchange.

    An exchange without expressions is open to users with rights to the exchange itself. In an expression, `{username}`,
    `{vhost}` and, for an MQTT client, `{client_id}` are replaced by these names, escaped so that a name cannot change
    the expression. Source: rabbit_auth_backend_internal; CVE-2026-44838, CVE-2026-67407.
    Shapes: `_of_clients` caches patterns by text, user, vhost and client id, CLIENTS_MAX at most.
    """

    def __init__(self, users: Users, notify: Callable[[str, str], None]) -> None:
        """`notify` is called with the user and the vhost of each change by `set` and `clear`."""
        self._users = users
        self._notify = notify
        self._rights: dict[tuple[str, str, str], dict[TopicKind, tuple[str, BoundedPattern]]] = {}
        self._of_clients: dict[tuple[str, str, str, str], BoundedPattern] = {}

    def copy(self, users: Users, notify: Callable[[str, str], None]) -> TopicPermissions:
        """Return an independent copy of the expressions, for a copy of the users."""
        copy = TopicPermissions(users, notify)
        copy._rights = dict(self._rights)
        return copy

    def allows(self, user: str, exchange: Resource, key: str, kind: str, client_id: str = "") -> bool:
        """Return whether the user, or an MQTT client if its id is given, may use a routing key."""
        rights = self._rights.get((user, exchange.vhost, exchange.name))
        if rights is None:
            return True
        text, pattern = rights["write" if kind == "write" else "read"]
        if client_id and CLIENT_ID in text:
            try:
                pattern = self._of_client(text, user, exchange.vhost, client_id)
            except ValueError:  # the expression is too long with this client id
                return False
        return pattern.search(key)

    def _of_client(self, text: str, user: str, vhost: str, client_id: str) -> BoundedPattern:
        """Return the pattern of a client. Raises: ValueError."""
        names = text, user, vhost, client_id
        pattern = self._of_clients.get(names)
        if pattern is None:
            pattern = expanded(*names)
            if len(self._of_clients) >= CLIENTS_MAX:
                self._of_clients.clear()
            self._of_clients[names] = pattern
        return pattern

    def names_client(self, user: str, exchange: Resource) -> bool:
        """Return whether the routing keys that a user may publish with depend on the client id."""
        rights = self._rights.get((user, exchange.vhost, exchange.name))
        return rights is not None and CLIENT_ID in rights["write"][0]

    def narrows(self, user: str, exchange: Resource) -> bool:
        """Return whether the user has expressions for an exchange."""
        return (user, exchange.vhost, exchange.name) in self._rights

    def set(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Set the expressions of a user for an exchange, replacing the former ones.

        Raises: ValueError for an unknown user, for one defined in the settings, and for an invalid expression.
        """
        self._users.check_permitted(user)
        self._rights[user, vhost, exchange] = compiled(user, vhost, write, read)
        self._notify(user, vhost)

    def clear(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Remove a user's expressions for an exchange, or for all exchanges of a vhost. Raises: ValueError."""
        self._users.check_permitted(user)
        removed = [key for key in self._rights if key[:2] == (user, vhost) and exchange in (None, key[2])]
        for key in removed:
            del self._rights[key]
        if removed:
            self._notify(user, vhost)

    def forget_vhost(self, vhost: str) -> None:
        self._rights = {key: rights for key, rights in self._rights.items() if key[1] != vhost}

    def forget_user(self, user: str) -> None:
        self._rights = {key: rights for key, rights in self._rights.items() if key[0] != user}

    def listing(self, *, user: str | None = None, vhost: str | None = None) -> list[dict[str, str]]:
        """Return the rights as entries of RabbitMQ's definitions, of one user or in one vhost if given."""
        return [
            dict(zip(FIELDS, (*key, rights["write"][0], rights["read"][0]), strict=True))
            for key, rights in sorted(self._rights.items())
            if user in (None, key[0]) and vhost in (None, key[1])
        ]

    def writing(self) -> Generator[None, None, list[dict[str, str]]]:
        """Return all rights as entries of RabbitMQ's definitions, in steps of one entry."""
        rows: list[dict[str, str]] = []
        for key, rights in sorted(self._rights.items()):
            rows.append(dict(zip(FIELDS, (*key, rights["write"][0], rights["read"][0]), strict=True)))
            yield
        return rows


def compiled(user: str, vhost: str, write: str, read: str) -> dict[TopicKind, tuple[str, BoundedPattern]]:
    """Return each text with its compiled pattern. Raises: ValueError, which quotes the invalid text."""
    texts: dict[TopicKind, str] = {"write": write, "read": read}
    return {kind: (text, expanded(text, user, vhost)) for kind, text in texts.items()}


def expanded(text: str, user: str, vhost: str, client_id: str = CLIENT_ID) -> BoundedPattern:
    """Compile an expression with its variables replaced; by default `{client_id}` is literal. Raises: ValueError."""
    parts = {"{username}": user, "{vhost}": vhost, CLIENT_ID: client_id}
    whole = re.sub(r"\{(?:username|vhost|client_id)\}", lambda found: re.escape(parts[found[0]]), text or "^$")
    try:
        return BoundedPattern(whole)
    except ValueError as error:
        raise ValueError(f"regular expression '{text[:100]}' is invalid: {error}") from None
