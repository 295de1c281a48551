"""Pauses and resumes queues: a parameter of the vhost keeps the pause, so that restarts and all nodes know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.administration.definitions import PAUSED_QUEUE

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.definitions import Draft

__all__ = ["QueuePauses"]


class QueuePauses:
    """Pauses and resumes the deliveries of queues. Raises: what Administration raises."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def pause(self, vhost: str, name: str) -> None:
        """Pause the queue of that name, also one that is declared later; a paused one stays paused."""
        key = (vhost, PAUSED_QUEUE, name)
        if key in self._administration.parameters:
            return

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            draft.set_parameter(key, {})

        await self._administration.change(change, "queue.paused", vhost=vhost, queue=name)

    async def resume(self, vhost: str, name: str) -> None:
        """Resume the queue of that name; one that is not paused stays as it is."""
        key = (vhost, PAUSED_QUEUE, name)
        if key not in self._administration.parameters:
            return

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            draft.drop_parameter(key)

        await self._administration.change(change, "queue.resumed", vhost=vhost, queue=name)
