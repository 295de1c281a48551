"""Measures the latency of messages through a broker with a tap, with and without an archive that follows the tap.

The archive is the command as a user starts it, on the same machine; slices with and without it alternate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.brokers import PROJECT, Broker, slotmq
from bench.counters import Counters
from bench.pipeline.probe import EXCHANGE, QUEUE, Errand, consume, publish, read_times
from bench.pipeline.stage import Stage, WrongResult
from broker.cli.control_client import ask
from broker.perf.crew import Crew, RunFailed
from broker.perf.peer import PeerConnection
from broker.perf.wire import PUBLISH_CHANNEL

_TAP = "latency"
_CURSOR = "latency"
_READY_LIMIT_S = 60.0
_FOLLOW_LIMIT_S = 120.0
_SETTLE_S = 2.0
_EVERY_S = 1.0
_STOP_LIMIT_S = 60.0

Window = tuple[int, int]


def measure(stage: Stage) -> dict[str, Any]:
    """Return percentiles of both kinds of slices, and the ratio of their 99th.

    Raises: WrongResult when messages are lost, or the archive does not follow.
    """
    windows: dict[str, list[Window]] = {"quiet": [], "followed": []}
    plan = stage.plan
    stage.show.begin("latency", 2 * plan.latency_rounds)
    with slotmq(stage.folder / "latency") as broker:
        assert broker.folder is not None
        _prepare(broker)
        errand = Errand(broker.address, plan.latency_rate, plan.body_bytes, stage.folder / "latency.times")
        counters = Counters()  # its total is -1 until the publisher must stop
        try:
            with Crew({"publisher": publish, "consumer": consume}, errand, counters) as crew:
                crew.gather("ready", _READY_LIMIT_S)
                crew.tell("go")
                for _ in range(plan.latency_rounds):
                    windows["quiet"].append(_slice(plan.latency_slice_s))
                    stage.show.step("latency: nobody reads the tap")
                    with _archive(stage, broker.folder):
                        windows["followed"].append(_slice(plan.latency_slice_s))
                    stage.show.step("latency: an archive follows")
                counters.total = 0
                said = crew.gather("done", _READY_LIMIT_S)
                crew.tell("leave")
        except RunFailed as error:
            raise WrongResult(f"latency: {error}") from None
    sent, delivered = said["publisher"]["sent"], said["consumer"]["delivered"]
    if sent != delivered:
        raise WrongResult(f"latency: {delivered:,} of {sent:,} messages came")
    times = read_times(errand.file)
    found = {kind: [_figures(times, window) for window in own] for kind, own in windows.items()}
    ratio = median([one["p99_ms"] for one in found["followed"]]) / median([one["p99_ms"] for one in found["quiet"]])
    for kind, slices in found.items():
        told = ", ".join(f"{one['p50_ms']:.2f} / {one['p99_ms']:.2f}" for one in slices)
        stage.show.tell(f"latency  {kind:9} p50 / p99 in ms: {told}")
    return {**found, "ratio": ratio, "messages": sent, "rate": plan.latency_rate}


def _prepare(broker: Broker) -> None:
    peer = PeerConnection(broker.address, PUBLISH_CHANNEL)
    peer.declare_exchange(EXCHANGE, durable=True)
    peer.declare_queue(QUEUE, durable=True)
    peer.bind(QUEUE, EXCHANGE, "#")
    peer.close()
    assert broker.folder is not None
    ask(broker.folder, "tap_add", vhost="/", exchange=EXCHANGE, pattern="#", name=_TAP, cursors=[_CURSOR])


def _slice(seconds: float) -> Window:
    begun = time.monotonic_ns()
    time.sleep(seconds)
    return begun, time.monotonic_ns()


@contextmanager
def _archive(stage: Stage, data: Path) -> Iterator[None]:
    """Let the command follow the tap; inside, it has archived all earlier messages."""
    command = [sys.executable, "-m", "broker", "pipeline", "archive", "--path", str(data), "--follow", "--quiet"]
    command += ["--lake", str(stage.folder / "latency-lake"), "--tap", _TAP, "--cursor", _CURSOR]
    command += ["--every", str(_EVERY_S), "--driver-memory", stage.plan.driver_memory]
    log = stage.folder / "latency-archive.log"
    with log.open("wb") as output:
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        _await_follower(data, process, log)
        time.sleep(_SETTLE_S)
        yield
        if process.poll() is not None:
            raise WrongResult(f"latency: the archive ended: {_tail(log)}")
    finally:
        process.terminate()
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_follower(data: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the cursor has passed a slot that was sealed after the archive began. Raises: WrongResult."""
    wanted = ask(data, "seal", vhost="/", tap=_TAP)["last_seal"] + 1
    deadline = time.monotonic() + _FOLLOW_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        cursors = [one for one in ask(data, "cursors") if one["name"] == _CURSOR]
        if any(one["seal"] >= wanted for one in cursors):
            return
        time.sleep(0.3)
    raise WrongResult(f"latency: the archive does not follow: {_tail(log)}")


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").splitlines()[-3:])


def _figures(times: Sequence[tuple[int, int]], window: Window) -> dict[str, Any]:
    begun, ended = window
    took = sorted(came - sent for sent, came in times if begun <= sent < ended)
    if not took:
        raise WrongResult("latency: no message came in a whole slice")
    return {
        "messages": len(took),
        "p50_ms": took[len(took) // 2] / 1e6,
        "p99_ms": took[len(took) * 99 // 100] / 1e6,
        "p999_ms": took[len(took) * 999 // 1000] / 1e6,
        "max_ms": took[-1] / 1e6,
    }
