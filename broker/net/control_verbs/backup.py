"""`backup`: a copy of the data folder while the broker runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.net.control_request import ControlRefused, Request, Verb

if TYPE_CHECKING:
    from broker.administration.backups import Backups

__all__ = ["backup_verbs"]


def backup_verbs(backups: Backups) -> dict[str, Verb]:
    """Return the verbs."""

    async def backup(request: Request) -> dict[str, Any]:
        target = Path(request.text("target"))
        if not target.is_absolute():
            raise ControlRefused("'target' should be an absolute path")

        def told(step: str, done: int, total: int) -> None:
            request.asker.tell({"step": step, "done": done, "total": total})

        await request.asker.say({"step": "gathered vhosts", "done": 0, "total": 0})  # a client that disconnects ends it
        return await backups.take(target, told)

    return {"backup": backup}
