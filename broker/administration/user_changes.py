"""Changes of users and of their limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.administration.definitions import event_fields
from broker.core.auth.users import user_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.definitions import Draft
    from broker.core.definitions.document import UserEntry

__all__ = ["UserChanges"]


class UserChanges:
    """Adds, changes, limits and deletes users. Raises: what Administration raises."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def add(self, name: str, password: str, tags: Iterable[str]) -> None:
        """Add a user."""
        entry = {"name": name, "password": password, "tags": list(tags)}
        user = await asyncio.to_thread(user_of, entry)  # a hash is slow by intent

        def add(draft: Draft) -> None:
            if name in draft.users:
                raise ValueError(f"User '{name}' already exists")
            draft.users.put(user)

        await self._administration.change(add, "user.added", user=name, tags=list(user.tags))

    async def put(self, entry: UserEntry) -> bool:
        """Add a user, or replace the tags and the password of one, and return whether it is new; its limits stay."""
        fields = ("name", "password_hash", "hashing_algorithm", "password", "tags")
        user = await asyncio.to_thread(user_of, {name: getattr(entry, name) for name in fields})
        is_new = False

        def put(draft: Draft) -> None:
            nonlocal is_new
            draft.users.check_own(entry.name)
            known = draft.users.get(entry.name)
            is_new = known is None
            draft.users.put(user if known is None else replace(user, limits=known.limits))

        await self._administration.change(put, "user.put", user=user.name, tags=list(user.tags))
        return is_new

    async def set(self, name: str, password: str | None, tags: Iterable[str] | None) -> None:
        """Change a user's password or tags, or both."""

        def change(draft: Draft) -> None:
            if tags is not None:
                draft.users.set_tags(name, tags)
            if password is not None:
                draft.users.set_password(name, password)

        changed = [fact for fact, value in (("tags", tags), ("password", password)) if value is not None]
        await self._administration.change(change, "user.changed", user=name, changed=changed)

    async def delete(self, name: str) -> None:
        """Delete a user and all permissions of the user."""
        await self._administration.change(lambda draft: draft.users.delete(name), "user.deleted", user=name)

    async def delete_all(self, names: Iterable[str]) -> None:
        """Delete several users, all of them or none."""
        names = list(dict.fromkeys(names))

        def change(draft: Draft) -> None:
            for name in names:
                draft.users.delete(name)

        await self._administration.change(change, "users.deleted", users=names)

    async def set_limits(self, name: str, changes: Mapping[str, int]) -> None:
        """Set some of a user's limits; the others stay. A negative number means no limit."""

        def change(draft: Draft) -> None:
            draft.users.set_limits(name, changes)

        await self._administration.change(change, "user.limits_set", user=name, **event_fields(changes))

    async def clear_limits(self, name: str, limit: str | None = None) -> None:
        """Remove a user's limits, or one of them."""

        def change(draft: Draft) -> None:
            draft.users.clear_limits(name, limit)

        await self._administration.change(change, "user.limits_cleared", user=name, limit=limit)
