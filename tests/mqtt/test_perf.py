"""`slotmq perf mqtt` against this broker, and against Mosquitto where it is installed."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli.control_client import ask
from broker.perf.result import Result
from tests.broker_process import PROJECT, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.perf_run import PerfRun, command

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


def measured(port: int, *words: str) -> Result:
    """Return the result of a run."""
    run = PerfRun("mqtt", *words, "--uri", f"mqtt://guest:guest@127.0.0.1:{port}", "--json", "--quiet")
    assert not run.code, run.err
    return run.result


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[int]:
    """Provide the port of a Mosquitto."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    settings = tmp_path / "mosquitto.conf"
    settings.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
    assert MOSQUITTO is not None
    with subprocess.Popen([MOSQUITTO, "-c", str(settings)], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: _answers(port), "Mosquitto")
        yield port
        process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_each_subscriber_gets_each_message_once(port: int) -> None:
    """Two publishers at QoS 1, three subscribers, ten topics: all is confirmed, delivered and acknowledged."""
    words = ("-Q", "1", "-C", "900", "-x", "2", "-y", "3", "--topics", "10", "-V", "3.1.1")
    totals = measured(port, *words).totals
    assert (totals.published, totals.confirmed, totals.delivered, totals.acked) == (900, 900, 2700, 2700)
    assert totals.deliver_bytes == 2700 * 16


def test_lasting_sessions_are_deleted_at_the_end(shared_mqtt: BrokerProcess, port: int) -> None:
    """A run at a rate has latencies from the due times; its durable session is gone afterwards."""

    def sessions() -> list[bool]:
        rows = ask(shared_mqtt.folder, "list_queues")
        return [row["durable"] for row in rows if "slotmq-perf" in row["name"]]

    words = ("mqtt", "-Q", "1", "-r", "200", "--lasting", "-z", "0", "--json", "--quiet")
    run = command(*words, "--uri", f"mqtt://guest:guest@127.0.0.1:{port}")
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as process:
        assert wait_until(sessions, "a session") == [True]
        process.send_signal(signal.SIGINT)
        result = Result.from_json(process.communicate(timeout=DEADLINE_S)[0])
    delivered = 0 if result.latency_us is None else result.latency_us.count
    assert delivered == result.totals.delivered
    assert ("from_send_p50" in result.figures) is (delivered > 0)
    assert sessions() == []


@pytest.mark.skipif(MOSQUITTO is None, reason="needs mosquitto")
def test_another_broker_is_measured_at_qos_2(mosquitto: int) -> None:
    """Messages at QoS 2 through a Mosquitto, within its receive maximum."""
    totals = measured(mosquitto, "-Q", "2", "-C", "500", "-y", "2").totals
    assert (totals.published, totals.confirmed, totals.delivered) == (500, 500, 1000)


def test_a_qos_that_the_broker_lacks_is_an_error_of_usage(port: int) -> None:
    """The limits in a CONNACK bound the options, and a run without its own topic needs a named one."""
    run = PerfRun("mqtt", "-x", "0", "--uri", f"mqtt://127.0.0.1:{port}")
    assert (run.code, run.line) == (2, run.line)
    assert "name the topic with -t" in run.err
