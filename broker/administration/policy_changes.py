"""Changes of policies: written down first, then applied to everything that is there, a slice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.policy.policy import Policy

__all__ = ["PolicyChanges"]

TELL_S: Final = 1.0  # so often who waits is told how far it is

Tell = Callable[[Mapping[str, Any]], None]


class PolicyChanges:
    """Sets and deletes policies. Raises: what Administration raises.

    Invariant: a change that was written down is applied, whatever becomes of whoever asked.
    """

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def set(self, vhost: str, policy: Policy, *, operator: bool, tell: Tell) -> None:
        """Set a policy, in place of one of its name. Return when everything follows it."""

        def change() -> None:
            self._administration.vhost_named(vhost).policies.set(policy, operator=operator, later=True)

        await self._administration.alone(
            change,
            "policy.set",
            partial(self._begin, vhost),
            vhost=vhost,
            policy=policy.name,
            pattern=policy.pattern,
            apply_to=policy.apply_to,
            definition=dict(policy.definition),
            priority=policy.priority,
            operator=operator,
        )
        await self.applied(tell, vhost)

    async def clear(self, vhost: str, name: str, *, operator: bool, tell: Tell) -> None:
        """Delete a policy. Return when nothing follows it any more."""

        def change() -> None:
            if not self._administration.vhost_named(vhost).policies.clear(name, operator=operator, later=True):
                raise ValueError(f"{'Operator policy' if operator else 'Policy'} '{name}' does not exist")

        begin = partial(self._begin, vhost)
        await self._administration.alone(change, "policy.cleared", begin, vhost=vhost, policy=name, operator=operator)
        await self.applied(tell, vhost)

    async def applied(self, tell: Tell, *names: str) -> None:
        """Return when everything in these vhosts, or in all, follows the policies; `tell` hears of it now and then."""
        vhosts = self._administration.vhosts
        for vhost in [vhosts[name] for name in names or vhosts if name in vhosts]:
            done = asyncio.Event()
            total = len(vhost.sweep)
            vhost.sweep.follow(done.set)
            while not done.is_set():
                total = max(total, len(vhost.sweep))  # it may have begun anew
                tell({"step": "applying policies", "done": total - len(vhost.sweep), "total": total})
                with suppress(TimeoutError):
                    async with asyncio.timeout(TELL_S):
                        await done.wait()

    def _begin(self, name: str) -> None:
        vhost = self._administration.vhosts.get(name)
        if vhost is not None:
            vhost.policies.apply()
