"""Brokers and Celery workers that last for a module, and applications that close their connections."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import kombu.pools
import pytest

from tests.broker_process import BrokerProcess
from tests.clients.celery_app import make_app
from tests.clients.celery_worker import CeleryWorker
from tests.conftest import ORACLE_URL

SOURCES = Path(__file__).with_name("node")
INSTALL_S = 30
WorkerOf: TypeAlias = Callable[..., CeleryWorker]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a folder for the files of the module's processes."""
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def module_broker(folder: Path) -> Iterator[BrokerProcess]:
    """Provide a broker for the module alone, with no other queues."""
    if ORACLE_URL:
        pytest.skip("inspects its own broker")
    process = BrokerProcess(folder / "broker").start()
    yield process
    errors = process.errors() if process.alive else "it died"
    process.kill()
    assert not errors, f"the broker's errors: {errors}\n{process.stderr()[-4000:]}"


@pytest.fixture(scope="module")
def worker_of(folder: Path) -> Iterator[WorkerOf]:
    """Make workers that are killed at the end of the module, if they still run."""
    workers: list[CeleryWorker] = []

    def make(settings: dict[str, Any], *options: str) -> CeleryWorker:
        workers.append(CeleryWorker(folder, settings, *options))
        return workers[-1]

    yield make
    for worker in workers:
        worker.kill()


@pytest.fixture(scope="module")
def app(settings: dict[str, Any], worker: CeleryWorker) -> Iterator[Any]:
    """Provide an application whose tasks the worker of the module runs, with its settings."""
    with calling(settings) as application:
        yield application


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Provide a folder with the conversations and the clients of Node, None where they cannot be installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < 18:
        return None
    folder = tmp_path_factory.mktemp("node")
    for source in SOURCES.iterdir():
        shutil.copy(source, folder)
    command = [npm, "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--no-update-notifier"]
    with (folder / "install.log").open("w+", encoding="utf-8") as log:
        try:
            code = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=INSTALL_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return None
        log.seek(0)
        if code:
            return None
    return folder


@contextmanager
def calling(settings: dict[str, Any]) -> Iterator[Any]:
    """Yield an application whose tasks can be called, and close its connections."""
    app = make_app(**settings)
    try:
        yield app
    finally:
        results = getattr(app.backend, "result_consumer", None)
        if results is not None and results._connection is not None:
            with suppress(OSError):  # a test may have killed the broker of the connection
                results.stop()
        kombu.pools.reset()  # the pools belong to the process, not to the application
        app.close()
