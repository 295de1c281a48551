"""Tasks with an ETA that their queue holds, by the policy hold-until-header: the worker's prefetch stays as it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import pytest
from celery.exceptions import TaskRevokedError

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.clients.celery_worker import CeleryWorker, prefetch
from tests.clients.conftest import WorkerOf
from tests.deadline import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow

PREFETCH: Final = 4  # one message for each of four threads
PER_S: Final = 50  # tasks that are due in each second
LATE_S: Final = 1.0


@pytest.fixture(scope="module")
def settings(module_broker: BrokerProcess) -> dict[str, Any]:
    """Return settings for production; results come by rpc://."""
    ask(
        module_broker.folder,
        "set_policy",
        name="eta",
        pattern="^celery$",
        definition={"hold-until-header": "eta"},
        apply_to="queues",
    )
    return {
        "broker_url": module_broker.address.url,
        "result_backend": "rpc://",
        "broker_transport_options": {"confirm_publish": True},
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
    }


@pytest.fixture(scope="module")
def worker(worker_of: WorkerOf, settings: dict[str, Any]) -> CeleryWorker:
    """Provide a running worker."""
    return worker_of(settings, "--pool", "threads", "--concurrency", str(PREFETCH)).start()


def queue(broker: BrokerProcess) -> dict[str, Any]:
    """Return the row of the queue of tasks."""
    (row,) = [row for row in ask(broker.folder, "list_queues") if row["name"] == "celery"]
    return dict(row)


def run_all(app: Any, broker: BrokerProcess, count: int, first_s: float) -> list[float]:
    """Call tasks with an ETA, and return how late each ran, in seconds."""
    clock = app.tasks["clock"]
    begin = time.time() + first_s
    dues = [begin + number / PER_S for number in range(count)]
    results = [clock.apply_async(countdown=due - time.time()) for due in reversed(dues)][::-1]
    called = time.time()
    assert called < begin, "the machine is too slow for this test: the first task is due"
    found = queue(broker)
    assert (found["messages_ready"], found["messages_unacknowledged"], found["messages_delayed"]) == (0, 0, count)
    assert abs(found["next_delayed_at"] / 1000 - begin) < LATE_S
    assert abs(found["last_delayed_at"] / 1000 - dues[-1]) < LATE_S
    assert app.tasks["add"].delay(1, 2).get(timeout=DEADLINE_S) == 3  # what has no ETA passes
    assert prefetch(broker) == PREFETCH
    ran: list[float] = []
    for result in results:
        ran.append(result.get(timeout=first_s + count / PER_S + DEADLINE_S))
        if len(ran) % PER_S == 0:
            # A worker raises it for a task with an ETA until it starts the task, so for those in its hands.
            assert prefetch(broker) <= 2 * PREFETCH
    wait_until(lambda: queue(broker)["messages"] == 0, "their acks")
    wait_until(lambda: prefetch(broker) == PREFETCH, "the prefetch of before")
    return [at - due for at, due in zip(ran, dues, strict=True)]


def test_tasks_wait_in_their_queue(app: Any, module_broker: BrokerProcess) -> None:
    """Each task runs once and not before its time; the worker holds none of those that wait."""
    late_s = run_all(app, module_broker, 200, 5)
    assert min(late_s) > -0.05  # the caller computed the ETA a moment later


def test_a_task_that_waits_can_be_revoked(app: Any) -> None:
    """The worker remembers the revocation, and discards the task when it comes."""
    waiting = app.tasks["clock"].apply_async(countdown=1)
    app.control.revoke(waiting.id, reply=True, limit=1, timeout=DEADLINE_S)
    with pytest.raises(TaskRevokedError):
        waiting.get(timeout=DEADLINE_S)


def test_retries_wait_in_the_queue_too(app: Any, module_broker: BrokerProcess) -> None:
    """task.retry publishes the task again with an ETA."""
    assert app.tasks["stubborn"].delay(3, 0.3).get(timeout=DEADLINE_S) == 2
    wait_until(lambda: prefetch(module_broker) == PREFETCH, "the prefetch of before")


def test_they_survive_kill_9(app: Any, module_broker: BrokerProcess, tmp_path: Path) -> None:
    """A killed broker delivers each once and at its time, to the worker that has connected again."""
    seen, due = tmp_path / "seen", time.time() + 6
    for number in range(20):
        options = {"countdown": due - time.time(), "ignore_result": True}
        app.tasks["note"].apply_async((str(number), str(seen)), **options)
    module_broker.restart("--port", str(module_broker.address.port))
    assert queue(module_broker)["messages_delayed"] == 20
    while time.time() < due - 0.2:
        assert not seen.exists()
        time.sleep(0.05)
    wait_until(lambda: seen.exists() and queue(module_broker)["messages"] == 0, "their acks")
    assert sorted(map(int, seen.read_text().split())) == list(range(20))


@pytest.mark.torture
def test_ten_thousand_tasks_run_within_a_second_of_their_time(app: Any, module_broker: BrokerProcess) -> None:
    """The prefetch stays 4, and no task is early or more than a second late."""
    late_s = run_all(app, module_broker, 10_000, 90)
    assert min(late_s) > -0.05
    assert max(late_s) < LATE_S
