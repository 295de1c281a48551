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
    """Starts a cluster with so many nodes."""

    def __call__(self, nodes: int, environment: Mapping[str, str] | None = None) -> System: ...


@pytest.fixture
def make_cluster(tmp_path: Path, durable_postgres: PostgresServer) -> Iterator[MakeCluster]:
    """Start clusters on a PostgreSQL of the test's own, with fsync; they end with the test."""
    with ExitStack() as stack:

        def make(nodes: int, environment: Mapping[str, str] | None = None) -> System:
            system = System(tmp_path, "abcde"[:nodes], durable_postgres, environment=environment)
            stack.callback(system.stop)
            system.start()
            return system

        yield make
