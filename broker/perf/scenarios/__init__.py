"""The scenarios of `slotmq perf`, by name; a scenario's module is imported when it is asked for.

broker/perf/scenarios/<name>.py has `add_<name>(commands)`, which adds its parser (made by `flags.add_scenario`) to an
argparse subparsers action, and `run_<name>(options, progress) -> Result`, where `options` is what that parser parsed.
What a run could not do stands in `Result.failures`; what keeps it from beginning is raised.

Raises: `BadOptions` for options that do not go together, `Fault`, `RunFailed` and OSError for a broker that refuses.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.perf.progress import RunProgress
    from broker.perf.result import Result

SCENARIOS: Final = {  # name -> what `slotmq perf --help` says
    "throughput": "messages per second, through as many publishers, consumers and queues as you like",
    "latency": "how long a message takes at a steady rate, from when it was due",
    "fanout": "one message into many queues, each bound by a wildcard and with a consumer of its own",
    "routing": "publishing past many wildcard bindings, with ever new routing keys",
    "backlog": "publish without a consumer, then drain",
    "pingpong": "pairs that wait for each single message",
    "connections": "open and hold many connections: time and memory each",
    "churn": "connections, channels, queues, bindings or consumers made and dropped per second",
}


def run(name: str, given: argparse.Namespace, progress: RunProgress) -> Result:
    """Run a scenario.

    Raises: BadOptions, Fault, RunFailed, OSError.
    """
    result: Result = getattr(import_module(f"{__name__}.{name}"), f"run_{name}")(given, progress)
    return result
