"""Celery over two nodes: the worker is on one, and the caller, who gets results over rpc://, on the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import group

from tests.clients.celery_worker import NODE, CeleryWorker
from tests.clients.conftest import calling
from tests.cluster.two_nodes import Nodes
from tests.deadline import DEADLINE_S

pytestmark = pytest.mark.slow


@pytest.fixture
def app(tmp_path: Path, postgres_url: str, schema: str) -> Iterator[Any]:
    """Provide an application on node `a`, whose tasks a worker on node `b` runs."""
    with Nodes(tmp_path / "nodes", postgres_url, schema, "a", "b") as nodes:
        settings = {
            name: {"broker_url": node.address.url, "result_backend": "rpc://"} for name, node in nodes.by_name.items()
        }
        worker = CeleryWorker(tmp_path, settings["b"], "--pool", "threads", "--concurrency", "4").start()
        try:
            with calling(settings["a"]) as application:
                yield application
        finally:
            worker.kill()


def test_tasks_run_on_one_node_and_results_arrive_on_the_other(app: Any) -> None:
    """Results, errors, retries, groups and answers of remote control reach the caller."""

    def value(result: Any) -> Any:
        return result.get(timeout=DEADLINE_S)

    add = app.tasks["add"]
    assert value(add.delay(1, 2)) == 3
    with pytest.raises(ValueError, match="no"):
        value(app.tasks["fail"].delay("no"))
    assert value(app.tasks["stubborn"].delay(3, 0.1)) == 2
    assert value(add.apply_async((1, 2), countdown=0.5)) == 3
    assert value(group(add.s(number, number) for number in range(50)).apply_async()) == list(range(0, 100, 2))
    look = app.control.inspect(timeout=DEADLINE_S, limit=1)
    assert look.ping() == {NODE: {"ok": "pong"}}
