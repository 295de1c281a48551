"""The metrics of what only this broker has: commits, alarms, taps and cursors, a cluster, an overlay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aio_pika import Message

from broker.delivery.committer import COMMIT_BOUNDS_S, CommitTally
from broker.manage.metrics.own_metrics import cluster_lines, commit_lines, overlay_lines
from tests.deadline import wait_until_async
from tests.in_process import client_of
from tests.manage.metrics_scene import samples
from tests.manage.test_metrics import measured_broker, scraped

SHOWN_WITH_TAPS = {
    "slotmq_tap_waiting_messages", "slotmq_tap_messages", "slotmq_tap_slots", "slotmq_tap_bytes",
    "slotmq_cursor_lag_messages", "slotmq_cursor_lag_bytes",
}  # fmt: skip
SHOWN_IN_CLUSTER = {
    "slotmq_cluster_database_up", "slotmq_cluster_database_failures_total", "slotmq_cluster_database_seconds",
    "slotmq_cluster_beat_age_seconds", "slotmq_cluster_lease_seconds", "slotmq_cluster_node_up",
}  # fmt: skip
SHOWN_IN_OVERLAY = {
    "slotmq_overlay_link_up", "slotmq_overlay_link_sent_bytes", "slotmq_overlay_link_received_bytes",
    "slotmq_overlay_stream_lag_messages", "slotmq_overlay_received_lag_messages", "slotmq_overlay_delivered_total",
    "slotmq_overlay_gaps_total", "slotmq_overlay_forced_out_total",
}  # fmt: skip


def only(text: str, name: str, **labels: str) -> float:
    """Return the sample of a name with these labels among its labels."""
    (found,) = [one for one in samples(text)[name] if labels.items() <= one.labels.items()]
    return found.value


async def test_commits_taps_and_cursors_are_measured(tmp_path: Path) -> None:
    """Durable messages are committed; a tap has them in a slot file, and a cursor has yet to pass it."""
    async with measured_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q", durable=True)
        await broker.taps.add("/", "amq.topic", "#", name="all", cursors=["lake"])
        before = await scraped(broker)
        topic = await channel.get_exchange("amq.topic")
        for _ in range(3):
            await channel.default_exchange.publish(Message(b"x" * 100, delivery_mode=2), "q")
            await topic.publish(Message(b"y", delivery_mode=2), "k", mandatory=False)
        await broker.taps.seal()
        text = await scraped(broker)
        commits = only(text, "slotmq_commit_seconds_count") - only(before, "slotmq_commit_seconds_count")
        assert commits >= 3
        assert only(text, "slotmq_commit_seconds_bucket", le="+Inf") == only(text, "slotmq_commit_seconds_count")
        assert only(text, "slotmq_commit_seconds_sum") > only(before, "slotmq_commit_seconds_sum")
        assert only(text, "slotmq_commit_bytes_total") - only(before, "slotmq_commit_bytes_total") > 300
        assert only(text, "slotmq_fsync_total", vhost="/") >= only(before, "slotmq_fsync_total", vhost="/") + 3
        assert only(text, "slotmq_fsync_seconds_total") <= only(text, "slotmq_commit_seconds_sum")
        assert only(text, "slotmq_tap_messages", tap="all") == 3
        assert only(text, "slotmq_tap_slots", vhost="/", tap="all") == 1
        assert only(text, "slotmq_cursor_lag_messages", tap="all", cursor="lake") == 3
        assert {name for name in samples(text) if name.startswith(("slotmq_tap_", "slotmq_cursor_"))} == SHOWN_WITH_TAPS
        assert [one.value for one in samples(text)["slotmq_alarm"]] == [0, 0, 0]
        assert only(text, "rabbitmq_io_sync_ops_total") == only(text, "slotmq_fsync_total")


def test_a_duration_counts_below_its_bound() -> None:
    """The buckets add up, as those of Prometheus do: each counts what is below, the last one everything."""
    tally = CommitTally()
    for duration_s in (0.0001, 0.0002, 0.0003, 60.0):
        tally.committed(duration_s, 10)
    text = "".join(commit_lines(tally))
    buckets = {one.labels["le"]: one.value for one in samples(text)["slotmq_commit_seconds_bucket"]}
    assert list(buckets) == [*map(str, COMMIT_BOUNDS_S), "+Inf"]
    assert [buckets[bound] for bound in ("0.0001", "0.00025", "0.0005", "5.0", "+Inf")] == [1, 2, 3, 3, 4]
    assert only(text, "slotmq_commit_seconds_count") == 4
    assert only(text, "slotmq_commit_bytes_total") == 40


def test_a_node_that_lost_its_database_says_so() -> None:
    """The database is down, its last call took no time that is known, and the other node is silent."""
    facts: dict[str, Any] = {
        "database_ms": None, "database_trouble": "away", "database_failures": 3, "beat_age_ms": 1500, "lease_ms": 3000,
    }  # fmt: skip
    facts["nodes"] = [{"node": "a", "state": "alive"}, {"node": "b", "state": "silent"}]
    text = "".join(cluster_lines(facts))
    assert samples(text).keys() == SHOWN_IN_CLUSTER
    assert only(text, "slotmq_cluster_database_up") == 0
    assert only(text, "slotmq_cluster_database_failures_total") == 3
    assert only("".join(cluster_lines(facts | {"database_trouble": ""})), "slotmq_cluster_database_up") == 1
    assert str(only(text, "slotmq_cluster_database_seconds")) == "nan"
    assert only(text, "slotmq_cluster_beat_age_seconds") == 1.5
    assert [only(text, "slotmq_cluster_node_up", node=node) for node in "ab"] == [1, 0]


def test_the_lag_of_an_overlay_is_measured() -> None:
    """Links by their peer, streams by their exchange, what arrives by its leaf."""
    link = {"peer": "b2", "state": "full", "sent_bytes": 7, "received_bytes": 8}
    stream = {"vhost": "/", "exchange": "x", "lag": 5}
    sink = {"leaf": "far", "vhost": "/", "exchange": "x", "lag": 2}
    row = {"broker": "b1", "leaf": True, "links": [link], "streams": [stream], "received": [sink]}
    text = "".join(overlay_lines([row | {"delivered": 9, "gaps": 0, "forced_out": 1}]))
    assert samples(text).keys() == SHOWN_IN_OVERLAY
    assert only(text, "slotmq_overlay_link_up", broker="b1", peer="b2") == 1
    assert only(text, "slotmq_overlay_link_sent_bytes", peer="b2") == 7
    assert only(text, "slotmq_overlay_stream_lag_messages", vhost="/", exchange="x") == 5
    assert only(text, "slotmq_overlay_received_lag_messages", leaf="far") == 2
    assert only(text, "slotmq_overlay_forced_out_total") == 1


async def test_the_age_of_the_first_message_is_measured(tmp_path: Path) -> None:
    """It grows while the message waits, and is 0 for an empty queue; logins are counted by protocol."""
    path = "/metrics/detailed?family=slotmq_queue_metrics&family=auth_attempt_metrics"
    async with measured_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q")
        await channel.default_exchange.publish(Message(b"x"), "q")

        async def is_old() -> bool:
            return only(await scraped(broker, path), "slotmq_queue_head_age_seconds", queue="q") > 0.02

        await wait_until_async(is_old, "an old message")
        text = await scraped(broker, path)
        assert only(text, "slotmq_queue_slots", queue="q") == 1
        assert only(text, "rabbitmq_detailed_auth_attempts_succeeded_total", protocol="amqp091") == 1
        assert only(text, "rabbitmq_detailed_auth_attempts_failed_total", protocol="amqp091") == 0
        await queue.purge()
        assert only(await scraped(broker, path), "slotmq_queue_head_age_seconds", queue="q") == 0
