"""Decides whether a user may configure, write to or read from an exchange or a queue.

Every place of the sessions asks this one object, so that finer rules change nothing but this file.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.auth.users import User
from broker.core.resource import Resource

Kind = Literal["configure", "write", "read"]
"""RabbitMQ's three rights: declare and delete; publish to, and bind a queue; consume from, and bind to an exchange."""


class Permissions:
    """Allows everything to every configured user and nothing to anybody else."""

    __slots__ = ("_names",)

    def __init__(self, names: Container[str]) -> None:
        """Takes the names of the configured users; the container is read live, so a removed user loses its rights."""
        self._names = names

    def check_vhost(self, user: User, vhost: str) -> None:
        """Lets the user open the vhost.

        Raises: 530, which closes the connection.
        """
        if user.name not in self._names:
            raise ConnectionFault(530, f"access to vhost '{vhost}' refused for user '{user.name}'")

    def check(self, user: User, resource: Resource, kind: Kind) -> None:
        """Lets the user do one kind of thing to one exchange or queue.

        Raises: 403, which closes the channel.
        """
        if self._allows(user, resource, kind):
            return
        if resource.kind == "exchange" and resource.name == "":
            resource = resource._replace(name="amq.default")  # the name RabbitMQ's rights and texts give it
        raise ChannelError(403, f"access to {resource} refused for user '{user.name}'")

    def check_topic(self, user: User, exchange: Resource, key: str, kind: Kind) -> None:
        """Lets the user publish to or bind one routing key of a topic exchange.

        Raises: 403, which closes the channel.
        """
        if not self._allows(user, exchange, kind):
            where = f"'{exchange.name}' in vhost '{exchange.vhost}'"
            raise ChannelError(403, f"access to topic '{key}' in exchange {where} refused for user '{user.name}'")

    def _allows(self, user: User, _resource: Resource, _kind: Kind) -> bool:
        return user.name in self._names
