"""A start loads what serving takes, and nothing else: what is imported for nothing is most of a restart."""

from __future__ import annotations

import os
from pathlib import Path

from tests.broker_process import PACKAGE, BrokerProcess
from tests.raw_client import RawClient

# Every process reads this when it begins; what it has loaded by its end is written down.
AT_THE_END = """
import atexit, os, sys
def tell():
    with open(os.environ["LOADED"], "w") as file:
        file.write("\\n".join(sys.modules))
atexit.register(tell)
"""
# What other commands are for, what pydantic takes where it is asked to, and what takes long to load.
NEEDLESS = (
    "broker.cli.listing",
    "broker.cli.perf",
    "broker.cli.pipeline",
    "broker.perf",
    "broker.pipeline",
    "broker.testing",
    "matplotlib",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic_settings",
    "pyspark",
    "pytest",
    "tomllib",
)
HTTP = ("broker.net.http", "h11")


def loaded(folder: Path, *options: str) -> set[str]:
    """Has a broker start twice, the second time let in a client, and returns the modules of the second process."""
    (folder / "sitecustomize.py").write_text(AT_THE_END)
    told = folder / "loaded"
    path = os.pathsep.join([str(folder), str(PACKAGE)])
    broker = BrokerProcess(folder / "data", *options, environment={"PYTHONPATH": path, "LOADED": str(told)})
    for _ in range(2):
        told.unlink(missing_ok=True)
        broker.start()
        with RawClient(broker.address.host, broker.address.port) as client:
            client.open()
            client.open_channel()
        assert broker.terminate() == 0
    return set(told.read_text().split())


def among(modules: set[str], names: tuple[str, ...]) -> list[str]:
    """Return which of the names are among the modules, or have a module of theirs there."""
    return [name for name in names if any(module == name or module.startswith(f"{name}.") for module in modules)]


def test_a_restart_loads_only_what_it_takes_to_let_a_client_in(tmp_path: Path) -> None:
    """Until it has served somebody and stopped in good order: nothing of other commands, nothing of HTTP."""
    modules = loaded(tmp_path)
    assert {"broker.server", "structlog", "pydantic"} <= modules
    assert among(modules, NEEDLESS + HTTP) == []


def test_http_is_loaded_where_it_listens(tmp_path: Path) -> None:
    """And nothing else with it; without this, the test above would not tell whether it sees HTTP at all."""
    (tmp_path / "slotmq.toml").write_text("[http]\nenabled = true\nport = 0\n")
    modules = loaded(tmp_path, "--config", str(tmp_path / "slotmq.toml"))
    assert among(modules, NEEDLESS + HTTP) == ["tomllib", *HTTP]
