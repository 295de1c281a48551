"""The policy hold-until-header, with pika: a queue holds messages until the time that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.core.policy.policy import Policy
from broker.testing import Broker
from tests.integration.pika.conversation import drain, ready

HELD_S: Final = 90
Talk = tuple[Broker, BlockingChannel]


@contextmanager
def holding(policy: str, kind: str = "classic", arguments: Mapping[str, Any] | None = None) -> Iterator[Talk]:
    """Yield a broker and a channel with a queue `q` that has the policy."""
    with Broker() as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": kind, **(arguments or {})})
        publish(channel, b"before")  # its route is cached
        assert drain(channel, "q") == [b"before"]
        policies = broker._vhost("/").policies
        broker._call(lambda: policies.set(Policy("p", "^q$", "queues", {"hold-until-header": policy})))
        broker.wait_idle()
        yield broker, channel


def publish(channel: BlockingChannel, body: bytes, exchange: str = "", **headers: Any) -> None:
    """Publish a persistent message with these headers."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    channel.basic_publish(exchange, "q", body, pika.BasicProperties(headers=headers, delivery_mode=2))


def counts(broker: Broker) -> tuple[int, int]:
    """Return how many messages are ready and delayed."""
    queue = broker._queue("q", "/")
    return queue.ready, queue.delayed


def now(broker: Broker) -> datetime:
    """Return the time of day."""
    return datetime.fromtimestamp(broker.clock(), UTC)


def in_ms(broker: Broker, seconds: float) -> int:
    """Return the ms since 1970 of a moment to come."""
    return round((broker.clock() + seconds) * 1000)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_holds_what_has_an_eta(kind: str) -> None:
    """Celery's header keeps a message in its queue until then; one without it, or with null, is delivered at once."""
    with holding("eta", kind) as (broker, channel):
        publish(channel, b"later", eta=(now(broker) + timedelta(seconds=HELD_S)).isoformat())
        publish(channel, b"sooner", eta=(now(broker) + timedelta(seconds=HELD_S / 2)).isoformat())
        publish(channel, b"null", eta=None)
        publish(channel, b"past", eta=(now(broker) - timedelta(seconds=1)).isoformat())
        publish(channel, b"none")
        assert counts(broker) == (3, 2)
        assert drain(channel, "q") == [b"null", b"past", b"none"]
        broker.clock.advance(HELD_S / 2 - 0.01)
        assert counts(broker) == (0, 2)
        broker.clock.advance(0.02)
        broker.wait_idle()
        publish(channel, b"fresh")
        method, _, body = channel.basic_get("q")
        assert (body, method.redelivered) == (b"sooner", False)
        broker.clock.advance(HELD_S)
        broker.wait_idle()
        assert drain(channel, "q") == [b"later", b"fresh"]  # what is due comes first


