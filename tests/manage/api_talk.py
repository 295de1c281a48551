"""A client of the management API for tests, which checks statuses and error bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.server import BrokerServer
from tests.http_talk import GUEST, Response, Web
from tests.in_process import running_broker

HTTP: dict[str, Any] = {"enabled": True, "port": 0}
REFUSED = {"error", "reason"}


class Api:
    """A client of one user; it closes the clients of other users that it created."""

    def __init__(self, broker: BrokerServer, user: tuple[str, str] | None = GUEST) -> None:
        self._broker = broker
        self._web = Web(broker.manage.port(), user)
        self._others: list[Api] = []

    def login(self, name: str, password: str) -> Api:
        """Return a client of another user."""
        self._others.append(Api(self._broker, (name, password)))
        return self._others[-1]

    async def with_user(self, name: str, tags: str, **rights: str) -> Api:
        """Add a user with rights in the vhost "/", and return a client of that user."""
        await self.expect(201, "PUT", f"users/{name}", {"password": name, "tags": tags})
        if rights:
            kinds = {kind: rights.get(kind, "^$") for kind in ("configure", "write", "read")}
            await self.expect(201, "PUT", f"permissions/%2F/{name}", kinds)
        return self.login(name, name)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        """Send a request to a path below /api."""
        return await self._web.later(method, f"/api/{path}", body, **headers)

    async def expect(self, status: int, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request, check its status, and return the JSON of the answer, or None without a body."""
        said = await self.ask(method, path, body, **headers)
        assert said.status == status, f"{method} {path}: {said.status} {said.body!r}"
        if status >= 400:
            assert set(said.json) >= REFUSED or "status" in said.json
        return said.json if said.body else None

    async def refusal(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        """Send a request that is refused, and return status, error and reason."""
        return (await self.ask(method, path, body)).refusal

    def close(self) -> None:
        """Close all connections."""
        for api in self._others:
            api.close()
        self._web.close()


@asynccontextmanager
async def managed(folder: Path, **sections: dict[str, Any]) -> AsyncIterator[tuple[BrokerServer, Api]]:
    """Yield a broker with an HTTP API, and a client of guest."""
    async with running_broker(folder / "data", None, http=HTTP, **sections) as broker:
        api = Api(broker)
        try:
            yield broker, api
        finally:
            api.close()
