"""Changes of users and of their limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from broker.administration.administration import event_fields
from broker.core.auth.users import user_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration

__all__ = ["UserChanges"]


class UserChanges:
    """Adds, changes, limits and deletes users. Raises: what Administration raises."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._users = administration.users

    async def add(self, name: str, password: str, tags: Iterable[str]) -> None:
        """Add a user."""
        entry = {"name": name, "password": password, "tags": list(tags)}
        user = await asyncio.to_thread(user_of, entry)  # a hash is slow by intent

        def add() -> None:
            if name in self._users:
                raise ValueError(f"User '{name}' already exists")
            self._users.put(user)

        await self._administration.alone(add, "user.added", user=name, tags=list(user.tags))

    async def set(self, name: str, password: str | None, tags: Iterable[str] | None) -> None:
        """Change a user's password or tags, or both."""

        def change() -> None:
            if tags is not None:
                self._users.set_tags(name, tags)
            if password is not None:
                self._users.set_password(name, password)

        changed = [fact for fact, value in (("tags", tags), ("password", password)) if value is not None]
        await self._administration.alone(change, "user.changed", user=name, changed=changed)

    async def delete(self, name: str) -> None:
        """Delete a user and all permissions of the user."""
        await self._administration.alone(lambda: self._users.delete(name), "user.deleted", user=name)

    async def set_limits(self, name: str, changes: Mapping[str, int]) -> None:
        """Set some of a user's limits; the others stay. A negative number means no limit."""
        work = partial(self._users.set_limits, name, changes)
        await self._administration.alone(work, "user.limits_set", user=name, **event_fields(changes))

    async def clear_limits(self, name: str) -> None:
        """Remove a user's limits."""
        await self._administration.alone(partial(self._users.clear_limits, name), "user.limits_cleared", user=name)
