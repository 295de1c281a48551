"""The process of the user's Spark server: `python -m broker.pipeline.spark.server_process`, with its request on stdin.

The server writes one line of JSON to stdout when commands can use it or if it cannot start, and then closes the pipes
to the command that started it. Its JVM ends with it, because the JVM's standard input is closed.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from broker.pipeline.spark.log import SparkLog, failure_of
from broker.pipeline.spark.server import TOKEN, files, versions
from broker.pipeline.spark.server_files import ServerFiles, ServerRequest, ServerState
from broker.pipeline.spark.session import LOOPBACK, is_local, local_cores, session
from broker.pipeline.spark.tasks import PARALLELISM, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S: Final = 5.0
ENDING_MAX_S: Final = 60.0
ENDING_POLL_S: Final = 0.1
PRELOADED: Final = ("broker.pipeline.source.message_run", "broker.pipeline.lake.slot_copy")  # modules that tasks import
WARM_ROWS: Final = 20_000
WARM_ROUNDS: Final = 3
SESSION_KEPT_S: Final = 600  # for a command that ended without closing its session


def main() -> int:
    """Serve until the server is stopped, has been idle for too long, or its JVM has ended."""
    request = ServerRequest(**json.load(sys.stdin))
    place = files()
    given_up_s = time.monotonic() + ENDING_MAX_S
    while not place.live():  # the previous server is still ending
        if time.monotonic() > given_up_s:
            return _answer({"error": "another server does not end"})
        time.sleep(ENDING_POLL_S)
    place.remove()
    stopped = threading.Event()
    try:
        state, spark = _start_server(request)
    except Exception as error:  # noqa: BLE001 - the waiting command reports it
        failure = failure_of(error)
        return _answer({"error": str(failure), "code": failure.code})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    place.write(state)
    _answer({})
    try:
        _watch(spark, place, request.idle_s, stopped)
    finally:
        place.remove()
        with suppress(Exception):
            spark.stop()
    return 0


def _start_server(request: ServerRequest) -> tuple[ServerState, SparkSession]:
    """Return the server's state for commands, and the session that contains the server."""
    os.environ[TOKEN] = secrets.token_urlsafe(32)  # other users could see it in the arguments of the JVM
    with socket.create_server((LOOPBACK, 0)) as free:
        port = int(free.getsockname()[1])
    cores = local_cores(request.master, os.cpu_count() or 1) if is_local(request.master) else os.cpu_count() or 1
    spark = session(
        request.master,
        {
            PARALLELISM: str(cores),
            "spark.connect.session.manager.defaultSessionTimeout": f"{SESSION_KEPT_S}s",
            **request.conf,
            "spark.driver.memory": request.memory,
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(port),
        },
        "slotmq-server",
        formats=False,
    )
    _warm_up(spark, cores)
    log = SparkLog.current
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return ServerState(
        **asdict(request),
        pid=os.getpid(),
        port=port,
        token=os.environ[TOKEN],
        cores=cores,
        python=sys.prefix,
        versions=versions(),
        began=began,
        log="" if log is None else str(log.path),
    ), spark


def _warm_up(spark: SparkSession, cores: int) -> None:
    """Run typical commands, so that the JVM loads and compiles their code."""
    run_tasks(spark, _load, range(cores))
    with tempfile.TemporaryDirectory(prefix="slotmq-") as folder:
        rows = spark.range(0, WARM_ROWS, 1, cores).selectExpr("CAST(id % 97 AS STRING) AS name", "id AS number")
        rows.write.mode("overwrite").parquet(folder)
        for _ in range(WARM_ROUNDS):
            spark.read.parquet(folder).groupBy("name").agg({"number": "sum", "*": "count"}).collect()


def _load(_: int) -> None:
    """Import, in a worker, the modules that the tasks of most commands need."""
    for name in PRELOADED:
        import_module(name)


def _watch(spark: SparkSession, place: ServerFiles, idle_s: float, stopped: threading.Event) -> None:
    """Wait until the server is stopped, has been idle for too long, or its JVM has ended."""
    busy_s = time.time()
    while not stopped.wait(min(POLL_S, idle_s / 4)):
        try:
            works = bool(spark.sparkContext.statusTracker().getActiveJobsIds())
        except Exception:  # noqa: BLE001 - the bridge raises various exceptions when the JVM has ended
            return
        used_s = place.last_used_s()
        busy_s = time.time() if works or used_s is None else max(busy_s, used_s)
        if time.time() - busy_s >= idle_s and place.retire():
            return


def _answer(response: dict[str, Any]) -> int:
    """Answer the waiting command, and close the pipes to it; return the exit code."""
    sys.stdout.write(f"{json.dumps(response)}\n")
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    return 1 if response else 0


if __name__ == "__main__":
    sys.exit(main())
