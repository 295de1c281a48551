"""Decide whether a user may configure, write to or read from an exchange or a queue. A user defined in the settings may
do everything in every vhost. Any other user has three regular expressions over names in each vhost that the user may
open, and optionally more over the routing keys of topic exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Literal

from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.arguments import named_exchange
from broker.core.auth.topic_permissions import TopicPermissions
from broker.core.auth.users import User, Users
from broker.core.bounded_pattern import BoundedPattern
from broker.core.names import Resource
from broker.routing.exchange import Exchange

Kind = Literal["configure", "write", "read"]
"""RabbitMQ's rights. configure: declare, delete; write: publish, be bound; read: consume, be a binding's source."""

KINDS: Final[tuple[Kind, ...]] = ("configure", "write", "read")
ONWARD: Final = {"exchange": "alternate-exchange", "queue": "x-dead-letter-exchange"}
"""The argument that names an exchange to which messages are republished."""
ANSWERS_MAX: Final = 65_536


class Permissions:
    """Store the rights of each user in each vhost; all sessions share one object. A deleted user loses all rights.
    `listeners` are called with the user and the vhost of each change, but not for a deleted user; `topics` are the
    topic permissions. Cost: answers are cached for each user, kind and resource, ANSWERS_MAX at most.
    """

    def __init__(self, users: Users) -> None:
        self._users = users
        self._rights: dict[tuple[str, str], dict[Kind, BoundedPattern]] = {}
        self._answers: dict[tuple[str, Kind, Resource], bool] = {}
        self.listeners: list[Callable[[str, str], None]] = []
        self.topics = TopicPermissions(users, self._notify)
        users.listeners.append(self._user_changed)

    def copy(self, users: Users) -> Permissions:
        """Return an independent copy of the rights, without listeners, for a copy of the users."""
        copy = Permissions(users)
        copy._rights = dict(self._rights)
        copy.topics = self.topics.copy(users, lambda _user, _vhost: None)
        return copy

    # -- questions ----------------------------------------------------------------------------------------------------

    def check_vhost(self, user: User, vhost: str) -> None:
        """Check that the user may open the vhost. Raises: 530, which closes the connection."""
        if not self.allows_vhost(user, vhost):
            raise ConnectionFault(530, f"access to vhost '{vhost}' refused for user '{user.name}'")

    def check(self, user: User, resource: Resource, kind: Kind) -> None:
        """Check that the user has one right to an exchange or a queue.

        Raises: 403, which closes the channel.
        """
        if not self.allows(user, resource, kind):
            raise refused(user, resource)

    def check_new(self, user: User, resource: Resource, arguments: Mapping[str, Any]) -> None:
        """Check the rights that a declare needs if it names an alternate or dead letter exchange: to read from the new
        object and to write to that exchange, but no topic permission, as in RabbitMQ.

        Raises: 403 or 406, which close the channel.
        """
        onward = named_exchange(resource, arguments, ONWARD[resource.kind])
        if onward is not None:
            self.check(user, resource, "read")
            self.check(user, Resource("exchange", resource.vhost, onward), "write")

    def check_any(self, user: User, resource: Resource) -> None:
        """Check that the user may know that an exchange or queue exists: any right to it suffices.

        Raises: 403, which closes the channel. Source: CVE-2026-57221, passive declare.
        """
        if not any(self.allows(user, resource, kind) for kind in KINDS):
            raise refused(user, resource)

    def check_topic(self, user: User, exchange: Resource, key: str, kind: Kind, client_id: str = "") -> None:
        """Check that the user, or an MQTT client, may publish to or bind one routing key of a topic exchange.

        Raises: 403, which closes the channel.
        """
        name = user.name
        if self._users.is_configured(name):
            return
        if name in self._users and self.topics.allows(name, exchange, key, kind, client_id):
            return
        raise ChannelError(403, f"access to topic '{key}' in {exchange} refused for user '{name}'")

    def check_source(
        self, user: User, source: Resource, exchange: Exchange | None, key: str, client_id: str = ""
    ) -> None:
        """Check that the user may bind to a source; `exchange` is None if the source does not exist. Raises: 403."""
        self.check(user, source, "read")
        if exchange is not None and exchange.by_topic:
            self.check_topic(user, source, key, "read", client_id)

    def narrows_topics(self, user: User, exchange: Resource) -> bool:
        """Return whether the user's routing keys at the topic exchange must be checked one by one."""
        name = user.name
        return not self._users.is_configured(name) and (name not in self._users or self.topics.narrows(name, exchange))

    def differs_by_client(self, user: User, exchange: Resource) -> bool:
        """Return whether the routing keys that a user may publish with differ between the user's clients."""
        return not self._users.is_configured(user.name) and self.topics.names_client(user.name, exchange)

    def allows_vhost(self, user: User, vhost: str) -> bool:
        return self._users.is_configured(user.name) or (user.name, vhost) in self._rights

    def allows(self, user: User, resource: Resource, kind: Kind) -> bool:
        if self._users.is_configured(user.name):
            return True
        key = (user.name, kind, resource)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answer(user.name, resource, kind)
            if answer is None:
                return False
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[key] = answer
        return answer

    def forget_answers(self) -> None:
        """Clear the cached answers of all users; they are computed again on demand."""
        self._answers = {}

    def _answer(self, user: str, resource: Resource, kind: Kind) -> bool | None:
        """Return a new answer, or None if its pattern takes too long: None means refused, but must not be cached."""
        rights = self._rights.get((user, resource.vhost))
        return False if rights is None else rights[kind].try_search(named(resource).name)

    # -- changes ------------------------------------------------------------------------------------------------------

    def set(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Grant a user rights in a vhost, replacing the former ones.

        Raises: ValueError for an unknown user, for one defined in the settings, and for an invalid expression.
        """
        self._users.check_permitted(user)
        self._rights[user, vhost] = patterns(configure, write, read)
        self._notify(user, vhost)

    def clear(self, user: str, vhost: str) -> None:
        """Remove a user's rights in a vhost. Raises: ValueError if the user is unknown or defined in the settings."""
        self._users.check_permitted(user)
        if self._rights.pop((user, vhost), None) is not None:
            self._notify(user, vhost)

    def forget_vhost(self, vhost: str) -> None:
        self.topics.forget_vhost(vhost)
        for user in [user for user, where in self._rights if where == vhost]:
            del self._rights[user, vhost]
            self._notify(user, vhost)

    def listing(self, *, user: str | None = None, vhost: str | None = None) -> list[dict[str, str]]:
        """Return the rights as entries of RabbitMQ's definitions, of one user or in one vhost if given."""
        return [
            {"user": name, "vhost": where, **{kind: rights[kind].text for kind in KINDS}}
            for (name, where), rights in sorted(self._rights.items())
            if user in (None, name) and vhost in (None, where)
        ]

    def writing(self) -> Generator[None, None, list[dict[str, str]]]:
        """Return all rights as entries of RabbitMQ's definitions, in steps of one entry."""
        rows: list[dict[str, str]] = []
        for (name, where), rights in sorted(self._rights.items()):
            rows.append({"user": name, "vhost": where, **{kind: rights[kind].text for kind in KINDS}})
            yield
        return rows

    def _user_changed(self, name: str) -> None:
        if name not in self._users:
            self.topics.forget_user(name)
            for vhost in [where for user, where in self._rights if user == name]:
                del self._rights[name, vhost]
        self._forget_answers(name)

    def _notify(self, user: str, vhost: str) -> None:
        self._forget_answers(user)
        for listener in self.listeners:
            listener(user, vhost)

    def _forget_answers(self, user: str) -> None:
        self._answers = {key: answer for key, answer in self._answers.items() if key[0] != user}


def patterns(configure: str, write: str, read: str) -> dict[Kind, BoundedPattern]:
    """Compile the three expressions. Raises: ValueError, which quotes the invalid one."""
    texts: dict[Kind, str] = {"configure": configure, "write": write, "read": read}
    return {kind: right_pattern(text) for kind, text in texts.items()}


def right_pattern(text: str) -> BoundedPattern:
    """Compile an expression over names; an empty one matches only the empty name.

    Raises: ValueError. Source: rabbit_auth_backend_internal.
    """
    try:
        return BoundedPattern(text or "^$", written=text)
    except ValueError as error:
        raise ValueError(f"regular expression '{text[:100]}' is invalid: {error}") from None


def named(resource: Resource) -> Resource:
    """Return the resource with the name that RabbitMQ's rights and texts use: the default exchange is amq.default."""
    if resource.kind == "exchange" and resource.name == "":
        return resource._replace(name="amq.default")
    return resource


def refused(user: User, resource: Resource) -> ChannelError:
    """Return a 403 in RabbitMQ's words."""
    return ChannelError(403, f"access to {named(resource)} refused for user '{user.name}'")
