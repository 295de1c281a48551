"""SIGTERM and SIGINT: the broker drains, confirms what it accepted, says good-bye and exits 0."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest
from pamqp import commands

from tests.broker_process import PACKAGE, BrokerProcess
from tests.deadline import DEADLINE_S, PAUSE_S, wait_until
from tests.fault.crowd import QUEUES, Consumer, Member, Publisher, declare, drain
from tests.fault.ledger import Ledger, counts
from tests.raw_client import RawClient
from tests.raw_talk import declare as declare_queues
from tests.raw_talk import publish

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_broker_exits_zero(broker_process: BrokerProcess, number: signal.Signals) -> None:
    """An idle broker exits 0 on SIGTERM and on SIGINT, without an error in its log."""
    broker_process.start()
    broker_process.running.send_signal(number)
    assert broker_process.wait() == 0
    assert not broker_process.errors()


def insist(process: BrokerProcess, *numbers: signal.Signals) -> int:
    """Send the signals again and again until the process ends, and return its exit code."""
    sent = cycle(numbers)
    end = time.monotonic() + DEADLINE_S
    while process.alive and time.monotonic() < end:
        process.running.send_signal(next(sent))
        time.sleep(PAUSE_S)
    return process.wait(DEADLINE_S)


Numbers: TypeAlias = tuple[signal.Signals, ...]
STOPS: list[Numbers] = [(signal.SIGTERM,), (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)]


@pytest.mark.parametrize("numbers", STOPS)
def test_signals_to_the_last_moment_of_a_stop(broker_process: BrokerProcess, numbers: Numbers) -> None:
    """Signals that arrive until the process is gone leave the stop orderly, and its exit code 0."""
    broker_process.start()
    assert insist(broker_process, *numbers) == 0
    assert [event["event"] for event in broker_process.log_events()][-1] == "server.stopped"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc tells which signals a process handles")
@pytest.mark.parametrize("numbers", STOPS)
def test_signals_from_the_first_moment_of_a_start(broker_process: BrokerProcess, numbers: Numbers) -> None:
    """A start that is interrupted as soon as the command runs, before it reads its settings, exits 0."""
    broker_process.fresh = True
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the process would ignore it from the start
    broker_process.spawn()
    signal.signal(signal.SIGHUP, before)
    status = Path(f"/proc/{broker_process.running.pid}/status")

    def has_begun() -> bool:
        masks = dict(line.split(":", 1) for line in status.read_text().splitlines() if line.startswith("Sig"))
        return bool((int(masks["SigIgn"], 16) | int(masks["SigCgt"], 16)) >> (signal.SIGHUP - 1) & 1)

    wait_until(has_begun, "the command")
    assert insist(broker_process, *numbers) == 0
    assert "ready" not in broker_process.stdout()
    assert not broker_process.errors()


@pytest.mark.parametrize("numbers", STOPS)
def test_signals_while_the_last_vhost_goes_offline(broker_process: BrokerProcess, numbers: Numbers) -> None:
    """A broker that ends because its last vhost is damaged exits 1, whatever signals arrive meanwhile."""
    broker_process.start()
    address = broker_process.address
    with RawClient(address.host, address.port).with_channel() as client:
        declare_queues(client, "q", durable=True)
        publish(client, "q", [b"the first", b"the second"])
    assert broker_process.terminate(DEADLINE_S) == 0
    (log,) = [path for path in broker_process.folder.rglob("log/*.log") if b"the first" in path.read_bytes()]
    log.write_bytes(log.read_bytes().replace(b"the first", b"the worst"))
    broker_process.spawn()
    wait_until(lambda: "vhost.offline" in broker_process.stderr(), "the end of the vhost")
    assert insist(broker_process, *numbers) == 1
    *events, last = broker_process.stderr().splitlines()
    names = [json.loads(event)["event"] for event in events]
    assert set(names[names.index("vhost.offline") :]) <= {"vhost.offline", "server.started", "settings.reloaded"}
    assert last.startswith(f"slotmq: {log}: segment ")


ENDLESS_RECOVERY = """
import time
from broker.vhosts.recovery_watch import RecoveryWatch

report = RecoveryWatch.report

def wait_for_the_stop(watch, progress):
    print("recovering", flush=True)
    while True:
        report(watch, progress)
        time.sleep(0.01)

