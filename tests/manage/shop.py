"""A broker in this process with the scene of RabbitMQ's recorded answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.core.policy.policy import Policy
from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import running_broker
from tests.manage.api_talk import HTTP
from tests.manage.scene import POLICY, SHOP, Scene

__all__ = ["get", "managed_broker", "shop"]


@asynccontextmanager
async def managed_broker(folder: Path, **sections: Any) -> AsyncIterator[BrokerServer]:
    """Yield a broker with the management API."""
    async with running_broker(folder, http={**HTTP, **sections.pop("http", {})}, **sections) as broker:
        yield broker


@asynccontextmanager
async def shop(folder: Path) -> AsyncIterator[BrokerServer]:
    """Yield a broker with the scene in its vhost `shop`."""
    async with managed_broker(folder) as broker:
        policy = Policy("limit", POLICY["pattern"], "all", POLICY["definition"], POLICY["priority"])

        def edit(draft: Any) -> None:
            draft.add_vhost("shop", {**SHOP, "tags": SHOP["tags"].split(",")})
            draft.permissions.set("guest", "shop", ".*", ".*", ".*")
            draft.policies("shop").set(policy)

        await broker.administration.change(edit)
        scene = await asyncio.to_thread(Scene, "127.0.0.1", broker.listener.port)
        try:
            yield broker
        finally:
            await asyncio.to_thread(scene.close)


async def get(broker: BrokerServer, path: str, status: int = 200, **options: Any) -> Any:
    """Return the JSON of a GET below /api."""
    said = await ask(broker, "GET", f"/api/{path}", **options)
    assert said.status == status, (path, said.status, said.body)
    return said.json
