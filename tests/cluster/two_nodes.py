"""Two brokers on one PostgreSQL, for tests with clients on both."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError

from broker.cli.control_client import Unanswered, ask
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tools.postgres_server import PostgresServer

LEASE_MS = 500


class Nodes:
    """Nodes by name, and the clients that a test connected to them."""

    def __init__(
        self,
        folder: Path,
        url: str,
        schema: str,
        *names: str,
        lease_ms: int = LEASE_MS,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
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
                    "SLOTMQ_CLUSTER__LEASE_MS": str(lease_ms),
                    **environment,
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
        self._close_connections()
        errors = self._errors()
        for node in self.by_name.values():
            node.kill()
        if error is None:
            assert not errors, f"a node logged errors: {errors}"

    def renew(self) -> None:
        """Prepare the nodes for another test: close the connections, delete all queues and exchanges.

        Killed nodes are started again.
        """
        self._close_connections()
        errors = self._errors()
        assert not errors, f"a node logged errors: {errors}"
        for node in self.by_name.values():
            if not node.alive:
                node.start()
        folder = node.folder
        for row in ask(folder, "list_queues"):
            with suppress(Unanswered):  # the queue has expired, or was deleted with its last consumer
                ask(folder, "delete_queue", queue=row["name"])
        for row in ask(folder, "list_exchanges"):
            if row["name"] and not row["name"].startswith("amq."):
                ask(folder, "delete_exchange", exchange=row["name"])

    def _close_connections(self) -> None:
        for connection in self._connections:
            with suppress(AMQPError):  # its node may have been killed
                connection.close()
        self._connections.clear()

    def _errors(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the errors in the logs of the nodes, except those that a test expects."""
        return [
            (name, event)
            for name, node in self.by_name.items()
            for event in (node.errors() if node.starts else ())
            if (name, event["event"]) not in self._expected
        ]

    def errors_expected(self, name: str, event: str) -> None:
        """Accept this event as an error in the log of a node."""
        self._expected.add((name, event))

    def connect(self, name: str) -> BlockingConnection:
        """Return a connection to a node."""
        connection = BlockingConnection(pika.URLParameters(self.by_name[name].address.url))
        self._connections.append(connection)
        return connection

    def channel(self, name: str, *, confirms: bool = False) -> BlockingChannel:
        """Return a channel of a new connection to a node."""
        channel = self.connect(name).channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    def contents(self, name: str, queue: str) -> list[bytes]:
        """Return the messages that a node delivers from a queue, and requeue them."""
        channel = self.channel(name)
        count: int = channel.queue_declare(queue, passive=True).method.message_count
        found: list[bytes] = []
        channel.basic_consume(queue, lambda _at, _method, _properties, body: found.append(body))

        def all_delivered() -> bool:
            channel.connection.process_data_events(0.01)
            return len(found) >= count

        wait_until(all_delivered, "all messages are delivered")
        channel.connection.close()
        return found


def rows(postgres: PostgresServer, schema: str) -> int:
    """Return the number of slot rows."""
    return int(postgres.sql(f'SELECT count(*) FROM "{schema}".slot'))
