"""The benchmark against a real broker: every message arrives, in two vhosts, and survives restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench.companion import Companion
from bench.scenario import QUICK, NotOffered
from bench.scenarios.backlog import Backlog
from bench.scenarios.confirm import LoneConfirm
from bench.scenarios.connections import Connections
from bench.scenarios.fanout import Fanout
from bench.scenarios.flow import Flow
from bench.scenarios.full_speed import FullSpeed
from bench.scenarios.latency import Latency
from bench.scenarios.lone import KINDS, LoneCall
from bench.scenarios.pingpong import Pingpong
from bench.scenarios.routing import Bindings, Routing, Topology
from bench.scenarios.tls import OverTls

from bench import brokers
from bench.certificate import Certificate
from broker.perf.crew import RunFailed
from broker.perf.faults import Refusal
from broker.perf.peer import PeerConnection

pytestmark = pytest.mark.slow

LIMITS = replace(
    QUICK, rounds=2, messages=2_000, seconds=20.0, warm_up_rounds=1, keys=100, warm_up_seconds=20.0, fanout_seconds=0.3,
    latency_seconds=0.5, connections=5, stock=3_000, bindings=(200,), new_keys=2_000,
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.Broker]:
    """Provide SlotMQ as the bench starts it, with two users in two vhosts."""
    with brokers.slotmq(tmp_path_factory.mktemp("bench"), tenants=True) as started:
        yield started


@pytest.mark.parametrize("body_bytes", [16, 204_800])
def test_a_flow_counts_what_it_publishes(broker: brokers.Broker, body_bytes: int) -> None:
    """Exactly the requested messages are published, confirmed and delivered; those of the warm-up do not count."""
    flow = Flow("S3-test", body_bytes, persistent=True, confirms=True, acks=True)
    figures = flow.measure(broker, replace(LIMITS, messages=2_000 if body_bytes < 1024 else 50))
    assert figures["messages"] == (2_000 if body_bytes < 1024 else 50)
    assert figures["warm_up"] == 100
    assert 0 < figures["confirm_frames"] <= figures["messages"]
    assert figures["reads"] * figures["messages"] >= 1
    assert figures["disk_bytes"] > 0
    if body_bytes > 1024:
        assert figures["flight_bytes"] >= body_bytes
        assert figures["held_times"] == figures["held_bytes"] / figures["flight_bytes"]


def test_a_backlog_is_there_after_a_restart_and_after_a_kill(broker: brokers.Broker) -> None:
    """All messages of the backlog are counted after a restart and after a kill, and drained in the end."""
    figures = Backlog().measure(broker, LIMITS)
    assert figures["messages"] == 3_000
    assert {"restart_s", "crash_s", "drain_per_s"} <= figures.keys()


def test_routing_publishes_what_no_broker_has_seen(broker: brokers.Broker) -> None:
    """Bindings are declared once; each run has its own keys, and one in a hundred messages arrives."""
    topology = Topology(0)
    bindings, routing = Bindings(topology), Routing("S5", topology)
    first = bindings.measure(broker, LIMITS)
    assert (first["bindings"], bindings.measure(broker, LIMITS)) == (200, first)
    runs = [routing.measure(broker, LIMITS) for _ in range(2)]
    assert [(run["messages"], run["arrived"]) for run in runs] == [(2_000, 20), (2_000, 20)]
    assert len(set(topology.batches[1]) & set(topology.batches[2])) == 0


def test_connections_are_counted(broker: brokers.Broker) -> None:
    """As many connections as requested are opened, each costs reads and writes; only the first round reports memory."""
    connections = Connections()
    first, second = (connections.measure(broker, LIMITS) for _ in range(2))
    assert first["connections"] == second["connections"] == 5
    assert first["reads"] >= 1
    assert ("each_bytes" in first, "each_bytes" in second) == (True, False)


@pytest.mark.parametrize("scenario", [Fanout("S4", 16, queues=3), Latency("S6", 16), Pingpong()])
def test_what_slotmq_perf_measures_comes_with_the_brokers_figures(
    broker: brokers.Broker, scenario: Fanout | Latency | Pingpong
) -> None:
    """slotmq perf runs as a user with rights over its own names only, and the bench reads its JSON result."""
    figures = scenario.measure(broker, replace(LIMITS, seconds=0.3))
    assert figures["messages"] > 0
    assert {"cpu_us", "reads", "writes", "peak_rss_bytes"} <= figures.keys()
    if isinstance(scenario, Fanout):
        assert figures["messages"] % 3 == 0
    if isinstance(scenario, Latency):
        assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["max_us"]


def test_a_publisher_at_full_speed_is_ahead_of_its_consumers(broker: brokers.Broker) -> None:
    """What the publisher sent beyond the deliveries is seen as a backlog, and latency counts from sending."""
    figures = FullSpeed("S4", 16).measure(broker, replace(LIMITS, full_seconds=0.2))
    assert figures["published_per_s"] >= figures["per_s"] > 0
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
    figures = LoneConfirm().measure(broker, replace(LIMITS, seconds=0.1))
    assert figures["beyond_us"] == figures["p50_us"] - figures["fdatasync_us"]


def test_tls_is_measured_beside_plain_where_it_is_offered(broker: brokers.Broker, tmp_path: Path) -> None:
    """The load runs over both ports; a broker with one port is left out."""
    short = replace(LIMITS, seconds=0.1)
    with pytest.raises(NotOffered):
        OverTls("S9", 16).measure(broker, short)
    certificate = Certificate.issue(tmp_path)
    if certificate is None:
        pytest.skip("openssl is not installed")
    with brokers.slotmq(tmp_path, tenants=True, certificate=certificate) as with_tls:
        figures = OverTls("S9", 16).measure(with_tls, short)
    assert min(figures["per_s"], figures["plain_per_s"]) > 0
    assert {"cpu_us", "plain_cpu_us"} <= figures.keys()


def test_the_relay_runs_what_a_broker_runs() -> None:
    """The relay reports figures of the same names; a wide relay delivers each message to every consumer."""
    with brokers.relay() as relay:
        flow = Flow("S1", 16, persistent=False, confirms=False, acks=False).measure(relay, LIMITS)
        few = replace(LIMITS, messages=50, keys=10)
        large = Flow("S2", 204_800, persistent=False, confirms=True, acks=True).measure(relay, few)
        short = replace(LIMITS, seconds=0.3)
        wide = Fanout("S4", 16, queues=3).measure(relay, short)
        pairs, reader = Pingpong().measure(relay, short), Routing("S5", Topology(0)).measure(relay, short)
    assert (flow["messages"], large["messages"]) == (2_000, 50)
    assert wide["messages"] % 3 == 0
    assert all(figures["messages"] > 0 and figures["cpu_us"] >= 0 for figures in (wide, pairs, reader))


def test_the_second_user_sees_nothing_of_the_first(broker: brokers.Broker) -> None:
    """Each user may open one vhost only, and declares there only what its rights allow."""
    assert broker.other is not None
    with pytest.raises(Refusal, match="access to vhost"):
        PeerConnection(replace(broker.other, vhost=broker.address.vhost), 1)
    peer = PeerConnection(broker.other, 1)
    with pytest.raises(Refusal, match="403"):
        peer.declare_queue("somebody-elses", durable=False)
    peer.socket.close()
    with Companion(broker) as companion:
        pass
    assert companion.delivered == companion.published > 0


def test_a_second_user_who_is_refused_fails_the_run(broker: brokers.Broker) -> None:
    """A second user who is refused fails the run, because a figure without that user's load has no value."""
    assert broker.other is not None
    with (
        pytest.raises(RunFailed, match="the second user"),
        Companion(replace(broker, other=replace(broker.other, password="wrong"))),
    ):
        pass
