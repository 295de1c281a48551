"""Confirms on the wire: every tag once, acked or nacked, multiple or single, a return before its ack."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.raw_client import RawClient, described, publish_frames


@pytest.fixture
def confirming(raw: RawClient) -> RawClient:
    """Provide a client whose channel 1 is in confirm mode."""
    raw.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return raw


def declare(client: RawClient) -> str:
    """Return the name of a new exclusive queue."""
    return client.declare_queue(1, exclusive=True)


def verdicts(client: RawClient, count: int) -> list[bool]:
    """Return for each tag from 1 on whether it was acked; each must be answered once, and no other tag."""
    told: dict[int, bool] = {}
    while len(told) < count:
        received = client.next()
        verdict = received.value
        assert isinstance(verdict, (commands.Basic.Ack, commands.Basic.Nack)), described(received)
        last = verdict.delivery_tag
        assert last not in told and last <= count, f"tag {last} (multiple {verdict.multiple})"
        covered = [tag for tag in range(1, last + 1) if tag not in told] if verdict.multiple else [last]
        told.update(dict.fromkeys(covered, isinstance(verdict, commands.Basic.Ack)))
    return [told[tag] for tag in range(1, count + 1)]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_every_publish_is_confirmed_once(confirming: RawClient, name: str, count: int, persistent: bool) -> None:
    """Confirms cover tags 1 to n, each exactly once, however they are combined."""
    properties = commands.Basic.Properties(delivery_mode=2 if persistent else 1)
    confirming.call(1, commands.Queue.Declare(queue=name, durable=persistent), commands.Queue.DeclareOk)
    confirming.send(publish_frames(1, "", name, b"x", properties=properties) * count)
    assert verdicts(confirming, count) == [True] * count
    assert confirming.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk).message_count == count


def test_return_comes_before_its_confirm(confirming: RawClient, name: str) -> None:
    """A mandatory message that matches no queue is returned first and then confirmed."""
    queue = declare(confirming)
    properties = commands.Basic.Properties(delivery_mode=2, message_id="m")
    for key in (queue, name, queue):
        confirming.send(publish_frames(1, "", key, key.encode(), properties=properties, mandatory=True))
    seen: list[str] = []
    outstanding = {1, 2, 3}
    while outstanding:
        value = confirming.next().value
        if isinstance(value, commands.Basic.Return):
            assert (value.reply_code, value.reply_text, value.exchange) == (312, "NO_ROUTE", "")
            assert value.routing_key == name
            header, body = confirming.expect_content(1)
            assert (header.properties.message_id, body) == ("m", name.encode())
            assert 2 in outstanding, "confirmed before it was returned"
            seen.append("return")
        else:
            assert isinstance(value, commands.Basic.Ack)
            tags = {tag for tag in outstanding if tag <= value.delivery_tag} if value.multiple else {value.delivery_tag}
            outstanding -= tags
    assert seen == ["return"]


def test_confirms_of_two_channels_are_counted_apart(confirming: RawClient) -> None:
    """Each channel numbers its own publishes from 1."""
    queue = declare(confirming)
    confirming.open_channel(2)
    confirming.call(2, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for _ in range(10):
        confirming.send(publish_frames(1, "", queue, b"1"), publish_frames(2, "", queue, b"2"))
    last = {1: 0, 2: 0}
    acked: dict[int, set[int]] = {1: set(), 2: set()}
    while len(acked[1]) < 10 or len(acked[2]) < 10:
        received = confirming.next()
        ack = received.value
        assert isinstance(ack, commands.Basic.Ack)
        tags = range(1, ack.delivery_tag + 1) if ack.multiple else [ack.delivery_tag]
        acked[received.channel] |= set(tags)
        last[received.channel] = max(last[received.channel], ack.delivery_tag)
    assert last == {1: 10, 2: 10}


def test_confirms_stop_at_a_channel_error(confirming: RawClient, name: str) -> None:
    """Publishes before a failing publish may be confirmed; later ones on the channel never are."""
    queue = declare(confirming)
    publish = publish_frames(1, "", queue, b"x")
    confirming.send(publish * 3, publish_frames(1, name, "", b"fails"), publish * 3)
    while not isinstance(value := confirming.next().value, commands.Channel.Close):
        assert isinstance(value, commands.Basic.Ack)
        assert value.delivery_tag <= 3
    assert (value.reply_code, value.reply_text) == (404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")
    assert (value.class_id, value.method_id) == (60, 40)
    confirming.method(1, commands.Channel.CloseOk())
    confirming.open_channel(1)
    assert confirming.call(1, commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk).message_count == 3


def test_confirm_goes_out_while_the_client_only_waits(confirming: RawClient) -> None:
    """A lone publish is confirmed although nothing else is sent: no confirm waits for a full batch."""
    queue = declare(confirming)
    properties = commands.Basic.Properties(delivery_mode=2)
    for tag in range(1, 30):
        confirming.send(publish_frames(1, "", queue, b"x", properties=properties))
        assert confirming.expect(commands.Basic.Ack, 1).delivery_tag == tag


def test_each_publish_gets_its_verdict(confirming: RawClient, name: str) -> None:
    """When publishes are accepted, rejected and unroutable in turn, each gets its ack or nack."""
    table: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
    confirming.declare_queue(1, name, exclusive=True, arguments=table)
    free = declare(confirming)
    properties = commands.Basic.Properties(delivery_mode=2)
    keys = [name, *([free, name, f"{name}.none", name] * 75)]
    confirming.send(*(publish_frames(1, "", key, b"x", properties=properties) for key in keys))
    assert verdicts(confirming, len(keys)) == [True] + [key != name for key in keys[1:]]
    assert confirming.call(1, commands.Queue.Purge(queue=name), commands.Queue.PurgeOk).message_count == 1
