"""Two brokers on one PostgreSQL, for tests with clients on both."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError

from tests.broker_process import BrokerProcess
from tools.postgres_server import PostgresServer

LEASE_MS = 500


class Nodes:
    """Nodes by name, and the clients that a test connected to them."""

    def __init__(self, folder: Path, url: str, schema: str, *names: str) -> None:
        self.schema = schema
        self._connections: list[BlockingConnection] = []
        self._expected: set[tuple[str, str]] = set()
        self.by_name = {
            name: BrokerProcess(
                folder / name,
                "--node",
                name,
                environment={
                    "SLOTMQ_CLUSTER__URL": url,
                    "SLOTMQ_CLUSTER__SCHEMA_NAME": schema,
                    "SLOTMQ_CLUSTER__LEASE_MS": str(LEASE_MS),
                },
            )
            for name in names
        }

    def __enter__(self) -> Self:
        for node in self.by_name.values():
            node.spawn()
        for node in self.by_name.values():
            node.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            with suppress(AMQPError):  # its node may have been killed
                connection.close()
        errors = [
            (name, event)
            for name, node in self.by_name.items()
            for event in (node.errors() if node.starts else ())
            if (name, event["event"]) not in self._expected
        ]
        for node in self.by_name.values():
            node.kill()
        if error is None:
            assert not errors, f"a node logged errors: {errors}"

    def errors_expected(self, name: str, event: str) -> None:
        """Note that a node logs this event as an error."""
        self._expected.add((name, event))

    def connect(self, name: str) -> BlockingConnection:
        """Return a connection to a node."""
        connection = BlockingConnection(pika.URLParameters(self.by_name[name].address.url))
        self._connections.append(connection)
        return connection

    def channel(self, name: str, *, confirms: bool = False) -> BlockingChannel:
        """Return a channel of a connection of its own to a node."""
        channel = self.connect(name).channel()
        if confirms:
            channel.confirm_delivery()
        return channel


def rows(postgres: PostgresServer, schema: str) -> int:
    """Return how many slot rows there are."""
    return int(postgres.sql(f'SELECT count(*) FROM "{schema}".slot'))
