"""The status of an answer for each kind of error."""

from __future__ import annotations

import pytest

from broker.amqp.errors import BrokerError, NodeLost
from broker.manage.refusal import refusal_of


@pytest.mark.parametrize("rabbitmq", [True, False])
def test_a_lost_node_is_unavailable(rabbitmq: bool) -> None:
    """A request that may succeed when the node has joined again is no mistake of the client, as others are."""
    lost, other = (refusal_of(kind("no"), rabbitmq=rabbitmq) for kind in (NodeLost, BrokerError))
    assert lost is not None and other is not None
    assert (lost.status, other.status // 100) == (503, 4)
