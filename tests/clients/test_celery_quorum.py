"""A Celery worker on quorum queues: delays in the broker, results and chords in files."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.clients.celery_worker import CeleryWorker
from tests.clients.conftest import WorkerOf
from tests.deadline import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow

DELAYS = 28  # celery_delayed_0 waits one second, each next queue twice as long


@pytest.fixture(scope="module")
def settings(module_broker: BrokerProcess, folder: Path) -> dict[str, Any]:
    """Return settings for quorum queues."""
    (folder / "results").mkdir()
    return {
        "broker_url": module_broker.address.url,
        "result_backend": f"file://{folder / 'results'}",  # rpc:// does not support chords
        "task_default_queue_type": "quorum",
        "task_default_exchange_type": "topic",  # required by native delayed delivery
    }


@pytest.fixture(scope="module")
def worker(worker_of: WorkerOf, settings: dict[str, Any]) -> CeleryWorker:
    """Provide a running worker."""
    return worker_of(settings, "--pool", "threads", "--concurrency", "2", "--without-mingle").start()


def rows(broker: BrokerProcess, kind: str) -> dict[str, dict[str, Any]]:
    """Return the broker's list, by name."""
    return {row["name"]: row for row in ask(broker.folder, f"list_{kind}")}


def test_queues_are_quorum_queues(app: Any, module_broker: BrokerProcess) -> None:
    """The worker's queue and the cascade of its delays are durable quorum queues."""
    names = {"celery", *(f"celery_delayed_{number}" for number in range(DELAYS))}
    queues = {name: row for name, row in rows(module_broker, "queues").items() if name in names}
    assert queues.keys() == names
    assert {row["arguments"]["x-queue-type"] for row in queues.values()} == {"quorum"}
    assert all(row["durable"] for row in queues.values())
    exchanges = rows(module_broker, "exchanges")
    assert exchanges["celery_delayed_delivery"]["type"] == exchanges["celery_delayed_0"]["type"] == "topic"


def test_the_broker_delays(app: Any, module_broker: BrokerProcess) -> None:
    """A countdown waits in the queues of the cascade, one after another, and not at the worker."""
    due = time.time() + 3
    result = app.tasks["clock"].apply_async(countdown=3)
    waiting = wait_until(lambda: ready(module_broker), "a message that waits")
    assert waiting == ["celery_delayed_1"]
    assert rows(module_broker, "queues")["celery"]["messages_unacknowledged"] == 0
    assert wait_until(lambda: [name for name in ready(module_broker) if name != "celery_delayed_1"], "its second wait")
    assert result.get(timeout=DEADLINE_S) >= due
    assert ready(module_broker) == []


def ready(broker: BrokerProcess) -> list[str]:
    """Return the queues with ready messages."""
    return [name for name, row in rows(broker, "queues").items() if row["messages_ready"]]


def test_chord(app: Any) -> None:
    """The body of a chord gets the results of its header; the task that collects them is retried."""
    add, total = app.tasks["add"], app.tasks["total"]
    assert chord(add.s(number, 1) for number in range(10))(total.s()).get(timeout=DEADLINE_S) == 55


def test_retry(app: Any) -> None:
    """Three retries go through the cascade as well: a message may pass each of its queues again."""
    assert app.tasks["stubborn"].delay(4, 1).get(timeout=DEADLINE_S) == 3


def test_priorities(app: Any, worker: CeleryWorker, module_broker: BrokerProcess) -> None:
    """A worker gets the most urgent task first, up to 31; Celery sends a task without a priority with 0."""
    add = app.tasks["add"]
    app.control.cancel_consumer("celery", reply=True, limit=1, timeout=DEADLINE_S)
    wait_until(lambda: rows(module_broker, "queues")["celery"]["consumers"] == 0, "the end of the consumer")
    sent = {priority: add.apply_async((1, 2), priority=priority).id for priority in (0, 5, 31, 9, 4)}
    ids = [sent[priority] for priority in (31, 9, 5, 4, 0)] + [add.delay(1, 2).id]
    app.control.add_consumer("celery", reply=True, limit=1, timeout=DEADLINE_S)
    received = wait_until(lambda: received_of(worker, ids), "the tasks")
    assert received == ids


def received_of(worker: CeleryWorker, ids: list[str]) -> list[str]:
    """Return the tasks in the order in which the worker received them, nothing until it has all of them."""
    received = [task for task in re.findall(r"\[([\w-]+)\] received", worker.output) if task in ids]
    return received if len(received) == len(ids) else []


def test_revoke(app: Any, worker: CeleryWorker, tmp_path: Path) -> None:
    """A task that is revoked while it waits in the cascade is discarded when it arrives."""
    seen = tmp_path / "seen"
    waiting = app.tasks["note"].apply_async(("revoked", str(seen)), countdown=1)
    app.control.revoke(waiting.id, reply=True, limit=1, timeout=DEADLINE_S)
    with pytest.raises(TaskRevokedError):
        waiting.get(timeout=DEADLINE_S)
    wait_until(lambda: f"Discarding revoked task: note[{waiting.id}]" in worker.output, "the task's arrival")
    assert not seen.exists()
