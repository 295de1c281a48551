"""The Celery application that workers run and tests call: Celery's default settings, unless a test names others."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from celery import Celery

SETTINGS_VARIABLE = "CLIENT_TEST_SETTINGS"
"""The environment variable with the settings of a worker process as JSON, `broker_url` included."""
PAUSE_S = 0.01


def add(one: int, other: int) -> int:
    """Return the sum of two numbers."""
    return one + other


def total(numbers: list[int]) -> int:
    """Return the sum of many numbers: the body of a chord."""
    return sum(numbers)


def fail(text: str) -> None:
    """Raise an error with this text."""
    raise ValueError(text)


def clock() -> float:
    """Return the time at which the task runs."""
    return time.time()


def stubborn(task: Any, tries: int, countdown: float) -> int:
    """Succeed at the given try; return how often the task was retried."""
    if task.request.retries + 1 < tries:
        raise task.retry(countdown=countdown)
    retries: int = task.request.retries
    return retries


def note(task: Any, text: str, path: str) -> bool:
    """Append a line to a file; return whether the message was redelivered."""
    with Path(path).open("a", encoding="utf-8") as lines:
        lines.write(f"{text}\n")
    return bool(task.request.delivery_info["redelivered"])


def hold(task: Any, gate: str, seen: str) -> bool:
    """Report the start in one file and wait for another; return whether the message was redelivered."""
    redelivered = note(task, "running", seen)
    while not Path(gate).exists():
        time.sleep(PAUSE_S)
    return redelivered


TASKS: Mapping[Callable[..., Any], bool] = {
    add: False,
    total: False,
    fail: False,
    clock: False,
    stubborn: True,
    note: True,
    hold: True,
}
"""Whether each task gets the task object as its first argument."""


def make_app(**settings: Any) -> Any:
    """Return an application with these settings and all tasks, each with a fixed name."""
    app = Celery("clients", set_as_current=False)
    app.conf.update(settings)
    for function, bound in TASKS.items():
        app.task(name=function.__name__, bind=bound)(function)
    return app


app = make_app(**json.loads(os.environ.get(SETTINGS_VARIABLE, "{}")))
