"""The user's Spark server: Spark Connect on loopback. It runs between commands, so that commands start faster.

The server is a separate process, `server_process`. This module starts it, finds it through `ServerFiles` and stops it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import broker
from broker.pipeline.faults import ERROR, JobFailed, ServerRefused
from broker.pipeline.spark.log import cache_folder, first_line, is_kept
from broker.pipeline.spark.server_files import ServerFiles, ServerRequest, ServerState
from broker.pipeline.spark.session import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = ("grpc", "grpc_status", "zstandard")  # import names that a client of Connect needs
TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of the variable
NO_PROXY: Final = "no_grpc_proxy"  # otherwise gRPC uses the proxy of the environment even for loopback
HOST: Final = "localhost"  # with 127.0.0.1, PySpark would require TLS in addition to the token
PACKAGE: Final = Path(broker.__file__).parents[1]
START_MAX_S: Final = 300.0
STOP_MAX_S: Final = 30.0
POLL_S: Final = 0.05
RETRIES: Final = 8  # PySpark's default would retry a dead server for ten minutes
RETRY_MAX_MS: Final = 2_000


def files() -> ServerFiles:
    """Return the files of the user's server."""
    return ServerFiles(cache_folder(os.environ))


def versions() -> str:
    """Return the versions that must be the same in a server and its clients."""
    return f"SlotMQ {broker.__version__} in {PACKAGE}, PySpark {package_version('pyspark') or 'missing'}"


def package_version(name: str) -> str | None:
    """Return the version of an installed package, or None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def missing() -> list[str]:
    """Return the packages that a Connect client needs and that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def incompatibility(state: ServerState) -> str:
    """Return why this process cannot use a server, or "" if it can."""
    if state.versions != versions():
        return f"it runs {state.versions}, this is {versions()}"
    if state.python != sys.prefix:
        return f"its Python is {state.python}"
    return f"{', '.join(missing())} missing" if missing() else ""


def start(request: ServerRequest, server_files: ServerFiles) -> tuple[ServerState, bool]:
    """Start the server unless it runs; return it and whether this call started it. Raises: JobFailed, ServerRefused."""
    if absent := missing():
        text = f"{', '.join(absent)} missing for Spark Connect"
        raise ServerRefused(f'{text}: pip install ".[spark]" in a clone of SlotMQ')
    if not is_kept(server_files.folder):
        raise ServerRefused("the user's cache folder cannot be written to, and commands would not find the server")
    with server_files.starting():
        state = server_files.use()
        if state is not None:
            return state, False
        _launch(request, server_files.folder)
        state = server_files.use()
    if state is None:
        raise JobFailed("the server ended right after its start")
    return state, True


def _launch(request: ServerRequest, folder: Path) -> None:
    """Start a server and wait until it is ready. Raises: JobFailed, with the server's error."""
    paths = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "broker.pipeline.spark.server_process"],
        cwd=folder,  # where no other package `broker` can be imported
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    timer = threading.Timer(START_MAX_S, child.kill)
    timer.start()
    try:
        with child.stdin as stdin, child.stdout as answers:
            stdin.write(json.dumps(asdict(request)))
            stdin.close()
            answer = answers.readline()
    except BaseException:  # such as Ctrl-C, which does not reach the child in its own session
        child.kill()
        raise
    finally:
        timer.cancel()
    try:
        response = json.loads(answer)
    except ValueError:
        raise JobFailed(f"the server ended with {child.wait()} before it was ready") from None
    if response.get("error"):
        child.wait()
        raise JobFailed(str(response["error"]), int(response.get("code", ERROR)))


def stop(server_files: ServerFiles) -> int | None:
    """Stop the server, even if its state cannot be read; return its pid, or None if none ran. Raises: JobFailed."""
    with server_files.starting():
        try:
            state = server_files.read()
        except ServerRefused:
            pid = server_files.holder()
            if pid is None and server_files.alive():
                raise JobFailed(f"end the process that has locked {server_files.folder}/server.alive") from None
        else:
            pid = None if state is None else state.pid
        server_files.remove()
        if pid is None:
            return None
        for number, wait_s in ((signal.SIGTERM, STOP_MAX_S), (signal.SIGKILL, STOP_MAX_S)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + wait_s
            while time.monotonic() < deadline:
                if not server_files.alive():
                    return pid
                time.sleep(POLL_S)
    raise JobFailed(f"the server with pid {pid} does not stop")


def connect(state: ServerState, conf: Mapping[str, Any]) -> SparkSession:
    """Return a new session on a server. Raises: JobFailed."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    try:
        with environment({TOKEN: state.token, NO_PROXY: HOST}):
            made = SparkSession.builder.remote(f"sc://{HOST}:{state.port}").config(map=dict(conf)).create()
    except Exception as error:
        text = first_line(str(error)) or type(error).__name__
        raise JobFailed(f"{state} does not answer: {text} (slotmq pipeline server stop)") from error
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")  # the error itself is reported
    client: Any = made.client
    client.set_retry_policies([DefaultPolicy(max_retries=RETRIES, max_backoff=RETRY_MAX_MS)])
    return made
