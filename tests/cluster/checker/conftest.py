"""A cluster of its own for each test of the checker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.cluster.checker.system import System
from tools.postgres_server import PostgresServer


class MakeCluster(Protocol):
    """Starts a cluster with a number of nodes, on a PostgreSQL with or without a synchronous standby."""

    def __call__(
        self, nodes: int, environment: Mapping[str, str] | None = None, *, standby: bool = False
    ) -> System: ...


@pytest.fixture
def make_cluster(tmp_path: Path, durable_postgres: PostgresServer) -> Iterator[MakeCluster]:
    """Start clusters on a PostgreSQL of the test's own, with fsync; they end with the test."""
    with ExitStack() as stack:

        def start_standby(primary: PostgresServer) -> PostgresServer:
            standby = PostgresServer(primary=primary, durable=True)
            stack.callback(standby.close)
            return standby.start()

        def make(nodes: int, environment: Mapping[str, str] | None = None, *, standby: bool = False) -> System:
            system = System(tmp_path, "abcde"[:nodes], durable_postgres, environment=environment)
            stack.callback(system.stop)
            if standby:
                system.follow_by(start_standby)
            system.start()
            return system

        yield make