RecoveryWatch.report = wait_for_the_stop
"""


def test_a_stop_during_recovery(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """A broker that is stopped while it recovers exits 0, and the next start finds everything."""
    broker_process.start()
    address = broker_process.address
    with RawClient(address.host, address.port).with_channel() as client:
        client.call(1, commands.Queue.Declare(queue="kept", durable=True), commands.Queue.DeclareOk)
    assert broker_process.terminate() == 0
    (tmp_path / "sitecustomize.py").write_text(ENDLESS_RECOVERY)
    broker_process.environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{PACKAGE}"
    broker_process.spawn()
    wait_until(lambda: "recovering" in broker_process.stdout(), "the recovery begins")
    assert broker_process.terminate() == 0
    assert [event["event"] for event in broker_process.log_events()][-1] == "server.stopped"
    del broker_process.environment["PYTHONPATH"]
    broker_process.start()
    address = broker_process.address
    with RawClient(address.host, address.port).with_channel() as client:
        client.call(1, commands.Queue.Declare(queue="kept", passive=True), commands.Queue.DeclareOk)


def test_clients_are_told(broker_process: BrokerProcess) -> None:
    """Each open connection gets connection.close 320, and new connections are refused."""
    broker_process.start()
    address = broker_process.address
    with RawClient(address.host, address.port) as client, RawClient(address.host, address.port) as stranger:
        client.open()
        client.open_channel(1)
        stranger.greet()
        broker_process.running.send_signal(signal.SIGTERM)
        close = client.expect_connection_close(320)
        assert close.reply_text.startswith("CONNECTION_FORCED - ")
        stranger.expect_end()
        assert broker_process.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        RawClient(address.host, address.port)


def test_client_that_never_answers_does_not_hold_the_broker(broker_process: BrokerProcess) -> None:
    """A client that neither reads nor answers connection.close is dropped in time."""
    broker_process.start()
    address = broker_process.address
    with RawClient(address.host, address.port).with_channel() as client:
        assert broker_process.terminate() == 0
        client.skip_to_end()


def idle_client(process: BrokerProcess) -> RawClient:
    """Return a client whose program pools an open connection and does not read from it."""
    return RawClient(process.address.host, process.address.port).with_channel()


def test_idle_clients_do_not_delay_a_stop(broker_process: BrokerProcess) -> None:
    """A stop does not wait for the close-ok of an idle client, which still reads code 320 and end of file."""
    broker_process.environment["SLOTMQ_SERVER__DRAIN_TIMEOUT_MS"] = "9000"
    broker_process.start()
    with ExitStack() as clients:
        idle = [clients.enter_context(idle_client(broker_process)) for _ in range(20)]
        assert broker_process.terminate() == 0
        left = [event for event in broker_process.log_events() if event["event"] == "connection.left"]
        assert [event["count"] for event in left] == [20], "they were waited for"
        for client in idle:
            client.expect_connection_close(320)
            client.expect_end()


def test_asked_twice_it_waits_for_nobody(broker_process: BrokerProcess) -> None:
    """A second signal drops the clients that have not answered, and the stop is still clean."""
    broker_process.environment["SLOTMQ_SERVER__DRAIN_TIMEOUT_MS"] = "9000"
    broker_process.start()
    address = broker_process.address
    with RawClient(address.host, address.port) as client:
        client.open()
        broker_process.running.send_signal(signal.SIGINT)
        client.expect_connection_close(320)
        broker_process.running.send_signal(signal.SIGINT)
        client.skip_to_end()
        assert broker_process.wait() == 0
    assert not [event for event in broker_process.log_events() if event["event"] == "connection.dropped"]


@pytest.mark.slow
def test_stop_under_load(broker_process: BrokerProcess) -> None:
    """SIGTERM at full load: exit 0 in time, every client gets the close, and exactly confirmed messages are on disk."""
    ledger = Ledger()
    random = Random(7)
    broker_process.start()
    declare(broker_process.address)
    publishers = [Publisher(f"p{number}", Random(random.random())) for number in range(4)]
    members = [Member(broker_process.address, ledger, publisher) for publisher in publishers]
    members += [Member(broker_process.address, ledger, Consumer("even", Random(random.random())))]
    for member in members:
        member.start()
    wait_until(lambda: len(ledger.confirmed) > 2000, "2000 confirms")
    broker_process.running.send_signal(signal.SIGTERM)
    code = broker_process.wait()
    for member in members:
        member.join(30)
        assert not member.is_alive()
        assert member.error is None, repr(member.error)
    assert code == 0, broker_process.stderr()
    assert not broker_process.errors()
    assert [member.closed_with for member in members] == [320] * len(members)
    broker_process.start()
    ledger.life = 1
    drain(broker_process.address, ledger)
    verdict = ledger.verdict(tuple(QUEUES))
    assert not verdict.faults(), f"{verdict.faults()} in {counts(ledger)}"
    assert verdict.recovered == 0, f"{verdict.recovered} messages were taken and not confirmed"


def test_second_signal_while_stopping(broker_process: BrokerProcess) -> None:
    """A second SIGTERM of an impatient operator does not make the stop unclean."""
    broker_process.start()
    address = broker_process.address
    with RawClient(address.host, address.port) as client:
        client.open()
        broker_process.running.send_signal(signal.SIGTERM)
        client.expect(commands.Connection.Close, 0)
        broker_process.running.send_signal(signal.SIGTERM)
        client.method(0, commands.Connection.CloseOk())
        assert broker_process.wait() == 0
