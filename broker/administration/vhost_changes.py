"""Changes of vhosts and of their limits."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from broker.administration.administration import event_fields
from broker.event_log import get_logger
from broker.store.damage import StoreFailed

if TYPE_CHECKING:
    from broker.administration.administration import Administration

__all__ = ["VhostChanges"]

_log = get_logger()


class VhostChanges:
    """Adds, deletes and limits vhosts. Raises: what Administration raises."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._vhosts = administration.vhosts

    async def add(self, name: str, facts: Mapping[str, Any]) -> None:
        """Add a vhost with an empty store; one that exists with these facts stays."""
        known = self._administration.vhost_facts

        def change() -> Awaitable[None] | None:
            same = all(not value or known.get(name, {}).get(key) == value for key, value in facts.items())
            return None if name in self._vhosts and same else self.make(name, facts)

        await self._administration.alone(change)

    async def make(self, name: str, facts: Mapping[str, Any]) -> None:
        """Add a vhost, as a part of a change."""
        if self._vhosts.is_down(name):
            raise ValueError(f"Virtual host '{name}' is down: {self._vhosts.offline[name].reason}")
        if name in self._vhosts:
            raise ValueError(f"Virtual host '{name}' already exists, with another description or default queue type")
        self.check_new([name])
        try:
            await self._vhosts.add(name)
        except StoreFailed as failed:  # nothing was promised to anybody yet, so the other vhosts work on
            raise ValueError(f"cannot create vhost '{name}': {failed}") from failed
        self._administration.take_facts(name, facts)
        _log.info("vhost.created", vhost=name)

    def check_new(self, names: Iterable[str]) -> None:
        """Check the names of vhosts that do not exist yet."""
        names, most = list(names), self._administration.vhosts_max
        for name in names:
            if not self._vhosts.fits(name):
                raise ValueError(f"cannot create vhost '{name}': the name is empty or longer than 255 bytes")
        if names and len(self._vhosts) + len(names) > most:
            raise ValueError(f"cannot create vhost '{names[-1]}': vhost limit of {most} is reached")

    async def delete(self, name: str) -> None:
        """Delete a vhost: close its connections, then its store, then remove its files."""
        await self._administration.alone(lambda: self._delete(name))

    async def _delete(self, name: str) -> None:
        if not self._vhosts.is_down(name):
            self._administration.vhost_named(name)
        self._administration.drop_vhost(name)
        await self._administration.save()  # before the files go: a vhost half deleted at a crash must not come back
        await self._administration.remove_vhost(name)
        _log.info("vhost.deleted", vhost=name)

    async def set_limits(self, name: str, changes: Mapping[str, int]) -> None:
        """Set some of a vhost's limits; the others stay. A negative number means no limit."""

        def change() -> None:
            self._administration.vhost_named(name)
            self._administration.limit_vhost(name, {**self._administration.vhost_limits(name), **changes})

        await self._administration.alone(change, "vhost.limits_set", vhost=name, **event_fields(changes))

    async def clear_limits(self, name: str) -> None:
        """Remove a vhost's limits."""

        def change() -> None:
            self._administration.vhost_named(name)
            self._administration.limit_vhost(name, None)

        await self._administration.alone(change, "vhost.limits_cleared", vhost=name)
