"""An application of Dramatiq as a program: `publish` sends tasks, `work` runs them and prints their results as JSON.

It ends with open connections, as Dramatiq leaves them.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partialmethod
from typing import Any, Final

from dramatiq import Actor, Worker, actor
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import Retries
from pika.adapters.blocking_connection import BlockingChannel

from tests.deadline import wait_until

TASKS: Final = 50
DELAY_MS: Final = 1000
QUEUE: Final = "tasks"


class QuorumBroker(RabbitmqBroker):  # type: ignore[misc]
    """Declares quorum queues; the queue of delayed tasks has no delivery limit, because tasks return to it often."""

    def _build_queue_arguments(self, queue_name: str) -> dict[str, Any]:
        return {**super()._build_queue_arguments(queue_name), "x-queue-type": "quorum"}

    def _declare_dq_queue(self, queue_name: str) -> Any:
        arguments = self._build_queue_arguments(queue_name) | {"x-delivery-limit": -1}
        return self.channel.queue_declare(f"{queue_name}.DQ", durable=True, arguments=arguments)


class Tasks:
    """The tasks, and their results."""

    def __init__(self, client: RabbitmqBroker) -> None:
        self.client = client
        self.added: list[int] = []
        self.attempts = 0
        self.ran_at: list[float] = []
        self.add = self._actor(self._add)
        self.fail = self._actor(self._fail, max_retries=2, min_backoff=50, max_backoff=100)
        self.clock = self._actor(self._clock)

    def _actor(self, task: Any, **options: Any) -> Actor[..., Any]:
        return actor(task, actor_name=task.__name__, broker=self.client, queue_name=QUEUE, **options)

    def _add(self, number: int) -> None:
        self.added.append(number)

    def _fail(self) -> None:
        self.attempts += 1
        raise ValueError("as planned")

    def _clock(self) -> None:
        self.ran_at.append(time.time())

    def publish(self) -> None:
        """Send the tasks; each is confirmed."""
        for number in range(TASKS):
            self.add.send_with_options(args=(number,), broker_priority=number % 10)

    def work(self) -> dict[str, Any]:
        """Run the tasks, one that fails and one that is delayed; return the results."""
        worker = Worker(self.client, worker_threads=2, worker_timeout=100)
        worker.start()
        wait_until(lambda: len(self.added) >= TASKS, "all tasks")
        self.fail.send()
        due = time.time() + DELAY_MS / 1000
        self.clock.send_with_options(delay=DELAY_MS)
        wait_until(lambda: self.ran_at and self.client.get_queue_message_counts(QUEUE)[2], "all attempts")
        worker.stop()
        return {"added": sorted(self.added), "attempts": self.attempts, "late_s": self.ran_at[0] - due}


if __name__ == "__main__":
    word, kind, url = sys.argv[1:]
    options = {"url": url, "confirm_delivery": True, "middleware": [Retries()]}
    if kind == "quorum":  # Dramatiq sends it to queues of any type
        BlockingChannel.consume = partialmethod(BlockingChannel.consume, arguments={"x-consumer-timeout": 3_600_000})
        tasks = Tasks(QuorumBroker(**options))
    else:
        tasks = Tasks(RabbitmqBroker(max_priority=10, **options))
    if word == "publish":
        tasks.publish()
    else:
        print(json.dumps(tasks.work()))
