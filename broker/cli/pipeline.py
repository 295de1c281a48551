"""`slotmq pipeline`: the jobs of the data pipeline. A job's module is imported only when the job is used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from broker.cli.parser import BadUsage, LazyParser, add_command

JOBS: Final = {  # name -> summary in `slotmq pipeline --help`; broker.pipeline.jobs.<name> defines add_<name>
    "doctor": "check whether the pipeline can run on this machine",
    "archive": "copy the messages of taps into a lake, each once",
    "compact": "merge a lake's many small files into few large ones",
    "expire": "delete messages from a lake, by age or routing key",
    "query": "run SQL on a lake or on live slots",
    "report": "report a lake's traffic as one HTML file",
    "route": "compute which queues would receive a lake's messages with other bindings",
    "replay": "publish a slice of a lake again",
    "deadletters": "show why messages were dead-lettered, and republish them",
    "simulate": "simulate overlays of many sizes with the broker's own code",
    "server": "start, stop or check a Spark server that commands share",
}
NEEDED: Final = ("pyspark", "pyarrow", "pandas", "numpy", "deltalake", "rich")
WITHOUT_EXTRA: Final = frozenset({"doctor"})  # it reports missing packages itself


def missing_packages() -> list[str]:
    """Return which packages of the extra are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def add_pipeline(commands: Any) -> None:
    """Add the commands."""
    pipeline = add_command(commands, "pipeline", "archive, query, report and replay messages with Spark")
    jobs = pipeline.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=LazyParser)
    for name, summary in JOBS.items():
        jobs.add_parser(name, help=summary, add_help=False).defer(name, "slotmq pipeline", _add_job)


def _add_job(name: str, commands: Any) -> None:
    """Add a job's parser. Raises: BadUsage when the extra is not installed."""
    if name not in WITHOUT_EXTRA and missing_packages():
        raise BadUsage(
            f'the pipeline needs {", ".join(missing_packages())}, which the extra has: pip install ".[spark]" in a '
            "clone of SlotMQ"
        )
    getattr(import_module(f"broker.pipeline.jobs.{name}"), f"add_{name}")(commands)
