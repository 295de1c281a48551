"""The scenarios of `slotmq perf`, by name; a scenario's module is imported on first use.

The module of a scenario has `add_<name>(commands)`, which adds its parser (made by `flags.add_scenario`) to an argparse
subparsers action, and `run_<name>(options, progress) -> Result`, which runs it with the parsed options. An error that
prevents the start is raised; errors during the run are in `Result.failures`.

Raises: `BadOptions` for options that a run cannot use; `Fault`, `RunFailed` and OSError if the run cannot start.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.perf.progress import RunProgress
    from broker.perf.result import Result

SCENARIOS: Final = {  # name -> the summary in `slotmq perf --help`
    "throughput": "measure messages per second, with any number of publishers, consumers and queues",
    "latency": "measure how long a message takes at a steady rate, from when it was due",
    "fanout": "publish each message into many queues, each with a wildcard binding and a consumer",
    "routing": "publish past many wildcard bindings, with routing keys that never repeat",
    "backlog": "publish without a consumer, then drain the queue",
    "pingpong": "run pairs of clients that answer each message with one message",
    "connections": "open and hold many connections: time and memory of each",
    "mqtt": "publish to MQTT subscribers, at QoS 0, 1 or 2, with any number of clients",
    "churn": "make and remove connections, channels, queues, bindings or consumers, over and over",
}
_MODULES: Final = {"connections": "connections", "churn": "connections", "mqtt": "mqtt"}  # all others: messages


def add(name: str, commands: Any) -> None:
    """Add a scenario's parser."""
    getattr(_module(name), f"add_{name}")(commands)


def run(name: str, given: argparse.Namespace, progress: RunProgress) -> Result:
    """Run a scenario. Raises: BadOptions, Fault, RunFailed, OSError."""
    result: Result = getattr(_module(name), f"run_{name}")(given, progress)
    return result


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{_MODULES.get(name, 'messages')}")
