"""Operations on users, their permissions and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict, field, replace
from typing import Any, Final, TypeVar

from broker.administration.administration import Administration
from broker.administration.definitions import Draft, event_fields
from broker.core.auth.permissions import Permissions
from broker.core.auth.user_limits import CHANNELS, CONNECTIONS, checked_limits
from broker.core.auth.users import user_of
from broker.core.definitions.document import Row
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.request import Asker, OperationRefused, parameters

P = TypeVar("P")


@parameters
class Named:
    """The parameters of an operation on one named object."""

    name: str


@parameters
class AddUser(Named):
    """A new user."""

    password: str
    tags: list[str] = field(default_factory=list)


@parameters
class SetUser(Named):
    """The new password and tags of a user; None leaves them as they are."""

    password: str | None = None
    tags: list[str] | None = None


@parameters
class SetLimits(Named):
    """The limits to set, by name."""

    limits: dict[str, Any]


@parameters
class ClearLimits(Named):
    """The limit to remove; None for all."""

    limit: str | None = None


@parameters
class Permitted:
    """The permissions of a user in a vhost."""

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
    """Patterns of the routing keys with which the user may publish to an exchange, and bind to it."""

    exchange: str
    write: str
    read: str


@parameters
class DeleteTopicPermission(Permitted):
    """The exchange whose topic permissions are deleted; None for all."""

    exchange: str | None = None


def _check_password(password: str | None) -> None:
    if password == "":
        raise OperationRefused("a password must not be empty")


async def add_user(broker: OperatedBroker, asked: AddUser, _asker: Asker) -> None:
    """Add a user."""
    _check_password(asked.password)
    fields = {"name": asked.name, "password": asked.password, "tags": asked.tags}
    user = await asyncio.to_thread(user_of, fields)  # hashing is slow by design

    def add(draft: Draft) -> None:
        if asked.name in draft.users:
            raise ValueError(f"User '{asked.name}' already exists")
        draft.users.put(user)

    await broker.administration.change(add, "user.added", user=asked.name, tags=list(user.tags))


async def put_user(administration: Administration, row: Row) -> bool:
    """Add a user, or replace the tags and the password of an existing one. Return whether the user is new."""
    user = await asyncio.to_thread(user_of, row)

    def put(draft: Draft) -> bool:
        draft.users.check_own(user.name)
        known = draft.users.get(user.name)
        draft.users.put(user if known is None else replace(user, limits=known.limits))
        return known is None

    return await administration.change(put, "user.put", user=user.name, tags=list(user.tags))


async def set_user(broker: OperatedBroker, asked: SetUser, _asker: Asker) -> None:
    """Change the password, the tags, or both of a user."""
    _check_password(asked.password)

    def change(draft: Draft) -> None:
        if asked.tags is not None:
            draft.users.set_tags(asked.name, asked.tags)
        if asked.password is not None:
            draft.users.set_password(asked.name, asked.password)

    changed = [name for name in ("tags", "password") if getattr(asked, name) is not None]
    await broker.administration.change(change, "user.changed", user=asked.name, changed=changed)


async def delete_user(broker: OperatedBroker, asked: Named, _asker: Asker) -> None:
    """Delete a user and all permissions of the user."""
    await broker.administration.change(lambda draft: draft.users.delete(asked.name), "user.deleted", user=asked.name)


async def delete_users(administration: Administration, names: Iterable[str]) -> None:
    """Delete several users, or none if one of them cannot be deleted."""
    names = list(dict.fromkeys(names))

    def change(draft: Draft) -> None:
        for name in names:
            draft.users.delete(name)

    await administration.change(change, "users.deleted", users=names)


async def set_user_limits(broker: OperatedBroker, asked: SetLimits, _asker: Asker) -> None:
    """Set the given limits of a user. A negative number means no limit."""
    limits = checked_limits(asked.limits, (CONNECTIONS, CHANNELS))
    named = {"user": asked.name, **event_fields(limits)}
    await broker.administration.change(
        lambda draft: draft.users.set_limits(asked.name, limits), "user.limits_set", **named
    )


async def clear_user_limits(broker: OperatedBroker, asked: ClearLimits, _asker: Asker) -> None:
    """Remove one limit of a user, or all."""
    named = {"user": asked.name, "limit": asked.limit}
    await broker.administration.change(
        lambda draft: draft.users.clear_limits(asked.name, asked.limit), "user.limits_cleared", **named
    )


def _of_rights(event: str, parameters: type[P], change: Callable[[Permissions], Callable[..., object]]) -> Operation[P]:
    """Return the operation that changes permissions with one method, and logs the event with the same arguments."""

    async def run(broker: OperatedBroker, asked: Any, _asker: Asker) -> None:
        named = asdict(asked)
        await broker.administration.change(lambda draft: change(draft.permissions)(**named), event, **named)

    return Operation(run, parameters)


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "add_user": Operation(add_user, AddUser),
    "set_user": Operation(set_user, SetUser),
    "delete_user": Operation(delete_user, Named),
    "set_user_limits": Operation(set_user_limits, SetLimits),
    "clear_user_limits": Operation(clear_user_limits, ClearLimits),
    "set_permission": _of_rights("permission.set", SetPermission, lambda rights: rights.set),
    "delete_permission": _of_rights("permission.cleared", Permitted, lambda rights: rights.clear),
    "set_topic_permission": _of_rights("topic_permission.set", SetTopicPermission, lambda rights: rights.topics.set),
    "delete_topic_permission": _of_rights(
        "topic_permission.cleared", DeleteTopicPermission, lambda rights: rights.topics.clear
    ),
}
