"""Celery workers that are killed, asked to end, drained, or lose their broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.clients.conftest import WorkerOf, calling
from tests.deadline import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow

TASKS = 20
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
    broker_process: BrokerProcess, settings: dict[str, Any], worker_of: WorkerOf, tmp_path: Path
) -> None:
    """A worker and confirmed tasks continue after a kill of the broker; at the worker's end only its queue stays."""
    settings["broker_transport_options"] = {"confirm_publish": True}
    gate, running, seen = tmp_path / "gate", tmp_path / "running", tmp_path / "seen"
    worker = worker_of(settings, *POOL).start()
    with calling(settings) as app:
        app.tasks["hold"].apply_async((str(gate), str(running)), ignore_result=True)
        wait_until(running.exists, "a task that runs")
        for number in range(TASKS):
            app.tasks["note"].apply_async((str(number), str(seen)), ignore_result=True)
        broker_process.restart("--port", str(broker_process.address.port))
        gate.touch()
        assert app.tasks["add"].delay(3, 4).get(timeout=DEADLINE_S) == 7
        assert seen.read_text().split() == [str(number) for number in range(TASKS)]
        assert running.read_text() == "running\nrunning\n", "it could not be acked at the broker that was killed"
        app.control.shutdown()
        assert worker.wait() == 0
    wait_until(lambda: names(broker_process, "queues") == {"celery"}, "the worker's own queues to go")
    assert names(broker_process, "exchanges") == {"celery", "celery.pidbox", "celeryev"}


def test_drain(broker_process: BrokerProcess, settings: dict[str, Any], worker_of: WorkerOf, tmp_path: Path) -> None:
    """The task that runs ends; the others, one that waits for its time too, run once after the worker is back."""
    gate, running, seen = tmp_path / "gate", tmp_path / "running", tmp_path / "seen"
    worker_of(settings, *POOL).start()
    with calling(settings) as app, ThreadPoolExecutor(1) as other:
        app.tasks["note"].apply_async(("waited", str(seen)), countdown=4, ignore_result=True)
        wait_until(lambda: unacked(broker_process) == 1, "the task that waits at the worker")
        for _ in range(3):
            app.tasks["hold"].apply_async((str(gate), str(running)), ignore_result=True)
        wait_until(running.exists, "a task that runs")
        drain = other.submit(ask, broker_process.folder, "drain", timeout_s=2)
        wait_until(lambda: is_draining(broker_process), "the drain")
        gate.touch()
        assert drain.result(DEADLINE_S)["unacked"] == 1, "the task that waits is not settled in time"
        assert app.tasks["add"].delay(3, 4).get(timeout=DEADLINE_S) == 7
        wait_until(seen.exists, "the task that waited")
    assert (running.read_text(), seen.read_text()) == ("running\n" * 3, "waited\n")


def unacked(broker: BrokerProcess) -> int:
    """Return how many tasks the worker holds."""
    return sum(row["messages_unacknowledged"] for row in ask(broker.folder, "list_queues") if row["name"] == "celery")


def is_draining(broker: BrokerProcess) -> bool:
    """Return whether all connections are drained."""
    return all(row["state"] == "draining" for row in ask(broker.folder, "list_connections"))