@pytest.mark.parametrize(("policy", "value"), [
    ("at:ms", lambda broker: in_ms(broker, HELD_S)),
    ("at:ms", lambda broker: str(in_ms(broker, HELD_S))),
    ("at:s", lambda broker: in_ms(broker, HELD_S) // 1000 + 1),
    ("at:iso8601", lambda broker: f"{now(broker) + timedelta(seconds=HELD_S):%Y-%m-%d %H:%M:%S.%f}"),
    ("at:iso8601", lambda broker: f"{now(broker) + timedelta(seconds=HELD_S):%Y-%m-%dT%H:%M:%S.%fZ}"),
    ("at:countdown-ms", lambda _: HELD_S * 1000),
    ("at:countdown-s", lambda _: HELD_S),
    ("eta, at:countdown-s", lambda _: HELD_S),
])  # fmt: skip
def test_each_format_is_read(policy: str, value: Any) -> None:
    """A header by its name and the format of its value; of several the first that a message has."""
    with holding(policy) as (broker, channel):
        publish(channel, b"m", at=value(broker))
        broker.clock.advance(HELD_S - 0.01)
        assert counts(broker) == (0, 1)
        broker.clock.advance(1.02)
        broker.wait_idle()
        assert counts(broker) == (1, 0)


def test_a_time_that_cannot_be_read_is_now_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The message is delivered at once; a line says which header it is."""
    with holding("eta") as (broker, channel):
        for value in ("tomorrow", 5, True, "", b"\xff", {"a": 1}, "99999-01-01"):
            publish(channel, b"m", eta=value)
        assert counts(broker) == (7, 0)
        broker.clock.advance(61)
        publish(channel, b"m", eta="tomorrow")
        said = [record.getMessage() for record in caplog.records if "message.not_held" in record.getMessage()]
        assert len(said) == 2
        assert "header 'eta' is not of the format iso8601" in said[0]


def test_without_the_policy_nothing_is_held() -> None:
    """Neither eta nor x-delay means anything to a queue without the policy, as in RabbitMQ."""
    with holding("other") as (broker, channel):
        publish(channel, b"m", eta=(now(broker) + timedelta(hours=1)).isoformat(), x_delay=60_000)
        assert counts(broker) == (1, 0)


def test_x_delay_holds_a_message_on_any_exchange() -> None:
    """With a policy that names it, x-delay is a countdown for what reaches the queue by whatever exchange."""
    with holding("x-delay:countdown-ms") as (broker, channel):
        channel.queue_bind("q", "amq.direct", "q")
        channel.queue_declare("other")
        channel.queue_bind("other", "amq.direct", "q")
        publish(channel, b"m", "amq.direct", x_delay=1000)
        assert counts(broker) == (0, 1)
        assert ready(channel, "other") == 1
        broker.clock.advance(1)
        broker.wait_idle()
        assert counts(broker) == (1, 0)


def test_a_time_to_live_begins_when_the_message_is_due() -> None:
    """A waiting message does not expire."""
    with holding("wait:countdown-ms", arguments={"x-message-ttl": 500}) as (broker, channel):
        publish(channel, b"m", wait=1000)
        broker.clock.advance(1.4)
        broker.wait_idle()
        assert counts(broker) == (1, 0)
        broker.clock.advance(0.2)
        broker.wait_idle()
        assert counts(broker) == (0, 0)


def test_a_transaction_holds_what_it_publishes() -> None:
    """Nothing is held before the commit."""
    with holding("wait:countdown-ms") as (broker, channel):
        other = channel.connection.channel()
        other.tx_select()
        publish(other, b"m", wait=1000)
        assert counts(broker) == (0, 0)
        other.tx_commit()
        assert counts(broker) == (0, 1)


def test_a_held_message_that_comes_back_waits_for_its_retry() -> None:
    """Hold and delayed retry are one mechanism: a message may wait for both, one after the other."""
    retry = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 500}
    with holding("wait:countdown-ms", "quorum", retry) as (broker, channel):
        publish(channel, b"m", wait=1000)
        broker.clock.advance(1)
        broker.wait_idle()
        channel.basic_reject(channel.basic_get("q")[0].delivery_tag)
        ready(channel, "q")
        assert counts(broker) == (0, 1)
        broker.clock.advance(0.5)
        broker.wait_idle()
        method, properties, _ = channel.basic_get("q")
        assert method.redelivered
        assert properties.headers["x-delivery-count"] == 1


def test_a_queue_without_duplicates_knows_what_it_holds() -> None:
    """A second message with the value is dropped while the first waits or is unacked."""
    arguments = {
        "x-message-deduplication": True,
        "x-message-ttl": 500,
        "x-delayed-retry-type": "all",
        "x-delayed-retry-min": 1000,
    }
    with holding("wait:countdown-ms", arguments=arguments) as (broker, channel):
        publish(channel, b"m", wait=1000, x_deduplication_header="a")
        for seconds, ready_, delayed in ((0.9, 0, 1), (0.1, 1, 0)):
            broker.clock.advance(seconds)
            broker.wait_idle()
            publish(channel, b"twice", x_deduplication_header="a")
            assert counts(broker) == (ready_, delayed)
        channel.basic_reject(channel.basic_get("q")[0].delivery_tag)
        broker.wait_idle()
        publish(channel, b"twice", x_deduplication_header="a")
        assert counts(broker) == (0, 1)
        channel.queue_purge("q")
        publish(channel, b"again", x_deduplication_header="a")
        assert drain(channel, "q") == [b"again"]
