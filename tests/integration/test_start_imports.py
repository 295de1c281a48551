"""A start imports only what serving needs, because needless imports are most of a restart's time."""

from __future__ import annotations

import os
from pathlib import Path

from tests.broker_process import PACKAGE, BrokerProcess
from tests.raw_client import RawClient

# Every process reads this at its start; the modules loaded by its end are written to a file.
AT_THE_END = """
import atexit, os, sys
def tell():
    with open(os.environ["LOADED"], "w") as file:
        file.write("\\n".join(sys.modules))
atexit.register(tell)
"""
# Modules of other commands, modules that pydantic loads on demand, and modules that take long to load.
NEEDLESS = (
    "broker.cli.listing",
    "broker.cli.perf",
    "broker.cli.pipeline",
    "broker.perf",
    "broker.pipeline",
    "broker.testing",
    "difflib",
    "email.policy",
    "encodings.idna",
    "matplotlib",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic_settings",
    "pyspark",
    "pytest",
    "re2",
    "regex",
    "structlog",
    "tomllib",
)
HTTP = ("broker.manage.app", "broker.manage.listener", "h11", "msgspec", "starlette", "uvicorn")
LOADED_BY_HTTP = ("anyio", "click", "prometheus_client")
MODULES_MAX = 760
MODULES_MAX_WITH_HTTP = 930
"""How many modules a start may load, Python's own included: each takes some 50 kB."""


def loaded(folder: Path, **variables: str) -> set[str]:
    """Start a broker twice, connect a client to the second one, and return the modules of the second process."""
    (folder / "sitecustomize.py").write_text(AT_THE_END)
    told = folder / "loaded"
    path = os.pathsep.join([str(folder), str(PACKAGE)])
    broker = BrokerProcess(folder / "data", environment={"PYTHONPATH": path, "LOADED": str(told), **variables})
    for _ in range(2):
        told.unlink(missing_ok=True)
        broker.start()
        with RawClient(broker.address.host, broker.address.port) as client:
            client.open()
            client.open_channel()
        assert broker.terminate() == 0
    return set(told.read_text().split())


def among(modules: set[str], names: tuple[str, ...]) -> list[str]:
    """Return the names that are among the modules, or are packages of one."""
    return [name for name in names if any(module == name or module.startswith(f"{name}.") for module in modules)]


def test_a_restart_loads_only_what_it_takes_to_let_a_client_in(tmp_path: Path) -> None:
    """A broker that has served a client and stopped cleanly has no modules of other commands or of HTTP."""
    modules = loaded(tmp_path)
    assert {"broker.server", "pydantic"} <= modules
    assert among(modules, NEEDLESS + HTTP + LOADED_BY_HTTP) == []
    assert len(modules) <= MODULES_MAX


def test_http_is_loaded_where_it_listens(tmp_path: Path) -> None:
    """With HTTP its modules are loaded and no others, which proves that the test above can detect them."""
    modules = loaded(tmp_path, SLOTMQ_HTTP__ENABLED="true", SLOTMQ_HTTP__PORT="0")
    assert among(modules, NEEDLESS + HTTP) == [*HTTP]
    assert len(modules) <= MODULES_MAX_WITH_HTTP
