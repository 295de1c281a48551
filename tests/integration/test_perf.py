"""`slotmq perf` as users run it: its published, confirmed and consumed counts are those of the broker."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import trustme
from pamqp import commands

from broker.cli.control_client import ask
from broker.perf.result import Result
from tests.broker_process import PROJECT, BrokerAddress, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.perf_run import PerfRun, command
from tests.raw_client import RawClient


class Run(PerfRun):
    """A run against a broker."""

    def __init__(self, address: BrokerAddress | str, *words: str) -> None:
        super().__init__(*words, "--uri", address if isinstance(address, str) else address.url)


def measured(address: BrokerAddress | str, *words: str) -> Result:
    """Return the result of a run."""
    run = Run(address, *words, "--json", "--quiet")
    assert not run.code, run.err
    assert run.result.failures == ()
    return run.result


def test_a_number_of_messages_is_published_confirmed_delivered_and_acked_once_each(broker: BrokerAddress) -> None:
    """-C 1000 with confirms and acks counts a thousand of each."""
    totals = measured(broker, "throughput", "-C", "1000", "-c", "100", "-q", "50", "-A", "10").totals
    counts = (totals.published, totals.confirmed, totals.delivered, totals.acked, totals.nacked, totals.returned)
    assert counts == (1000, 1000, 1000, 1000, 0, 0)
    assert totals.deliver_bytes == 16_000


def test_intervals_add_up_to_the_totals(broker: BrokerAddress) -> None:
    """The counts of the intervals add up to the totals."""
    result = measured(broker, "throughput", "-C", "3000", "-c", "10", "-i", "100ms")
    assert sum(one.published for one in result.intervals) == result.totals.published == 3000
    assert sum(one.delivered for one in result.intervals) == result.totals.delivered == 3000
    assert [one.at_s for one in result.intervals] == sorted(one.at_s for one in result.intervals)


def test_many_publishers_and_consumers_share_the_messages_over_processes(broker: BrokerAddress) -> None:
    """Seven publishers and five consumers of three queues, in two processes each, lose nothing."""
    words = ("-x", "7", "-y", "5", "--queues", "3", "--processes", "2", "-C", "1001", "-c", "20", "-a")
    totals = measured(broker, "throughput", *words).totals
    assert (totals.published, totals.confirmed, totals.delivered, totals.acked) == (1001, 1001, 1001, 0)


def test_fewer_consumers_than_queues_consume_them_all(broker: BrokerAddress) -> None:
    """One connection consumes four queues."""
    totals = measured(broker, "throughput", "-y", "1", "--queues", "4", "-C", "400", "-A", "7").totals
    assert (totals.delivered, totals.acked) == (400, 400)


@pytest.mark.parametrize("size", ["0", "3", "8", "1KiB", "131064", "131065", "300kB"])
def test_bodies_of_any_size_come_whole(broker: BrokerAddress, size: str) -> None:
    """Bodies in no frame, in one and in several frames are counted with all their bytes."""
    result = measured(broker, "throughput", "-C", "20", "-s", size)
    assert result.totals.delivered == 20
    assert result.totals.deliver_bytes == 20 * int(str(result.options["size"]))


@pytest.mark.parametrize(("kind", "copies"), [("topic", 1), ("direct", 1), ("fanout", 3)])
def test_an_exchange_with_changing_keys_reaches_its_queues(broker: BrokerAddress, kind: str, copies: int) -> None:
    """Each type of exchange is bound so that every message arrives; a fan-out copies it to each queue."""
    words = ("-t", kind, "--keys", "9", "--queues", "3", "-y", "3", "-C", "90")
    assert measured(broker, "throughput", *words).totals.delivered == 90 * copies


def test_a_named_queue_stays_with_what_was_left_in_it(broker: BrokerAddress, name: str, raw: RawClient) -> None:
    """-D leaves the rest unacked, so that the next run finds it; a predeclared queue is used as it is."""
    first = measured(broker, "throughput", "-u", name, "-C", "300", "-D", "200")
    assert (first.totals.published, first.totals.delivered, first.totals.acked) == (300, 200, 200)
    second = measured(broker, "throughput", "-u", name, "-p", "-x", "0", "-D", "100")
    assert (second.totals.published, second.totals.delivered, second.totals.acked) == (0, 100, 100)
    raw.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


def test_what_is_made_for_a_run_is_gone_after_it(broker_process: BrokerProcess) -> None:
    """No queue and no exchange made for a run outlives it, even when the broker refused some of them."""
    broker_process.start()
    measured(broker_process.address, "fanout", "-y", "3", "-C", "10")
    refused = Run(broker_process.address, "throughput", "--keys", "3", "--queue-args", "x-max-length=-1")
    assert "406" in refused.line
    assert ask(broker_process.folder, "list_queues") == []
    exchanges = ask(broker_process.folder, "list_exchanges")
    assert exchanges
    assert not [row for row in exchanges if "perf" in row["name"]]


def test_a_rate_is_a_schedule(broker: BrokerAddress) -> None:
    """At 400 per second no more messages are published than were due while it ran, which a busy machine prolongs."""
    result = measured(broker, "latency", "-r", "400", "-z", "500ms")
    published = result.totals.published
    ran_s = published / result.totals.publish_per_s
    assert 1 <= published <= 400 * ran_s + 1
    assert result.totals.delivered == result.totals.published
    assert result.latency_us is not None
    assert result.latency_us.count == result.totals.delivered
    assert set(result.figures) == {"from_send_p50", "from_send_p99", "sent_late_p50", "sent_late_p99"}


def test_unroutable_mandatory_messages_are_counted_as_returned(broker: BrokerAddress) -> None:
    """Unroutable mandatory messages count as returned, with and without confirms."""
    words = ("throughput", "-y", "0", "-k", "nobody-has-this-queue", "-f", "mandatory", "-C", "50")
    assert measured(broker, *words).totals.returned == 50
    totals = measured(broker, *words, "-c", "5").totals
    assert (totals.returned, totals.confirmed) == (50, 50)


def test_refused_messages_are_counted_as_nacked(broker: BrokerAddress) -> None:
    """Messages that a full queue of ten rejects count as nacked."""
    arguments = ("--queue-args", "x-max-length=10", "--queue-args", "x-overflow=reject-publish")
    totals = measured(broker, "throughput", "-y", "0", "-C", "50", "-c", "5", *arguments).totals
    assert (totals.published, totals.confirmed, totals.nacked) == (50, 10, 40)


def test_a_fan_out_delivers_each_message_to_each_queue(broker: BrokerAddress) -> None:
    """Six queues, each bound by a wildcard, get all messages."""
    assert measured(broker, "fanout", "-y", "6", "-C", "100", "-c", "10").totals.delivered == 600


def test_routing_matches_the_share_that_was_asked_for(broker: BrokerAddress) -> None:
    """A tenth of 20,000 new keys matches one binding each."""
    words = ("--bindings", "400", "--match", "10%", "-C", "20000", "-a")
    result = measured(broker, "routing", *words)
    assert (result.totals.published, result.totals.delivered) == (20_000, 2000)
    assert result.figures["bindings"].unit == "per_s"


def test_a_backlog_is_published_whole_and_drained_whole(broker: BrokerAddress) -> None:
    """The drain begins when everything is confirmed, and ends when everything is acked."""
    totals = measured(broker, "backlog", "-C", "3000", "--queues", "2", "-y", "3").totals
    assert (totals.published, totals.confirmed, totals.delivered, totals.acked) == (3000, 3000, 3000, 3000)


def test_pairs_play_each_message_once(broker: BrokerAddress) -> None:
    """Every message of a ping-pong reaches the other side."""
    result = measured(broker, "pingpong", "-x", "3", "-C", "200")
    assert (result.totals.published, result.totals.delivered) == (200, 200)
    assert result.latency_us is not None
    assert result.latency_us.count == 200


def test_what_the_queues_hold_when_publishing_ends_is_the_brokers_own_count(broker: BrokerAddress) -> None:
    """All but the prefetched messages are in the queue; with a bound on what the kernel holds, none is lost."""
    words = ("-C", "2000", "-c", "2000", "-D", "15", "-R", "10", "-q", "10", "--unsent", "16KiB")
    figures = measured(broker, "throughput", *words).figures
    assert 1_900 <= figures["queued_at_end"].value <= 2_000


def test_the_ceiling_is_measured_against_a_relay(broker: BrokerAddress) -> None:
    """--ceiling reports the rate of the generator without a broker."""
    result = measured(broker, "throughput", "-C", "10", "--ceiling")
    assert result.generator.ceiling_per_s is not None
    assert result.generator.ceiling_per_s > 0


def test_the_brokers_process_is_looked_at(broker_process: BrokerProcess) -> None:
    """--pid reports CPU time and memory."""
    broker_process.start()
    pid = broker_process.running.pid
    process = measured(broker_process.address, "throughput", "-C", "10", "--pid", str(pid)).process
    assert process is not None
    assert process.peak_rss_bytes >= process.rss_bytes > 0


def test_the_result_goes_to_a_file_a_page_and_the_terminal(broker: BrokerAddress, tmp_path: Path) -> None:
    """--json FILE and --plot FILE are written, the table is printed, and no output has the password."""
    document, page = tmp_path / "run.json", tmp_path / "run.html"
    url = f"amqp://{broker.user}:{broker.password}@{broker.host}:{broker.port}/"
    run = Run(url, "throughput", "-C", "10", "-c", "1", "--json", str(document), "--plot", str(page))
    assert run.code == 0
    result = Result.from_json(document.read_text())
    assert result.totals.published == 10
    assert f"amqp://***@{broker.host}:{broker.port}/" in result.arguments
    assert "published" in run.out
    assert page.read_text().startswith("<!doctype html>")
    assert "time 0." in run.err
    for text in (run.out, run.err, document.read_text(), page.read_text()):
        assert f":{broker.password}@" not in text


def test_ctrl_c_ends_a_run_in_order(broker: BrokerAddress) -> None:
    """Ctrl-C ends a run with its result so far, and exit code 0."""
    words = ("throughput", "-z", "0", "-c", "10", "-i", "50ms", "--uri", broker.url, "--json")
    with subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=PROJECT, start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"time ")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to the generator's processes too
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    result = Result.from_json(out.decode())
    assert result.failures == ()
    assert result.totals.published == result.totals.confirmed == result.totals.delivered > 0


def test_a_broker_that_dies_is_a_failure_and_the_result_is_shown(broker_process: BrokerProcess) -> None:
    """kill -9 of the broker ends the run with exit code 1, the counts so far, and the reason."""
    broker_process.start()
    words = ("throughput", "-z", "0", "-c", "10", "-i", "50ms", "--uri", broker_process.address.url, "--json")
    with subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=PROJECT) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"time ")
        broker_process.kill()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert b"Traceback" not in err
    result = Result.from_json(out.decode())
    assert result.totals.published > 0
    assert any("connection" in failure for failure in result.failures)


def test_an_alarm_ends_a_run_with_what_the_broker_says(tmp_path: Path) -> None:
    """A broker that blocks publishers is reported, and not measured as a slow one."""
    broker = BrokerProcess(tmp_path / "folder", environment={"SLOTMQ_STORE__DISK_FREE_MIN_BYTES": str(1 << 40)})
    broker.start()
    try:
        run = Run(broker.address, "throughput", "-z", "500ms", "-c", "10", "--json", "--quiet")
    finally:
        broker.kill()
    assert run.code == 1
    result = Result.from_json(run.out)
    assert result.totals.confirmed <= 10  # only connections that have published are blocked
    assert any("connection.blocked" in failure for failure in result.failures)


def test_a_run_through_tls(tmp_path: Path) -> None:
    """amqps:// verifies the certificate, and reports what is wrong with an unknown one."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    names = {"CERTFILE": "cert.pem", "KEYFILE": "key.pem"}
    environment = {f"SLOTMQ_TLS__{key}": str(tmp_path / file) for key, file in names.items()}
    broker = BrokerProcess(tmp_path / "folder", environment=environment | {"SLOTMQ_TLS__PORT": "0"})
    broker.start()
    try:
        wait_until(lambda: "server.started" in broker.stderr(), "the ports are in the log")
        started = next(event for event in broker.log_events() if event["event"] == "server.started")
        url = f"amqps://guest:guest@localhost:{started['tls_port']}/"
        known = measured(f"{url}?cacertfile={tmp_path / 'ca.pem'}", "throughput", "-C", "500", "-s", "40kB", "-c", "9")
        trusting = measured(f"{url}?verify=verify_none", "pingpong", "-x", "2", "-C", "20")
        unknown = Run(url, "throughput", "-C", "1")
    finally:
        broker.kill()
    assert (known.totals.confirmed, known.totals.delivered) == (500, 500)
    assert trusting.totals.delivered == 20
    assert unknown.code == 1
    assert "certificate verify failed" in unknown.line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("throughput", "-u", "no-such-queue", "-p"), "404"),
        (("throughput", "-e", "no-such-exchange", "-p", "-y", "0"), "404"),
        (("throughput", "--queue-args", "x-max-length=-1"), "406"),
    ],
)
def test_what_the_broker_refuses_is_told_in_one_line(broker: BrokerAddress, words: tuple[str, ...], said: str) -> None:
    """A refusal of the broker is one line with exit code 1."""
    run = Run(broker, *words)
    assert run.code == 1
    assert said in run.line
    assert "Traceback" not in run.err


def test_a_wrong_password_and_no_listener_are_told_in_one_line(broker: BrokerAddress) -> None:
    """A wrong password or a missing listener is one line without the password."""
    refused = Run(f"amqp://guest:hush-hush@{broker.host}:{broker.port}", "throughput")
    assert (refused.code, "403" in refused.line, "hush" in refused.line) == (1, True, False)
    nobody = Run("amqp://guest:hush-hush@127.0.0.1:1", "latency")
    assert (nobody.code, "cannot reach 127.0.0.1 port 1" in nobody.line, "hush" in nobody.line) == (1, True, False)
