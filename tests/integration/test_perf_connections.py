"""`slotmq perf connections` and `churn` as users run them: their reports match the broker's view."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from broker.perf.result import Result
from tests.broker_process import PROJECT, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.in_process import running_broker
from tests.perf_run import PerfRun, command

LOOKS = 1  # the connection that asks a broker for its name


def value(result: Result, name: str) -> float:
    """Return a figure."""
    return result.figures[name].value


@pytest.fixture
def running(broker_process: BrokerProcess) -> Iterator[BrokerProcess]:
    """Provide a broker whose log must have no errors at the end."""
    broker_process.start()
    yield broker_process
    assert broker_process.alive
    assert not broker_process.errors()


def seen(broker: BrokerProcess) -> Counter[str]:
    """Return the number of log events of each name."""
    return Counter(event["event"] for event in broker.log_events())


def test_each_connection_is_opened_held_and_closed(running: BrokerProcess) -> None:
    """The broker sees forty connections that close as the specification says; the result has the cost of each."""
    pid = str(running.running.pid)
    words = "connections -n 40 -w 8 -X 3 -z 0.2s --json --quiet --pid".split()
    run = PerfRun(*words, pid, "--uri", running.address.url)
    assert (run.code, run.err) == (0, "")
    result = run.result
    assert (value(result, "opened"), value(result, "held")) == (40, 40)
    assert result.broker.product.startswith("SlotMQ")
    assert result.options["channels"] == 3
    assert result.process is not None
    assert {"open_p50", "open_p99", "close_p50", "memory_per_connection", "broker_cpu_per_open"} < set(result.figures)
    wait_until(lambda: seen(running)["connection.closed"] == 40 + LOOKS, "all closed")
    events = seen(running)
    assert events["connection.opened"] == 40 + LOOKS
    assert not [event for event in running.log_events() if event["level"] == "warning" and "conn" in event]


def test_a_broker_that_takes_no_more_is_told_of(broker_process: BrokerProcess) -> None:
    """Open connections are held and closed, refused ones are a failure in the result and in the exit code."""
    broker_process.environment["SLOTMQ_SERVER__CONNECTIONS_MAX"] = "5"
    broker_process.start()
    run = PerfRun(*"connections -n 20 -z 0 --json --quiet --uri".split(), broker_process.address.url)
    assert run.code == 1
    opened = value(run.result, "opened")
    assert 1 <= opened <= 5
    assert value(run.result, "held") == opened
    (failure,) = run.result.failures
    assert failure.startswith(f"{opened} of 20 connections opened, 1 refused or lost: ")
    wait_until(lambda: seen(broker_process)["connection.closed"] == opened + LOOKS, "all closed")


def test_ctrl_c_ends_the_holding_in_order(running: BrokerProcess, tmp_path: Path) -> None:
    """Ctrl-C closes the connections and prints the result."""
    document = tmp_path / "result.json"
    words = ["connections", "-n", "10", "-z", "1h", "--json", str(document), "--uri", running.address.url]
    with subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=PROJECT
    ) as process:
        try:
            wait_until(lambda: seen(running)["connection.opened"] == 10 + LOOKS, "all open")
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "opened" in out
    assert value(Result.from_json(document.read_text()), "held") == 10
    wait_until(lambda: seen(running)["connection.closed"] == 10 + LOOKS, "all closed")


def test_too_few_descriptors_are_said_before_anything_is_opened(running: BrokerProcess) -> None:
    """The soft limit is raised to the hard one; the error line names the limit that the run needs."""
    run = PerfRun(*"connections -n 500 --uri".split(), running.address.url, limit=100)
    assert run.code == 1
    assert run.line == (
        "slotmq: 501 connections need 533 open files, and this process may have 100: "
        "raise the hard limit (ulimit -Hn, or LimitNOFILE=), or ask for fewer"
    )
    assert seen(running)["connection.opened"] == 0


def test_a_soft_limit_is_raised(running: BrokerProcess) -> None:
    """A shell's own limit does not keep a run from opening as many connections as the hard limit allows."""
    run = PerfRun(*"connections -n 100 -z 0 --json --uri".split(), running.address.url, limit=64, kind="-S")
    assert value(run.result, "held") == 100


@pytest.mark.parametrize("words", ["connections -n 8 -w 4 -z 0", "churn connections -C 8", "churn channels -C 8"])
async def test_connections_go_through_tls(tmp_path: Path, words: str) -> None:
    """An amqps:// URL is enough, with a CA file where the system does not trust the authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "all.pem")
    files = {key: str(tmp_path / "all.pem") for key in ("certfile", "keyfile")}
    async with running_broker(tmp_path / "data", tls={"port": 0, **files}) as broker:
        url = f"amqps://localhost:{broker.listener.tls_port}?cacertfile={tmp_path / 'ca.pem'}"
        run = await in_thread(*words.split(), "--json", "--quiet", "--uri", url)
        assert (run.code, run.err) == (0, "")
        assert value(run.result, "cycles" if "churn" in words else "held") == 8


@pytest.mark.parametrize("kind", ["connections", "channels", "queues", "bindings", "consumers"])
async def test_churn_does_as_many_cycles_as_asked_for_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    """Thirty cycles by three workers are thirty; afterwards the broker is unchanged."""
    async with running_broker(tmp_path) as broker:
        run = await in_thread(
            "churn", kind, "-C", "30", "-w", "3", "--json", "--uri", f"amqp://127.0.0.1:{broker.listener.port}"
        )
        vhost = broker.engines["/"].vhost
        assert (run.code, run.result.failures) == (0, ())
        assert value(run.result, "cycles") == 30
        assert run.result.figures["cycles"].unit == kind
        assert not vhost.queues
        assert not broker.listener.transports


async def test_churn_that_is_refused_says_why_and_undoes_the_rest(tmp_path: Path) -> None:
    """Three workers at a limit of one queue: the refusal is the failure, and no queue is left."""
    async with running_broker(tmp_path, limits={"queues_max": 1}) as broker:
        run = await in_thread(
            "churn", "queues", "-z", "20s", "-w", "3", "--json", "--uri", f"amqp://127.0.0.1:{broker.listener.port}"
        )
        assert run.code == 1
        said = run.result.failures[0] if run.out else run.line
        assert "queue limit in vhost '/' (1) is reached" in said
        assert not broker.engines["/"].vhost.queues


async def in_thread(*words: str) -> PerfRun:
    """Run a call in a thread, because the test's loop runs the broker."""
    return await asyncio.to_thread(PerfRun, *words)
