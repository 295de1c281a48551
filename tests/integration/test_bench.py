"""The benchmark against a real broker: every message arrives, in two vhosts, and survives restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bench import brokers
from bench.brokers import Certificate
from bench.growth import pauses
from bench.growth.turn_sampler import prefix
from bench.light import companion
from bench.messages.limits import Limits
from bench.messages.lone import KINDS, LoneCall
from bench.messages.perf_load import (
    CONNECTIONS,
    LONE_CONFIRM,
    PINGPONG,
    PerfLoad,
    declared,
    fanout,
    flow,
    full_speed,
    latency,
    over_tls,
    routing,
)
from bench.messages.rows import Backlog
from bench.stage import NotOffered, quick
from broker.perf.faults import Refusal, RunFailed
from broker.perf.peer import PeerConnection

pytestmark = pytest.mark.slow

LIMITS = replace(
    quick(Limits()), seconds=0.3, keys=100, warm_up_seconds=0.2, fanout_seconds=0.3, full_seconds=0.2,
    latency_seconds=0.5, connections=5, stock=3_000, lone_calls=20, lone_seconds=0.05,
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.Broker]:
    """Provide SlotMQ as the bench starts it, with two users in two vhosts."""
    with brokers.slotmq(tmp_path_factory.mktemp("bench"), tenants=True) as started:
        yield started


@pytest.mark.parametrize(
    ("load", "more"),
    [
        (flow("S1", 16), ()),
        (flow("S3", 16), ()),
        (flow("S2", 204_800), ("held_bytes", "flight_bytes", "held_times")),
        (fanout(16), ()),
        (latency(16), ("p50_us", "p99_us")),
        (PINGPONG, ()),
        (routing("S5", 200), ("declare_s", "each_bytes")),
        (declared(200), ("declare_s", "each_bytes")),
        (CONNECTIONS, ("open_ms", "open_cpu_ms", "each_bytes")),
    ],
    ids=lambda one: one.name if isinstance(one, PerfLoad) else "",
)
def test_what_slotmq_perf_measures_comes_with_the_brokers_figures(
    broker: brokers.Broker, load: PerfLoad, more: tuple[str, ...]
) -> None:
    """slotmq perf runs as a user with rights over its own names only, and nothing of the load is left behind."""
    figures = load.measure(broker, LIMITS)
    assert {"reads", "writes", "peak_rss_bytes", "disk_bytes", *more} <= figures.keys()
    assert ("cpu_us" in figures) is (load.name not in ("S8", "bindings"))
    if load.copies > 1:
        assert figures["messages"] % load.copies == 0
    if load.name.startswith("S6"):
        assert 0 < figures["p50_us"] <= figures["p99_us"]
        assert "per_s" not in figures  # the rate is given
    if load.queue:
        peer = PeerConnection(broker.address, 1)
        with pytest.raises(Refusal, match="404"):
            peer.declare_queue(load.queue, durable=False, passive=True)
        peer.socket.close()


def test_a_backlog_is_there_after_a_restart_and_after_a_kill(broker: brokers.Broker) -> None:
    """All messages of the backlog are counted after a restart and after a kill, and drained in the end."""
    figures = Backlog().measure(broker, LIMITS)
    assert figures["messages"] == 3_000
    assert {"restart_s", "crash_s", "drain_per_s", "drain_cpu_us", "rss_growth_bytes"} <= figures.keys()


def test_a_publisher_at_full_speed_is_ahead_of_its_consumers(broker: brokers.Broker) -> None:
    """Messages sent beyond the deliveries are shown as a backlog, and latency counts from sending."""
    figures = full_speed("S4", 16).measure(broker, LIMITS)
    assert figures["published_per_s"] > 0
    assert figures["queued"] >= 0
    assert 0 < figures["p50_us"] <= figures["p99_us"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lone_client_gets_every_answer(broker: brokers.Broker, kind: str) -> None:
    """Each thing that a client waits for has a time, and the broker's CPU time beside it."""
    figures = LoneCall(kind).measure(broker, replace(LIMITS, lone_calls=20, lone_seconds=0.05))
    assert figures["messages"] >= 2
    assert 0 < figures["p50_us"] <= figures["p99_us"]
    assert figures["cpu_us"] > 0


def test_a_lone_confirm_is_measured_beside_the_disk(broker: brokers.Broker) -> None:
    """The confirm's time is compared with one sync of the disk that holds the broker's folder."""
    figures = LONE_CONFIRM.measure(broker, LIMITS)
    assert figures["beyond_us"] == figures["p50_us"] - figures["fdatasync_us"]


def test_tls_is_measured_beside_plain_where_it_is_offered(broker: brokers.Broker, tmp_path: Path) -> None:
    """The load runs over both ports; a broker with one port is left out."""
    with pytest.raises(NotOffered):
        over_tls("S9", 16).measure(broker, LIMITS)
    certificate = Certificate.issue(tmp_path)
    if certificate is None:
        pytest.skip("openssl is not installed")
    with brokers.slotmq(tmp_path, tenants=True, certificate=certificate) as with_tls:
        figures = over_tls("S9", 16).measure(with_tls, LIMITS)
    assert min(figures["per_s"], figures["plain_per_s"]) > 0
    assert {"cpu_us", "plain_cpu_us"} <= figures.keys()


def test_the_relay_runs_what_a_broker_runs() -> None:
    """The relay reports figures of the same names, and confirms where the load wants it."""
    loads = [flow("S1", 16), flow("S2", 204_800), latency(16), LONE_CONFIRM, routing("S5", 9)]
    with brokers.relay() as relay:
        found = [load.measure(relay, LIMITS) for load in loads]
    assert all(figures["messages"] > 0 and figures["cpu_us"] >= 0 for figures in found)
    assert all("p50_us" in figures for figures in found[2:4])


def test_the_second_user_sees_nothing_of_the_first(broker: brokers.Broker) -> None:
    """Each user may open one vhost only, and declares there only what its rights allow."""
    assert broker.other is not None
    with pytest.raises(Refusal, match="access to vhost"):
        PeerConnection(replace(broker.other, vhost=broker.address.vhost), 1)
    peer = PeerConnection(broker.other, 1)
    with pytest.raises(Refusal, match="403"):
        peer.declare_queue("somebody-elses", durable=False)
    peer.socket.close()
    with companion(broker) as delivered:
        pass
    assert delivered is not None
    assert delivered.result() > 0


def test_a_second_user_who_is_refused_fails_the_run(broker: brokers.Broker) -> None:
    """A second user who is refused fails the run, because a figure without that user's load has no value."""
    assert broker.other is not None
    with (
        pytest.raises(RunFailed, match="the second user"),
        companion(replace(broker, other=replace(broker.other, password="wrong"))),
    ):
        pass


@pytest.mark.parametrize("name", ["ack", "delete, unacked", "rollback", "connection lost", "the same import"])
def test_a_verb_over_a_group_is_carried_out_beside_a_light_client(tmp_path: Path, name: str) -> None:
    """The verb has its effect, and the light client's longest wait and the broker's turns are measured."""
    turns = tmp_path / "turns"
    with (
        brokers.slotmq(tmp_path / "broker", prefix=prefix(turns, names=True)) as started,
        closing(pauses.Group(started, brokers.PROJECT, 20_000, tmp_path)) as group,
    ):
        figures = pauses.paused(group, pauses.OPERATIONS[name], turns)
    assert figures["max_ms"] >= figures["p50_ms"] > 0
    assert figures["turn_ms"] >= 0
    assert all(len(json.loads(line)) == 3 for line in turns.read_text().splitlines())
