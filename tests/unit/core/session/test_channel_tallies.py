"""The counters of a channel: what arrives, leaves or is acknowledged together counts as it does one by one."""

from __future__ import annotations

from typing import cast

import pytest
from pamqp import commands

from broker.core.session.channel import SessionOfChannel
from broker.core.statistics.publish_tally import SIZE_BOUNDS, ChannelPublishes, PublishTally, SizeTally
from broker.delivery.flusher import deliver
from tests.raw_client import publish_frames
from tests.unit.core.room import Client, Room, put
from tests.unit.core.session.publishing import declare


def test_a_run_with_several_keys_counts_each_key(room: Room, client: Client) -> None:
    """Messages of one run go to no queue, one or two, and to different exchanges; a tap is not a queue."""
    for queue in ("one", "two"):
        declare(client, queue)
        for key in (queue, "both"):
            bind = commands.Queue.Bind(queue=queue, exchange="amq.direct", routing_key=key)
            client.call(1, bind, commands.Queue.BindOk)
    keys = ["one", "both", "both", "nobody", "two", "one", "one", "both"]
    for _ in range(2):  # the second time each key is cached
        frames = [publish_frames(1, "amq.direct", key, b"abc") for key in keys]
        client.machine.feed(b"".join((*frames, publish_frames(1, "", "two", b"abcd"))))
    tally = cast("SessionOfChannel", client.machine.channels[1].session).publisher.tally
    for counted in (tally, room.vhost.tally.publishes):
        assert (counted.publish, counted.routed, counted.drop_unroutable) == (18, 22, 2)
    direct, default = room.vhost.exchanges["amq.direct"].tally, room.vhost.exchanges[""].tally
    assert (direct.publish_in, direct.publish_out) == (16, 20)
    assert (default.publish_in, default.publish_out) == (2, 2)
    assert room.vhost.tally.sizes.total_bytes == 2 * (8 * 3 + 4)
    assert [room.vhost.queues[name].level.published for name in ("one", "two")] == [12, 10]


def test_a_batch_with_redelivered_messages_counts_those_alone(room: Room, client: Client) -> None:
    """Two of four messages come a second time, together with two new ones; a consumer without acks counts apart."""
    declare(client, "q")
    queue = room.vhost.queues["q"]
    put(queue, 4)
    basic, tally = client.basic(), room.vhost.tally.deliveries
    consumer = client.consumer(queue)
    found = queue.lease()
    assert found is not None
    stream, slot = found
    assert deliver(consumer, stream, slot, stream.manager.take(slot, 4)) == 4
    assert (tally.deliver, tally.redeliver) == (4, 0)
    basic.nack(3, multiple=False, requeue=True, failed=False)
    basic.nack(2, multiple=False, requeue=True, failed=False)
    put(queue, 2)
    assert deliver(consumer, stream, slot, [*stream.manager.take(slot, 2), *stream.manager.take(slot, 1)]) == 3
    assert (tally.deliver, tally.redeliver) == (7, 2)
    silent = client.consumer(queue, "silent", no_ack=True)
    assert deliver(silent, stream, slot, stream.manager.take(slot, 1)) == 1
    for counted in (tally, basic.tally, stream.tally):
        assert (counted.deliver, counted.deliver_no_ack, counted.redeliver, counted.ack) == (7, 1, 2, 0)


def test_an_ack_of_messages_of_two_queues_counts_at_each(room: Room, client: Client) -> None:
    """One ack settles deliveries of two queues, on a channel that had others before."""
    basic = client.basic()
    declare(client, "one", "two")
    for name, count in (("one", 3), ("two", 2)):
        queue = room.vhost.queues[name]
        put(queue, count)
        found = queue.lease()
        assert found is not None
        deliver(client.consumer(queue, name), *found, found[0].manager.take(found[1], count))
    basic.ack(1, multiple=False)
    basic.ack(4, multiple=True)
    assert [room.vhost.queues[name].level.tally.ack for name in ("one", "two")] == [3, 1]
    assert (basic.tally.ack, room.vhost.tally.deliveries.ack) == (4, 4)


@pytest.mark.parametrize(
    "sizes",
    [[5], [100], [101], [7] * 9, [5, 50, 99], [5, 100, 101], [99_999, 100_000, 100_001], [3, 3, 2_000, 3, 3]],
)
def test_a_run_counts_as_its_messages(sizes: list[int]) -> None:
    """Neighbours of equal size share their header; the part of the run that was taken counts, and nothing else."""
    headers: list[bytes] = []
    for place, size in enumerate(sizes):
        headers.append(headers[-1] if place and sizes[place - 1] == size else size.to_bytes(8, "big"))
    bodies = [bytes(size) for size in sizes]
    for start in range(len(sizes)):
        for stop in range(start + 1, len(sizes) + 1):
            run, single = SizeTally(), SizeTally()
            channel = ChannelPublishes(PublishTally(), run)
            channel.published_run(headers, bodies, start, stop, 0, 0, confirming=False)
            for size in sizes[start:stop]:
                single.count(size, 1)
            assert (run.counts, run.total_bytes) == (single.counts, single.total_bytes)


def test_a_bound_counts_the_size_that_it_names() -> None:
    """As the buckets of Prometheus: `le` includes its bound."""
    tally = SizeTally()
    for bound in SIZE_BOUNDS:
        tally.count(bound, 1)
    tally.count(SIZE_BOUNDS[-1] + 1, 2)
    assert tally.counts == [1] * len(SIZE_BOUNDS) + [2]
