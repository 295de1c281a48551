"""Acks, nacks, recover and get; the order of requeued messages; transactions; confirms; priorities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.steps import (
    Conversation,
    Step,
    ack,
    bind,
    call,
    cancel,
    close_channel,
    confirm,
    consume,
    declared,
    drop,
    exchange,
    get,
    nack,
    publish,
    queue,
    reject,
)

__all__ = ["conversations"]


def _settling(name: str, *steps: Step) -> Conversation:
    return Conversation(f"settling/{name}", steps)


def _backlog(count: int = 5) -> list[Step]:
    return [queue("A1", "~q"), *(publish("A1", "", "~q", str(number + 1)) for number in range(count))]


def _tag(at: str, method: str, tag: int, **fields: Any) -> Step:
    return call(at, f"basic.{method}", delivery_tag=tag, **fields)


def _recover(at: str, *, requeue: bool = True) -> Step:
    return call(at, "basic.recover", requeue=requeue)


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    yield from _wrong_tags()
    yield from _returning()
    yield from _recovering()
    yield from _getting()
    yield from _confirms()
    yield from _transactions()
    yield from _priorities()


def _wrong_tags() -> Iterator[Conversation]:
    for method in ("ack", "nack", "reject"):
        yield _settling(f"{method}-unknown", *_backlog(1), consume("A1", "~q"), _tag("A1", method, 2))
        yield _settling(
            f"{method}-twice",
            *_backlog(1),
            get("A1", "~q"),
            _tag("A1", method, 1),
            _tag("A1", method, 1),
            get("A1", "~q"),
        )
        yield _settling(f"{method}-nothing-delivered", call("A1", "basic.qos"), _tag("A1", method, 1))
        yield _settling(f"{method}-zero", *_backlog(1), get("A1", "~q"), _tag("A1", method, 0))
    for method in ("ack", "nack"):
        yield _settling(
            f"{method}-zero-multiple", *_backlog(3), consume("A1", "~q"), _tag("A1", method, 0, multiple=True)
        )
        yield _settling(
            f"{method}-zero-multiple-of-none", call("A1", "basic.qos"), _tag("A1", method, 0, multiple=True)
        )
        yield _settling(
            f"{method}-beyond-multiple", *_backlog(2), consume("A1", "~q"), _tag("A1", method, 9, multiple=True)
        )
        yield _settling(
            f"{method}-gap-multiple",
            *_backlog(4),
            consume("A1", "~q"),
            ack("A1", "2"),
            _tag("A1", method, 2, multiple=True),
            _tag("A1", method, 3, multiple=True),
            declared("~q"),
        )
    yield _settling("ack-on-other-channel", *_backlog(1), get("A1", "~q"), _tag("A2", "ack", 1), ack("A1", "1"))


def _returning() -> Iterator[Conversation]:
    yield _settling(
        "requeue-keeps-place",
        *_backlog(),
        get("A1", "~q"),
        get("A1", "~q"),
        get("A1", "~q"),
        nack("A1", "2"),
        get("A2", "~q"),
        nack("A1", "1"),
        get("A2", "~q"),
        nack("A1", "3"),
    )
    yield _settling("reject-requeue-comes-back", *_backlog(2), consume("A1", "~q"), reject("A1", "1"), declared("~q"))
    yield _settling("nack-multiple-order", *_backlog(4), consume("A1", "~q"), nack("A1", "3", multiple=True))
    yield _settling(
        "nack-with-prefetch-one",
        *_backlog(3),
        call("A1", "basic.qos", prefetch_count=1),
        consume("A1", "~q"),
        nack("A1", "1"),
        ack("A1", "1"),
        nack("A1", "2", requeue=False),
    )
    yield _settling("drop-order", *_backlog(4), consume("A1", "~q"), ack("A1", "2"), drop("A"), get("B1", "~q"))
    yield _settling(
        "close-order-of-two-channels",
        *_backlog(4),
        get("A1", "~q"),
        get("A2", "~q"),
        get("A1", "~q"),
        close_channel("A1"),
        close_channel("A2"),
        get("A3", "~q"),
    )
    yield _settling(
        "redelivered-to-other-consumer",
        *_backlog(1),
        consume("A1", "~q", "one"),
        consume("B1", "~q", "two"),
        nack("A1", "1"),
        publish("A2", "", "~q", "fresh"),
    )


def _recovering() -> Iterator[Conversation]:
    yield _settling("recover", *_backlog(3), consume("A1", "~q"), ack("A1", "2"), _recover("A1"), ack("A1", "3"))
    yield _settling("recover-of-gets", *_backlog(3), get("A1", "~q"), get("A1", "~q"), _recover("A1"), declared("~q"))
    yield _settling(
        "recover-without-requeue", *_backlog(1), get("A1", "~q"), _recover("A1", requeue=False), ack("A1", "1")
    )
    yield _settling("recover-nothing", _recover("A1"))
    yield _settling(
        "recover-async", *_backlog(2), get("A1", "~q"), call("A1", "basic.recover-async", requeue=True), get("A2", "~q")
    )
    yield _settling("recover-async-without-requeue", call("A1", "basic.qos"), call("A1", "basic.recover-async"))
    yield _settling("recover-after-cancel", *_backlog(2), consume("A1", "~q"), cancel("A1"), _recover("A1"))


def _getting() -> Iterator[Conversation]:
    yield _settling("get-missing", get("A1", "~none"))
    yield _settling("get-empty", queue("A1", "~q"), get("A1", "~q"))
    yield _settling("get-counts", *_backlog(3), get("A1", "~q"), get("A1", "~q", no_ack=True), get("A1", "~q"))
    yield _settling("get-no-ack-has-no-tag", *_backlog(2), get("A1", "~q", no_ack=True), _tag("A1", "ack", 1))
    yield _settling("get-beside-consumer", *_backlog(1), consume("A1", "~q"), get("A2", "~q"), nack("A1", "1"))


def _confirms() -> Iterator[Conversation]:
    made = (queue("A1", "~q", durable=True), confirm("A1"))
    yield _settling("confirm-twice", *made, confirm("A1"), publish("A1", "", "~q"))
    yield _settling(
        "confirm-nowait", queue("A1", "~q"), call("A1", "confirm.select", nowait=True), publish("A1", "", "~q")
    )
    yield _settling("confirm-then-tx", confirm("A1"), call("A1", "tx.select"))
    yield _settling("tx-then-confirm", call("A1", "tx.select"), confirm("A1"))
    yield _settling("tx-commit-while-confirming", confirm("A1"), call("A1", "tx.commit"))
    yield _settling(
        "confirm-counts-from-select",
        queue("A1", "~q"),
        publish("A1", "", "~q", "before"),
        confirm("A1"),
        publish("A1", "", "~q", "one", delivery_mode=2),
        publish("A1", "", "~none", "two"),
        publish("A1", "", "~none", "three", mandatory=True),
    )
    yield _settling(
        "confirm-transient-and-persistent",
        *made,
        *(publish("A1", "", "~q", str(number), delivery_mode=number % 2 + 1) for number in range(6)),
    )
    yield _settling(
        "confirm-of-consumed", *made, consume("A2", "~q", no_ack=True), publish("A1", "", "~q", delivery_mode=2)
    )
    yield _settling("confirm-after-error", *made, publish("A1", "~none", "k"), confirm("A1"), publish("A1", "", "~q"))


def _transactions() -> Iterator[Conversation]:
    tx = (queue("A1", "~q"), call("A1", "tx.select"))
    commit, rollback = call("A1", "tx.commit"), call("A1", "tx.rollback")
    yield _settling("tx-commit-outside", commit)
    yield _settling("tx-rollback-outside", rollback)
    yield _settling("tx-select-twice", *tx, call("A1", "tx.select"), commit)
    yield _settling("tx-empty", *tx, commit, rollback, commit)
    yield _settling("tx-publish-commit", *tx, publish("A1", "", "~q"), declared("~q"), commit, declared("~q"))
    yield _settling("tx-publish-rollback", *tx, publish("A1", "", "~q"), rollback, declared("~q"), commit)
    yield _settling(
        "tx-order",
        *tx,
        publish("A2", "", "~q", "outside"),
        publish("A1", "", "~q", "one"),
        publish("A2", "", "~q", "outside too"),
        publish("A1", "", "~q", "two"),
        commit,
    )
    yield _settling("tx-publish-close", *tx, publish("A1", "", "~q"), close_channel("A1"), declared("~q"))
    yield _settling("tx-publish-drop", *tx, publish("A1", "", "~q"), drop("A"), declared("~q"))
    yield _settling("tx-missing-exchange", *tx, publish("A1", "", "~q"), publish("A1", "~none", "k"), commit)
    yield _settling("tx-mandatory", *tx, publish("A1", "", "~none", "back", mandatory=True), commit)
    yield _settling("tx-mandatory-rollback", *tx, publish("A1", "", "~none", "lost", mandatory=True), rollback)
    yield _settling(
        "tx-ack-commit", *_backlog(2), call("A1", "tx.select"), get("A1", "~q"), ack("A1", "1"), commit, _recover("A1")
    )
    yield _settling(
        "tx-ack-rollback",
        *_backlog(2),
        call("A1", "tx.select"),
        get("A1", "~q"),
        ack("A1", "1"),
        rollback,
        ack("A1", "1"),
        commit,
        declared("~q"),
    )
    yield _settling(
        "tx-ack-close", *_backlog(2), call("A1", "tx.select"), get("A1", "~q"), ack("A1", "1"), close_channel("A1")
    )
    yield _settling("tx-ack-unknown", *tx, _tag("A1", "ack", 5), commit)
    yield _settling(
        "tx-ack-twice", *_backlog(1), call("A1", "tx.select"), get("A1", "~q"), ack("A1", "1"), ack("A1", "1"), commit
    )
    yield _settling(
        "tx-nack-requeue",
        *_backlog(3),
        call("A1", "tx.select"),
        get("A1", "~q"),
        nack("A1", "1"),
        get("A2", "~q"),
        commit,
        get("A2", "~q"),
    )
    yield _settling(
        "tx-reject-dead-letters",
        queue("A1", "~dead"),
        queue("A1", "~q", x_dead_letter_exchange="", x_dead_letter_routing_key="~dead"),
        publish("A1", "", "~q"),
        call("A1", "tx.select"),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        declared("~dead"),
        commit,
        declared("~dead"),
    )
    yield _settling(
        "tx-to-several",
        queue("A1", "~p"),
        *tx,
        exchange("A1", "~x", "fanout"),
        bind("A1", "~q", "~x"),
        bind("A1", "~p", "~x"),
        publish("A1", "~x", ""),
        commit,
    )
    yield _settling(
        "tx-queue-deleted-meanwhile", *tx, publish("A1", "", "~q"), call("A2", "queue.delete", queue="~q"), commit
    )
    yield _settling(
        "tx-reject-publish",
        queue("A1", "~q", x_max_length=1, x_overflow="reject-publish"),
        call("A1", "tx.select"),
        publish("A1", "", "~q", "one"),
        publish("A1", "", "~q", "two"),
        commit,
    )


def _priorities() -> Iterator[Conversation]:
    made = queue("A1", "~q", x_max_priority=5)
    mixed = [
        publish("A1", "", "~q", f"{number}-{priority}", **({} if priority is None else {"priority": priority}))
        for number, priority in enumerate((1, 5, None, 0, 9, 5, 255, 2))
    ]
    yield _settling("priority-order", made, *mixed)
    yield _settling("priority-delivery", made, *mixed, consume("A1", "~q"))
    yield _settling(
        "priority-requeue",
        made,
        publish("A1", "", "~q", "low", priority=1),
        publish("A1", "", "~q", "high", priority=4),
        get("A1", "~q"),
        get("A1", "~q"),
        nack("A1", "low"),
        publish("A1", "", "~q", "higher", priority=5),
        nack("A1", "high"),
    )
    yield _settling("priority-on-plain-queue", queue("A1", "~q"), *mixed)
    yield _settling(
        "priority-with-prefetch",
        made,
        call("A2", "basic.qos", prefetch_count=1),
        consume("A2", "~q"),
        publish("A1", "", "~q", "first", priority=1),
        publish("A1", "", "~q", "second", priority=1),
        publish("A1", "", "~q", "urgent", priority=5),
        ack("A2", "first"),
        ack("A2", "urgent"),
    )
    yield _settling("priority-purge", made, *mixed, get("A1", "~q"), call("A1", "queue.purge", queue="~q"))
