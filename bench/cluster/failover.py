"""Fail-over: from the kill of a node until another node delivers the first message that the killed one held."""

from __future__ import annotations

import time
from typing import Any

from bench.brokers import Broker
from broker.perf import wire
from broker.perf.crew import RunFailed
from broker.perf.peer import PeerConnection

_MESSAGES = 100
_QUEUE = "bench-failover"
_LIMIT_S = 60.0


def fail_over(brokers: list[Broker]) -> dict[str, Any]:
    """Kill node A while its consumer holds every message, and time the first delivery on node B. Raises: RunFailed."""
    a, b = brokers
    holder = PeerConnection(a.address, wire.CONSUME_CHANNEL)
    waiting = PeerConnection(b.address, wire.CONSUME_CHANNEL)
    try:
        holder.declare_queue(_QUEUE, durable=True)
        holder.consume(_QUEUE, "held", auto_ack=False, prefetch=_MESSAGES)
        publisher = PeerConnection(b.address, wire.PUBLISH_CHANNEL)
        publisher.select_confirms()
        body = bytes(100)
        publisher.socket.sendall(
            b"".join(wire.publish(publisher.channel, "", _QUEUE, body, persistent=True) for _ in range(_MESSAGES))
        )
        for _ in range(_MESSAGES):
            holder.await_method(wire.BASIC_DELIVER)
        waiting.consume(_QUEUE, "next", auto_ack=False, prefetch=_MESSAGES)
        waiting.socket.settimeout(_LIMIT_S)
        assert a.service is not None
        a.service.stop(killed=True)
        begun = time.monotonic()
        waiting.await_method(wire.BASIC_DELIVER)
        first_s = time.monotonic() - begun
        for _ in range(_MESSAGES - 1):
            waiting.await_method(wire.BASIC_DELIVER)
        publisher.close()
        return {"first_s": first_s, "all_s": time.monotonic() - begun}
    except TimeoutError:
        raise RunFailed(f"nothing was delivered within {_LIMIT_S:.0f} s of the kill") from None
    finally:
        for peer in (holder, waiting):
            peer.socket.close()
