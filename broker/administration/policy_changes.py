"""Changes of policies: store a change, then apply it to all queues and exchanges, slice by slice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.definitions import Draft
    from broker.core.policy.policy import Policy

__all__ = ["PolicyChanges"]

TELL_S: Final = 1.0  # between two reports of progress

Tell = Callable[[Mapping[str, Any]], None]


class PolicyChanges:
    """The changes of policies. Raises: what Administration raises.

    Invariant: a stored change is applied, even when its caller is cancelled.
    """

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def set(self, vhost: str, policy: Policy, *, operator: bool, tell: Tell) -> None:
        """Set a policy, or replace the one with its name. Return when it is applied everywhere."""

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            draft.policies(vhost).set(policy, operator=operator)

        await self._administration.change(
            change,
            "policy.set",
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
        """Delete a policy. Return when it is applied nowhere any more."""

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            if not draft.policies(vhost).clear(name, operator=operator):
                raise ValueError(f"{'Operator policy' if operator else 'Policy'} '{name}' does not exist")

        await self._administration.change(change, "policy.cleared", vhost=vhost, policy=name, operator=operator)
        await self.applied(tell, vhost)

    async def applied(self, tell: Tell, *names: str) -> None:
        """Return when the policies of these vhosts, or of all, are applied; call `tell` with the progress."""
        vhosts = self._administration.vhosts
        for vhost in [vhosts[name] for name in names or vhosts if name in vhosts]:
            done = asyncio.Event()
            total = len(vhost.sweep)
            vhost.sweep.follow(done.set)
            while not done.is_set():
                total = max(total, len(vhost.sweep))  # the sweep may have begun again
                tell({"step": "applying policies", "done": total - len(vhost.sweep), "total": total})
                with suppress(TimeoutError):
                    async with asyncio.timeout(TELL_S):
                        await done.wait()
