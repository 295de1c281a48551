"""A Celery worker with Celery's default settings, and results over rpc://."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from celery import group
from celery.exceptions import TaskRevokedError

from tests.broker_process import BrokerProcess
from tests.clients.celery_worker import NODE, CeleryWorker, prefetch
from tests.clients.conftest import WorkerOf
from tests.deadline import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow

PREFETCH = 4 * 4  # four messages for each of four threads, Celery's default


@pytest.fixture(scope="module")
def settings(module_broker: BrokerProcess) -> dict[str, Any]:
    """Return the addresses of the broker and the result backend; everything else is Celery's default."""
    return {"broker_url": module_broker.address.url, "result_backend": "rpc://"}


@pytest.fixture(scope="module")
def worker(worker_of: WorkerOf, settings: dict[str, Any]) -> CeleryWorker:
    """Provide a running worker."""
    return worker_of(settings, "--pool", "threads", "--concurrency", "4").start()


def value(result: Any) -> Any:
    """Return the result of a task, or raise its error."""
    return result.get(timeout=DEADLINE_S)


def ready(app: Any, queue: str) -> int:
    """Return the number of ready messages of a queue."""
    with app.connection_for_read() as connection:
        count: int = connection.default_channel.queue_declare(queue, passive=True).message_count
        return count


def test_results_and_errors_come_back(app: Any) -> None:
    """A task's result and a task's error reach the caller over rpc://."""
    assert value(app.tasks["add"].delay(1, 2)) == 3
    with pytest.raises(ValueError, match="no"):
        value(app.tasks["fail"].delay("no"))


def test_retry(app: Any) -> None:
    """A task that retries is published again with a countdown, until it succeeds."""
    assert value(app.tasks["stubborn"].delay(3, 0.1)) == 2


def test_group(app: Any) -> None:
    """The results of a group come back in its order."""
    add = app.tasks["add"]
    assert value(group(add.s(number, number) for number in range(50)).apply_async()) == list(range(0, 100, 2))


def test_countdown_does_not_hold_up_what_is_behind(app: Any, module_broker: BrokerProcess) -> None:
    """Tasks beyond the prefetch wait at the worker, unacked; it raises its prefetch for others, and lowers it again."""
    clock = app.tasks["clock"]
    before = prefetch(module_broker)  # higher after a task was revoked while it waited
    assert before >= PREFETCH
    due = time.time() + 3
    later = [clock.apply_async(countdown=3) for _ in range(PREFETCH + 4)]
    assert value(clock.delay()) < due
    wait_until(lambda: prefetch(module_broker) >= before + PREFETCH, "a prefetch beyond the tasks that wait")
    assert time.time() < due
    assert min(value(result) for result in later) >= due
    wait_until(lambda: prefetch(module_broker) <= before, "the prefetch of before")


def test_expires(app: Any) -> None:
    """A task that is not fetched in time expires from its queue, at the second; one with time left runs."""
    app.tasks["clock"].apply_async(queue="idle", expires=60)
    app.tasks["clock"].apply_async(queue="idle", expires=0.2)
    app.tasks["clock"].apply_async(queue="fast", expires=0.2)
    wait_until(lambda: ready(app, "fast") == 0, "an expired task")
    assert ready(app, "idle") == 2, "only the head of a queue expires"
    assert value(app.tasks["add"].apply_async((1, 2), expires=60)) == 3


def test_remote_control(app: Any, tmp_path: Path) -> None:
    """A worker answers ping, active and stats, and revokes a task that waits for its time."""
    look = app.control.inspect(timeout=DEADLINE_S, limit=1)
    assert look.ping() == {NODE: {"ok": "pong"}}

    gate, seen = tmp_path / "gate", tmp_path / "seen"
    holding = app.tasks["hold"].delay(str(gate), str(seen))
    wait_until(seen.exists, "a task that runs")
    assert [task["id"] for task in look.active()[NODE]] == [holding.id]
    gate.touch()
    assert value(holding) is False

    statistics = look.stats()[NODE]
    assert statistics["prefetch_count"] >= PREFETCH
    assert statistics["total"]["hold"] == 1

    waiting = app.tasks["note"].apply_async(("revoked", str(seen)), countdown=0.5)
    wait_until(lambda: scheduled(look, waiting.id), "a task that waits for its time")
    app.control.revoke(waiting.id, reply=True, limit=1, timeout=DEADLINE_S)
    with pytest.raises(TaskRevokedError):
        value(waiting)
    assert seen.read_text() == "running\n"


def scheduled(look: Any, task_id: str) -> bool:
    """Return whether a task waits for its time at the worker."""
    return task_id in [entry["request"]["id"] for entry in look.scheduled()[NODE]]


def test_broadcast_without_an_answer_returns(app: Any) -> None:
    """A request to a missing worker gets no answer, and the reply queue is deleted."""
    assert app.control.ping(destination=["nobody@clients"], timeout=0.2) == []


def test_events(app: Any) -> None:
    """The events of a task reach a receiver that binds its own queue to the topic exchange of events."""
    app.control.enable_events(reply=True, limit=1, timeout=DEADLINE_S)
    events: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": events.append})
        with receiver.consumer_context(wakeup=False) as (listening, _, _):  # the queue is bound before the task is sent
            result = app.tasks["add"].delay(1, 2)

            def seen() -> list[str]:
                return [event["type"] for event in events if event.get("uuid") == result.id]

            while "task-succeeded" not in seen():
                listening.drain_events(timeout=DEADLINE_S)
    app.control.disable_events(reply=True, limit=1, timeout=DEADLINE_S)
    assert seen() == ["task-received", "task-started", "task-succeeded"]
