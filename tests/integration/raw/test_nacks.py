"""Nacks of confirms on the wire: every tag once, acked or nacked, and in order."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from tests.raw_client import RawClient, described, publish_frames

Basic, Queue = commands.Basic, commands.Queue


def verdicts(client: RawClient, count: int) -> list[bool]:
    """Return for each tag from 1 on whether it was acked; each must be answered once."""
    told: dict[int, bool] = {}
    while len(told) < count:
        received = client.next()
        confirm = received.value
        assert isinstance(confirm, (Basic.Ack, Basic.Nack)), described(received)
        last = confirm.delivery_tag
        open_tags = [tag for tag in range(1, last + 1) if tag not in told]
        covered = open_tags if confirm.multiple else [last]
        assert last in open_tags, f"tag {last} was confirmed before"
        told.update(dict.fromkeys(covered, isinstance(confirm, Basic.Ack)))
    return [told[tag] for tag in range(1, count + 1)]


def test_each_publish_gets_its_verdict(raw: RawClient, name: str) -> None:
    """When publishes are accepted and rejected alternately, each gets its ack or nack."""
    table: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
    raw.call(1, Queue.Declare(queue=name, exclusive=True, arguments=table), Queue.DeclareOk)
    raw.call(1, Queue.Declare(queue=f"{name}.free", exclusive=True, durable=True), Queue.DeclareOk)
    raw.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    properties = Basic.Properties(delivery_mode=2)
    keys = [name] + [name if number % 3 else f"{name}.free" for number in range(300)]
    for key in keys:
        raw.send(publish_frames(1, "", key, b"x", properties=properties))
    wanted = [True] + [key != name for key in keys[1:]]
    assert verdicts(raw, len(keys)) == wanted
    assert raw.call(1, Queue.Purge(queue=name), Queue.PurgeOk).message_count == 1
