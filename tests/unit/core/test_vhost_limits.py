"""The limits on exchanges, queues and bindings of a vhost: exact, and refused above."""

from __future__ import annotations

import pytest

from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.vhost import Vhost
from broker.core.vhost_limits import VhostLimits
from tests.unit.core.room import Room


def limited(exchanges: int = 9, queues: int = 9, bindings: int = 9) -> Vhost:
    """Return a vhost with low limits."""
    vhost = Room().vhost
    vhost.limits.copy_from(VhostLimits(exchanges, queues, bindings))
    return vhost


def refusal(act: object, *arguments: object) -> str | None:
    """Return the text of a refusal, or None."""
    try:
        act(*arguments)  # type: ignore[operator]
    except ChannelError as error:
        return error.reply_text
    return None


def test_one_queue_more_than_may_be_is_refused() -> None:
    """A queue above the limit is refused in RabbitMQ's words; existing queues are found, and a deletion frees one."""
    vhost = limited(queues=2)
    assert [refusal(vhost.queues.declare, name) for name in ("a", "b", "a")] == [None, None, None]
    assert refusal(vhost.queues.declare, "c") == (
        "PRECONDITION_FAILED - cannot declare queue 'c': queue limit in vhost '/' (2) is reached"
    )
    vhost.queues.delete("a", None)
    assert refusal(vhost.queues.declare, "c") is None


def test_one_exchange_more_than_may_be_is_refused() -> None:
    """Predeclared exchanges do not count."""
    vhost = limited(exchanges=2)
    assert [refusal(vhost.exchanges.declare, name, "topic") for name in ("a", "b", "a")] == [None, None, None]
    assert refusal(vhost.exchanges.declare, "c", "topic") == (
        "PRECONDITION_FAILED - cannot declare exchange 'c': exchange limit in vhost '/' (2) is reached"
    )
    vhost.exchanges.delete("a")
    assert refusal(vhost.exchanges.declare, "c", "topic") is None


def test_one_binding_more_than_may_be_is_refused() -> None:
    """Bindings of queues and exchanges count together; every removal of a binding frees one."""
    vhost = limited(bindings=2)
    vhost.queues.declare("q")
    assert refusal(vhost.bindings.bind, "q", "amq.topic", "a") is None
    assert refusal(vhost.bindings.bind_exchange, "amq.fanout", "amq.topic", "b") is None
    assert refusal(vhost.bindings.bind, "q", "amq.topic", "a") is None  # it exists already
    assert refusal(vhost.bindings.bind, "q", "amq.topic", "c") == (
        "PRECONDITION_FAILED - cannot bind queue 'q': binding limit in vhost '/' (2) is reached"
    )
    assert refusal(vhost.bindings.bind_exchange, "amq.match", "amq.topic", "c") == (
        "PRECONDITION_FAILED - cannot bind exchange 'amq.match': binding limit in vhost '/' (2) is reached"
    )
    vhost.queues.delete("q", None)
    assert refusal(vhost.bindings.bind_exchange, "amq.match", "amq.topic", "c") is None


def test_what_holds_delayed_messages_is_not_counted() -> None:
    """A holding queue does not count, because no client declared it."""
    vhost = limited(exchanges=1, queues=1)
    vhost.exchanges.declare("x", "x-delayed-message", arguments={"x-delayed-type": "topic"})
    assert refusal(vhost.queues.declare, "q") is None
    assert refusal(vhost.queues.declare, "r") is not None


def test_an_operator_may_want_no_transient_shared_queues(vhost: Vhost) -> None:
    """As in RabbitMQ since 4.3, a queue that is neither durable nor exclusive is 541, and no other."""
    vhost.limits.copy_from(VhostLimits(transient_shared_queues=False))
    with pytest.raises(ConnectionFault, match="INTERNAL_ERROR - Feature `transient_nonexcl_queues` is deprecated"):
        vhost.queues.declare("q")
    vhost.queues.declare("durable", durable=True)
    vhost.queues.declare("exclusive", exclusive=True, owner=object())
    assert sorted(vhost.queues) == ["durable", "exclusive"]
