"""Fixtures of all tests with clients: a broker, and unique names. Divides the tests between two processes.

No test depends on the machine: Hypothesis has no deadline, and with TEST_PORTS_TAKEN no default port is free.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import socket
import uuid
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from structlog.testing import capture_logs

from tests.broker_process import BrokerAddress, BrokerProcess
from tests.raw_client import RawClient

ORACLE_URL = os.environ.get("SLOTMQ_TEST_URL")
"""Another broker (RabbitMQ, say) for every test that does not start or kill its own."""

if "SLOTMQ_TEST_POSTGRES" in os.environ:  # a broker that a test starts would refuse a setting that it does not know
    os.environ["TEST_POSTGRES"] = os.environ.pop("SLOTMQ_TEST_POSTGRES")

PROCESSES: Final = 2
DEFAULT_PORTS: Final = (5671, 5672, 15672, 15692)
"""AMQP over TLS, AMQP, HTTP and metrics, where another broker may run."""
SHARED_FOLDERS: Final = ("tests/pipeline/", "tests/manage/page/")
"""Folders whose tests share a JVM or a browser, and so run in one process."""

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Bind the default ports with TEST_PORTS_TAKEN, so that a test that uses one fails; .ci/run sets it."""
    if not os.environ.get("TEST_PORTS_TAKEN") or hasattr(config, "workerinput"):
        return
    for port in DEFAULT_PORTS:
        taken = socket.socket()
        config.add_cleanup(taken.close)
        try:
            taken.bind(("127.0.0.1", port))
            taken.listen()
        except OSError:  # another broker runs
            continue


SELECTION: Final = (
    *(f"tests/integration/pika/test_{name}.py" for name in "consume delayed publish queue restart routing".split()),
    "tests/integration/test_restart.py",
    "tests/unit/test_compiled.py",
)
"""Tests that `make test` also runs interpreted, to test that broker, too."""


# ---- the tests of the interpreted broker, after all others on the compiled one


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the second part of `make test`."""
    parser.addoption("--interpreted", action="store_true", help="run only tests with this mark, and a selection")


# ---- the division of the tests in two processes, by pytest-xdist


def unit_of(nodeid: str) -> str:
    """Return the unit that runs in one process: a test's file, or its folder if that shares an expensive fixture."""
    return next((folder for folder in SHARED_FOLDERS if nodeid.startswith(folder)), nodeid.partition("::")[0])


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort units with slow tests first, so that at the end neither process waits long for the other."""
    if config.getoption("interpreted", default=False):
        others = [item for item in items if not _proves_interpreted(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _proves_interpreted(item)]
    if not hasattr(config, "workerinput"):
        return
    slow = {unit_of(item.nodeid) for item in items if item.get_closest_marker("slow")}

    def turn(item: pytest.Item) -> int:
        unit = unit_of(item.nodeid)
        return 0 if unit in SHARED_FOLDERS else 1 if unit in slow else 2

    items.sort(key=turn)


def _proves_interpreted(item: pytest.Item) -> bool:
    return item.get_closest_marker("interpreted") is not None or item.nodeid.startswith(SELECTION)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run named files and folders in this process, and all tests in several."""
    return PROCESSES if config.args_source is config.ArgsSource.TESTPATHS else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Schedule one unit after the other, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    class UnitScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:  # xdist's own schedulers override it, too
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return UnitScheduling(config, log)


# ---- no replacement of functions that compiled code calls directly


_replace: Final = pytest.MonkeyPatch.setattr


def _replace_what_can_be(patch: pytest.MonkeyPatch, target: Any, name: Any, *rest: Any, **options: Any) -> None:
    """Replace an attribute. Raises: Failed for a function or method that compiled code would continue calling."""
    path, _, last = target.rpartition(".") if isinstance(target, str) else ("", "", name)
    owner = pkgutil.resolve_name(path) if path else target
    old = inspect.getattr_static(owner, last, None)
    if isinstance(owner, type):
        compiled = isinstance(old, MethodDescriptorType) and owner.__module__.startswith("broker.")
    else:
        ours = isinstance(old, BuiltinFunctionType) and old.__module__.startswith("broker.")
        compiled = ours and owner.__file__.endswith(tuple(EXTENSION_SUFFIXES))
    if compiled:
        pytest.fail(f"{owner}.{last} is compiled, and a replacement has no effect: mark the test `interpreted`")
    _replace(patch, target, name, *rest, **options)


pytest.MonkeyPatch.setattr = _replace_what_can_be  # type: ignore[assignment,method-assign]


# ---- fixtures


@pytest.fixture
def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of SlotMQ and of RabbitMQ from the environment."""
    for name in list(os.environ):
        if name.upper().startswith(("SLOTMQ_", "RABBITMQ_")):
            monkeypatch.delenv(name)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Suppress the log of the brokers in this process."""
    with capture_logs():
        yield


@pytest.fixture(scope="session")
def _shared_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("shared") / "folder")
    yield process
    if process.alive:
        errors = process.errors()
        code = process.terminate()
        assert code == 0, f"the shared broker ended with {code}:\n{process.stderr()}"
        assert not errors, f"the shared broker logged errors: {errors}"


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerAddress]:
    """Provide the broker that tests share; if it dies, the test that is running fails."""
    if ORACLE_URL:
        yield BrokerAddress.parse(ORACLE_URL)
        return
    process: BrokerProcess = request.getfixturevalue("_shared_process")
    if not process.alive:
        process.process = None
        process.start()
    yield process.address
    assert process.alive, f"the broker died:\n{process.stderr()[-4000:]}"


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a stopped broker of the test's own, which the test may start, kill and restart."""
    if ORACLE_URL:
        pytest.skip("starts and kills its own broker")
    process = BrokerProcess(tmp_path / "folder")
    yield process
    process.kill()


@pytest.fixture
def oracle() -> bool:
    """Return whether the tests run against another broker, whose answers differ in a few known cases."""
    return bool(ORACLE_URL)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Provide a unique name for queues and exchanges."""
    plain = re.sub(r"[^\w.]+", "-", request.node.name)[:80]  # characters that every client accepts
    return f"{plain}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def raw(broker: BrokerAddress) -> Iterator[RawClient]:
    """Provide a raw client with an open connection and channel 1 open."""
    with RawClient(broker.host, broker.port).with_channel() as client:
        yield client
