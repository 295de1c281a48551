"""`reload`, `settings` and `stop`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from broker.net.control_request import Request, Verb

__all__ = ["lifecycle_verbs"]


def lifecycle_verbs(
    reload: Callable[[], Awaitable[Mapping[str, Any]]],
    settings: Callable[[], Mapping[str, Any]],
    stop: Callable[[Callable[[Mapping[str, Any]], None]], None],
) -> dict[str, Verb]:
    """Return the verbs. `settings` are those in force, without secrets; `stop` stops the broker and reports what it
    waits for.
    """

    async def settings_(_request: Request) -> Mapping[str, Any]:
        return settings()

    async def stop_(request: Request) -> None:
        request.asker.tell({"pid": os.getpid()})
        stop(request.asker.tell)
        await asyncio.Event().wait()  # the end of the socket is the answer

    return {"reload": lambda _request: reload(), "settings": settings_, "stop": stop_}
