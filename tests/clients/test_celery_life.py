"""Celery workers that are killed, asked to end, or lose their broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.clients.conftest import WorkerOf, calling
from tests.deadline import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow

POOL = ("--pool", "prefork", "--concurrency", "1", "--without-mingle")


@pytest.fixture
def settings(broker_process: BrokerProcess) -> dict[str, Any]:
    """Return settings for one task at a time, acked when it is done."""
    return {
        "broker_url": broker_process.start().address.url,
        "result_backend": "rpc://",
        "task_acks_late": True,
        "task_queue_max_priority": 10,
        "worker_prefetch_multiplier": 1,
    }


def names(broker: BrokerProcess, kind: str) -> set[str]:
    """Return the names of the existing queues or exchanges, except the predeclared ones."""
    return {row["name"] for row in ask(broker.folder, f"list_{kind}") if row["name"] and row["name"][:4] != "amq."}


def test_priorities(settings: dict[str, Any], worker_of: WorkerOf, tmp_path: Path) -> None:
    """A worker that starts late gets the most urgent task first, and tasks of equal priority in order."""
    seen = tmp_path / "seen"
    with calling(settings) as app:
        sent = [(priority, place) for place in range(2) for priority in (0, 9, 3, 10)]
        results = [
            app.tasks["note"].apply_async((f"{priority} {place}", str(seen)), priority=priority)
            for priority, place in sent
        ]
        worker_of(settings, *POOL).start()
        for result in results:
            result.get(timeout=DEADLINE_S)
    assert seen.read_text().splitlines() == [
        f"{priority} {place}" for priority, place in sorted(sent, key=lambda task: -task[0])
    ]


def test_task_of_a_killed_worker(settings: dict[str, Any], worker_of: WorkerOf, tmp_path: Path) -> None:
    """A task with late acks is redelivered when its worker is killed."""
    gate, seen = tmp_path / "gate", tmp_path / "seen"
    worker = worker_of(settings, *POOL).start()
    with calling(settings) as app:
        holding = app.tasks["hold"].delay(str(gate), str(seen))
        wait_until(seen.exists, "a task that runs")
        worker.kill()
        gate.touch()
        worker.start()
        assert holding.get(timeout=DEADLINE_S) is True
    assert seen.read_text() == "running\nrunning\n"


def test_broker_restart_and_shutdown(
    broker_process: BrokerProcess, settings: dict[str, Any], worker_of: WorkerOf
) -> None:
    """A worker continues after a kill of its broker; when it is asked to end, only its queue stays."""
    worker = worker_of(settings, *POOL).start()
    broker_process.restart("--port", str(broker_process.address.port))
    with calling(settings) as app:
        assert app.tasks["add"].delay(3, 4).get(timeout=DEADLINE_S) == 7
        app.control.shutdown()
        assert worker.wait() == 0
    wait_until(lambda: names(broker_process, "queues") == {"celery"}, "the worker's own queues to go")
    assert names(broker_process, "exchanges") == {"celery", "celery.pidbox", "celeryev"}
