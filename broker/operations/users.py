"""Users, their permissions and limits."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from broker.administration.permission_changes import PermissionChanges
from broker.administration.user_changes import UserChanges
from broker.core.auth.user_limits import CHANNELS, CONNECTIONS
from broker.core.limit_table import checked_limits
from broker.operations.operation import Operation
from broker.operations.request import Asker, OperationRefused, parameters

if TYPE_CHECKING:
    from broker.operations.operated_broker import OperatedBroker

__all__ = ["USER_OPERATIONS", "Named"]


@parameters
class Named:
    """The parameters of what concerns one object with a name."""

    name: str


@parameters
class AddUser(Named):
    """A new user."""

    password: str
    tags: list[str] = field(default_factory=list)


@parameters
class SetUser(Named):
    """What changes of a user."""

    password: str | None = None
    tags: list[str] | None = None


@parameters
class SetLimits(Named):
    """Limits by their names; the others stay."""

    limits: dict[str, Any]


@parameters
class Permitted:
    """A user in a vhost."""

    user: str
    vhost: str = "/"


@parameters
class SetPermission(Permitted):
    """Patterns of the names that the user may configure, write to and read from."""

    configure: str
    write: str
    read: str


@parameters
class SetTopicPermission(Permitted):
    """Patterns of the routing keys that the user may write and read at an exchange."""

    exchange: str
    write: str
    read: str


@parameters
class DeleteTopicPermission(Permitted):
    """At which exchange the limits of routing keys end, at all without one."""

    exchange: str | None = None


def _check_password(password: str | None) -> None:
    if password == "":
        raise OperationRefused("a password must not be empty")


async def add_user(broker: OperatedBroker, asked: AddUser, _asker: Asker) -> None:
    """Add a user."""
    _check_password(asked.password)
    await UserChanges(broker.administration).add(asked.name, asked.password, asked.tags)


async def set_user(broker: OperatedBroker, asked: SetUser, _asker: Asker) -> None:
    """Change the password or the tags of a user, or both."""
    _check_password(asked.password)
    await UserChanges(broker.administration).set(asked.name, asked.password, asked.tags)


async def delete_user(broker: OperatedBroker, asked: Named, _asker: Asker) -> None:
    """Delete a user."""
    await UserChanges(broker.administration).delete(asked.name)


async def set_user_limits(broker: OperatedBroker, asked: SetLimits, _asker: Asker) -> None:
    """Set some limits of a user."""
    limits = checked_limits(asked.limits, (CONNECTIONS, CHANNELS))
    await UserChanges(broker.administration).set_limits(asked.name, limits)


async def clear_user_limits(broker: OperatedBroker, asked: Named, _asker: Asker) -> None:
    """Remove the limits of a user."""
    await UserChanges(broker.administration).clear_limits(asked.name)


async def set_permission(broker: OperatedBroker, asked: SetPermission, _asker: Asker) -> None:
    """Set the permissions of a user in a vhost."""
    kinds = (asked.configure, asked.write, asked.read)
    await PermissionChanges(broker.administration).set(asked.user, asked.vhost, *kinds)


async def delete_permission(broker: OperatedBroker, asked: Permitted, _asker: Asker) -> None:
    """Remove the permissions of a user in a vhost."""
    await PermissionChanges(broker.administration).clear(asked.user, asked.vhost)


async def set_topic_permission(broker: OperatedBroker, asked: SetTopicPermission, _asker: Asker) -> None:
    """Limit the routing keys of a user at an exchange."""
    kinds = (asked.exchange, asked.write, asked.read)
    await PermissionChanges(broker.administration).set_topic(asked.user, asked.vhost, *kinds)


async def delete_topic_permission(broker: OperatedBroker, asked: DeleteTopicPermission, _asker: Asker) -> None:
    """Remove the limits of a user's routing keys."""
    await PermissionChanges(broker.administration).clear_topic(asked.user, asked.vhost, asked.exchange)


USER_OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "add_user": Operation(add_user, AddUser),
    "set_user": Operation(set_user, SetUser),
    "delete_user": Operation(delete_user, Named),
    "set_user_limits": Operation(set_user_limits, SetLimits),
    "clear_user_limits": Operation(clear_user_limits, Named),
    "set_permission": Operation(set_permission, SetPermission),
    "delete_permission": Operation(delete_permission, Permitted),
    "set_topic_permission": Operation(set_topic_permission, SetTopicPermission),
    "delete_topic_permission": Operation(delete_topic_permission, DeleteTopicPermission),
}
