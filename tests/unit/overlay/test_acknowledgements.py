"""When acks stand still."""

from __future__ import annotations

from broker.overlay.packets import Space
from broker.overlay.progress import LagWatch

SPACE = Space("/", "orders")


def test_only_acks_that_stand_still_are_told_and_again_after_a_while() -> None:
    """Acks that follow slowly, and a stream of which nothing is missing, are not stuck."""
    watch = LagWatch(400, 1_000)
    moving = [watch.is_stuck(SPACE, needed=now_ms, sent=10_000, now_ms=now_ms) for now_ms in range(100, 2_000, 100)]
    assert not any(moving)
    standing = [now_ms for now_ms in range(2_000, 5_000, 100) if watch.is_stuck(SPACE, 7, 9, now_ms)]
    assert standing == [2_400, 3_400, 4_400]
    assert not watch.is_stuck(SPACE, 10, 9, 5_000)
    assert not watch.is_stuck(SPACE, 10, 10, 9_000)
    assert watch.is_stuck(SPACE, 10, 10, 9_400)
