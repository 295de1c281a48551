"""Changes of vhosts and of their limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from broker.administration.definitions import event_fields, limits_key

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.definitions import Definitions, Draft

__all__ = ["VhostChanges"]


class VhostChanges:
    """Adds, deletes and limits vhosts. Raises: what Administration raises."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._vhosts = administration.vhosts

    async def add(self, name: str, facts: Mapping[str, Any]) -> None:
        """Add a vhost with an empty store; one that exists with these facts stays."""

        def change(draft: Draft) -> None:
            if self._vhosts.is_down(name):
                raise ValueError(f"Virtual host '{name}' is down: {self._vhosts.offline[name].reason}")
            if name not in draft.vhost_names:
                self.check_new(draft, [name])
                draft.add_vhost(name, facts)
            known = draft.vhost_facts.get(name, {})
            if any(value and known.get(key) != value for key, value in facts.items()):
                raise ValueError(
                    f"Virtual host '{name}' already exists, with another description or default queue type"
                )

        await self._administration.change(change)

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
            draft.drop_vhost(name)

        await self._administration.change(change)

    async def set_limits(self, name: str, changes: Mapping[str, int]) -> None:
        """Set some of a vhost's limits; the others stay. A negative number means no limit."""

        def change(draft: Draft) -> None:
            draft.check_vhost(name)
            draft.set_parameter(limits_key(name), {**draft.vhost_limits(name), **changes})

        await self._administration.change(change, "vhost.limits_set", vhost=name, **event_fields(changes))

    async def clear_limits(self, name: str) -> None:
        """Remove a vhost's limits."""

        def change(draft: Draft) -> None:
            draft.check_vhost(name)
            draft.drop_parameter(limits_key(name))

        await self._administration.change(change, "vhost.limits_cleared", vhost=name)
