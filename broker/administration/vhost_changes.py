"""Changes of vhosts and of their limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.administration.definitions import event_fields, limits_key
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.definitions import Definitions, Draft

__all__ = ["PROTECTED", "VhostChanges", "VhostProtected"]

PROTECTED: Final = "protected_from_deletion"  # a fact of a vhost; RabbitMQ 4.1's name

_log = get_logger()


class VhostProtected(ValueError):
    """A vhost is protected from deletion."""


class VhostChanges:
    """Adds, deletes and limits vhosts. Raises: what Administration raises."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._vhosts = administration.vhosts

    async def add(self, name: str, facts: Mapping[str, Any], creator: str = "") -> None:
        """Add a vhost with an empty store, and with all rights for the user who adds it, if there is one.

        One that exists with these facts stays.
        """

        def change(draft: Draft) -> None:
            if self._vhosts.is_down(name):
                raise ValueError(f"Virtual host '{name}' is down: {self._vhosts.offline[name].reason}")
            if name not in draft.vhost_names:
                self._add(draft, name, facts, creator)
            known = draft.vhost_facts.get(name, {})
            if any(value and known.get(key) != value for key, value in facts.items()):
                raise ValueError(
                    f"Virtual host '{name}' already exists, with another description or default queue type"
                )

        await self._administration.change(change)

    async def put(self, name: str, facts: Mapping[str, Any], creator: str) -> bool:
        """Add a vhost, or change some facts of one, and return whether it is new.

        The user who adds a vhost gets all rights in it, as in RabbitMQ.
        """
        is_new = False

        def change(draft: Draft) -> None:
            nonlocal is_new
            is_new = name not in draft.vhost_names
            if is_new:
                self._add(draft, name, facts, creator)
                return
            if self._vhosts.is_down(name):
                raise ValueError(f"Virtual host '{name}' is down: {self._vhosts.offline[name].reason}")
            known = draft.vhost_facts.get(name, {})
            metadata = {"metadata": {**known["metadata"], **facts}} if "metadata" in known else {}
            draft.take_facts(name, {**known, **facts, **metadata})

        await self._administration.change(change)
        if not is_new and facts:
            _log.info("vhost.changed", vhost=name, **facts)
        return is_new

    def _add(self, draft: Draft, name: str, facts: Mapping[str, Any], creator: str) -> None:
        self.check_new(draft, [name])
        draft.add_vhost(name, facts)
        if creator in draft.users and not draft.users.is_configured(creator):
            draft.permissions.set(creator, name, ".*", ".*", ".*")

    def check_new(self, definitions: Definitions, names: Iterable[str]) -> None:
        """Check the names of vhosts that do not exist yet."""
        names, most = list(names), self._administration.vhosts_max
        for name in names:
            if not self._vhosts.fits(name):
                raise ValueError(f"cannot create vhost '{name}': the name is empty or longer than 255 bytes")
        if names and len(definitions.vhost_names) + len(names) > most:
            raise ValueError(f"cannot create vhost '{names[-1]}': vhost limit of {most} is reached")

    async def delete(self, name: str) -> None:
        """Delete a vhost: from the definitions first, then close its connections and its store, and remove its files.

        So a vhost that is half deleted at a crash does not come back.
        """

        def change(draft: Draft) -> None:
            if not self._vhosts.is_down(name):
                draft.check_vhost(name)
            if draft.vhost_facts.get(name, {}).get(PROTECTED) is True:
                raise VhostProtected(
                    f"Cannot delete virtual host '{name}': it is protected from deletion. End the protection first"
                )
            draft.drop_vhost(name)

        await self._administration.change(change)

    async def set_limits(self, name: str, changes: Mapping[str, int]) -> None:
        """Set some of a vhost's limits; the others stay. A negative number means no limit."""

        def change(draft: Draft) -> None:
            draft.check_vhost(name)
            draft.set_parameter(limits_key(name), {**draft.vhost_limits(name), **changes})

        await self._administration.change(change, "vhost.limits_set", vhost=name, **event_fields(changes))

    async def clear_limits(self, name: str, limit: str | None = None) -> None:
        """Remove a vhost's limits, or one of them."""

        def change(draft: Draft) -> None:
            draft.check_vhost(name)
            kept = {} if limit is None else draft.vhost_limits(name)
            kept.pop(limit or "", None)
            if kept:
                draft.set_parameter(limits_key(name), kept)
            else:
                draft.drop_parameter(limits_key(name))

        await self._administration.change(change, "vhost.limits_cleared", vhost=name, limit=limit)
