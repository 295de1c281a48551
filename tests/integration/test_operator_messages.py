"""An operator publishes, gets, declares and binds: the commands themselves, on a running broker."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.amqp.content_header import facts_of
from broker.cli.control_client import Unanswered, ask
from broker.cli.main import main
from broker.core.alarms import Watermark
from broker.core.message.message import Envelope, Message
from broker.operations import messages
from broker.operations.messages import DROPPED_AT_ONCE, drop
from broker.server import BrokerServer
from tests.broker_process import BrokerProcess
from tests.in_process import queue_of, running_broker
from tests.unit.core.room import NO_PROPERTIES

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    """Provide a broker for one test."""
    async with running_broker(tmp_path) as running:
        yield running


@pytest.fixture
def slotmq(broker: BrokerServer, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Provide a function that runs a command and returns its exit code, output and errors."""

    async def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        folder = str(broker.settings.server.data_dir)

        def command() -> int:
            try:
                return main([*words, "--data-dir", folder])
            except SystemExit as end:
                return int(str(end.code))

        code = await asyncio.to_thread(command)
        said = capfd.readouterr()
        return code, said.out.strip(), said.err.strip()

    return run


def feed(monkeypatch: pytest.MonkeyPatch, octets: bytes) -> None:
    """Put bytes on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(octets)))


async def test_topology_is_made_and_led_somewhere(broker: BrokerServer, slotmq: Any) -> None:
    """Commands declare durable objects by default, and repeating a declare or a bind has no further effect."""
    assert await slotmq("declare", "queue", "q") == (0, "queue 'q' declared", "")
    assert await slotmq("declare", "queue", "q") == (0, "queue 'q' already exists, as declared", "")
    assert (await slotmq("declare", "queue", "t", "--transient", "--argument", "x-max-length=3"))[0] == 0
    assert (await slotmq("declare", "queue", "safe", "--type", "quorum"))[0] == 0
    assert (await slotmq("declare", "exchange", "x", "--type", "topic"))[:2] == (0, "exchange 'x' declared")
    assert (await slotmq("declare", "exchange", "inner", "--type", "headers", "--internal", "--transient"))[0] == 0
    vhost = broker.engines["/"].vhost
    assert [(name, vhost.queues[name].durable, vhost.queues[name].arguments) for name in ("q", "t", "safe")] == [
        ("q", True, {}),
        ("t", False, {"x-max-length": 3}),
        ("safe", True, {"x-queue-type": "quorum"}),
    ]
    exchanges = [vhost.exchanges[name] for name in ("x", "inner")]
    assert [(e.type, e.durable, e.internal) for e in exchanges] == [("topic", True, False), ("headers", False, True)]
    assert await slotmq("bind", "x", "q", "a.#") == (0, "", "")
    assert await slotmq("bind", "x", "q", "a.#") == (0, "the binding already exists", "")
    assert await slotmq("bind", "x", "inner", "#") == (0, "", "")
    assert await slotmq("bind", "inner", "t", "--argument", "n=3", "--argument", "x-match=any") == (0, "", "")
    await slotmq("publish", "x:a.b", "--header", "n=3", "m")  # options may stand anywhere
    assert (queue_of(broker, "q").ready, queue_of(broker, "t").ready) == (1, 1)
    assert await slotmq("unbind", "x", "q", "a.#") == (0, "", "")
    assert await slotmq("unbind", "x", "inner", "#") == (0, "", "")
    assert await slotmq("publish", "x:a.b", "m") == (
        1,
        "0 messages published to exchange 'x', key 'a.b'",
        "slotmq: 1 message not published: no queue is bound there",
    )


def test_what_is_made_outlives_the_broker(broker_process: BrokerProcess) -> None:
    """Objects and messages that a command made are durable by default and survive a restart."""
    folder = broker_process.start().folder
    ask(folder, "declare_queue", queue="q")
    ask(folder, "declare_exchange", exchange="x")
    ask(folder, "bind", exchange="x", destination="q", key="k")
    assert main(["publish", "x:k", "m", "--data-dir", str(folder)]) == 0
    broker_process.restart()
    heard: list[Any] = []
    ask(folder, "get", queue="q", on_progress=heard.append, accepts=True)
    assert [(m["body"], m["properties"]) for m in heard[0]["messages"]] == [("m", {"delivery_mode": 2})]
    broker_process.restart()
    assert ask(folder, "peek", queue="q") == [], "what was taken comes back no more"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["declare", "queue", "q", "--transient"], 1, "PRECONDITION_FAILED - inequivalent arg 'durable'"),
        (["declare", "queue", "n", "--argument", "x-max-length=many"], 1, "expected integer, got longstr"),
        (["declare", "queue", "n", "--argument", "x-max-length"], 2, "'x-max-length' should be NAME=VALUE"),
        (["declare", "queue", "n", "--argument", "a=1", "--argument", "a=2"], 2, "--argument a is given twice"),
        (["declare", "queue", "amq.n"], 1, "reserved prefix 'amq.*'"),
        (["declare", "queue", ""], 1, "the name of a queue has 1 to 255 bytes of printable text"),
        (["declare", "queue", "a\tb"], 1, "the name of a queue has 1 to 255 bytes of printable text"),
        (["declare", "queue", "n" * 256], 1, "the name of a queue has 1 to 255 bytes of printable text"),
        (["declare", "exchange", "n", "--type", "topc"], 1, "unknown exchange type 'topc'"),
        (["declare", "exchange", "amq.topic"], 1, "inequivalent arg 'type'"),
        (["bind", "none", "q"], 1, "no exchange 'none' in vhost '/'"),
        (["bind", "amq.topic", "none"], 1, "no queue or exchange 'none' in vhost '/'"),
        (["bind", "amq.topic", "amq.topic:k"], 1, "no queue or exchange 'amq.topic:k' in vhost '/'"),
        (["bind", "amq.topic", "q", "#.#.a.#.b.#"], 1, "'#'"),
        (["unbind", "amq.topic", "q", "k"], 1, "no such binding of 'q' to exchange 'amq.topic'"),
        (["publish", "none", "m"], 1, "no queue or exchange 'none' in vhost '/'"),
        (["publish", "q", "m", "--file", "f"], 2, "give either a BODY, or --file or --lines"),
        (["publish", "q", "--file", "/none"], 2, "/none: cannot be read: No such file or directory"),
        (["publish", "q", "m", "--property", "colour=red"], 2, "there is no property 'colour': there are content_type"),
        (["publish", "q", "m", "--property", "priority=high"], 2, "priority should be a number, not 'high'"),
        (["publish", "q", "m", "--property", "priority=256"], 2, "property priority: it should be a number from 0 to"),
        (["publish", "q", "m", "--property", "delivery_mode=3"], 2, "delivery_mode is 1 or 2, not 3"),
        (["publish", "q", "m", "--property", "expiration=soon"], 2, "invalid expiration 'soon'"),
        (["publish", "q", "m", "--property", "app_id=" + "a" * 256], 2, "property app_id: a short string cannot hold"),
        (["publish", "q", "m", "--header", "n"], 2, "'n' should be NAME=VALUE"),
        (["get", "none"], 1, "no queue 'none' in vhost '/'"),
        (["get", "q", "--count", "none"], 2, "'none' is not a number from 1 to 1000"),
        (["peek", "q", "--count", "0"], 2, "'0' is not a number from 1 to 1000"),
        (
            ["trace", "on", "--count", "3"],
            2,
            "filters and --count limit only the output, not the firehose",
        ),
        (["move", "q", "--to", "q"], 1, "queue 'q' cannot be moved to itself"),
        (["move", "q"], 2, "the following arguments are required: --to"),
        (["move", "q", "--to", ""], 2, "name a queue or an exchange"),
        (["move", "q", "--to", "t", "--limit", "-1"], 2, "'-1' is not a positive number of messages"),
        (
            ["move", "q", "--to", "t", "--match", "size>3"],
            2,
            "'size>3' is not a condition: it is key=PATTERN, exchange",
        ),
        (["move", "q", "--to", "t", "--match", "header:=3"], 2, "'header:=3' is not a condition"),
        (["requeue-dead-letters", "q", "--reason", "boredom"], 2, "invalid choice: 'boredom'"),
    ],
)
async def test_what_cannot_be_is_told_in_one_line(slotmq: Any, words: list[str], code: int, said: str) -> None:
    """An invalid command ends with 2, a refusal of the broker with 1, and both print one line."""
    assert (await slotmq("declare", "queue", "q"))[0] == 0
    found = await slotmq(*words)
    assert found[0] == code, found
    assert said in found[2] and "\n" not in found[2] and "Traceback" not in found[2], found
    assert found[2].startswith("slotmq")


async def test_dead_letters_whose_queue_is_gone_are_told_so(slotmq: Any) -> None:
    """The line names the reason that the operator can fix, which is another one when the command names an exchange."""
    assert (await slotmq("declare", "queue", "dead"))[0] == 0
    assert (await slotmq("publish", "dead", "m", "--header", 'x-death=[{"queue": "gone"}]'))[0] == 0
    code, _, said = await slotmq("requeue-dead-letters", "dead")
    assert (code, said) == (1, "slotmq: 1 message left in place: the queue where they died does not exist")
    code, _, said = await slotmq("requeue-dead-letters", "dead", "--into", "exchange")
    assert (code, said) == (1, "slotmq: 1 message left in place: no queue is bound there")


async def test_status_says_none_for_what_is_not_there(slotmq: Any) -> None:
    """A missing value is shown as none: a reader cannot tell a blank from a defect."""
    code, out, _ = await slotmq("status")
    values = {name: value for name, _, value in (line.partition(" ") for line in out.splitlines())}
    assert (code, values["http_url"].strip(), values["connections"].strip()) == (0, "none", "0")


async def test_a_body_comes_from_the_command_a_file_or_standard_input(
    slotmq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body is published and printed byte for byte."""
    await slotmq("declare", "queue", "q")
    octets = bytes(range(256)) * 3
    (tmp_path / "body").write_bytes(octets)
    assert await slotmq("publish", "q", "hé") == (0, "1 message published to queue 'q'", "")
    assert (await slotmq("publish", "q", "--file", str(tmp_path / "body")))[0] == 0
    feed(monkeypatch, b"piped\n")
    assert (await slotmq("publish", "q"))[0] == 0
    found = json.loads((await slotmq("get", "q", "--count", "9", "--requeue", "--json"))[1])
    assert [message["body_encoding"] for message in found] == ["utf-8", "base64", "utf-8"]
    assert await slotmq("get", "q", "--body") == (0, "hé", "")
    assert b64decode(found[1]["body"]) == octets
    assert (await slotmq("get", "q"))[1].endswith(f"(768 bytes, base64):\n    {found[1]['body']}")
    assert (await slotmq("get", "q", "--body"))[1] == "piped"


async def test_each_line_is_a_message(broker: BrokerServer, slotmq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are published over several requests, in order; an empty line is an empty body, a last newline optional."""
    await slotmq("declare", "queue", "q")
    feed(monkeypatch, b"".join(b"%d\r\n" % number for number in range(2500)) + b"\nlast")
    code, out, _ = await slotmq("publish", "q", "--lines", "--json", "--header", "k=v")
    assert code == 0
    assert json.loads(out) == {"published": 2502, "unroutable": 0, "refused": 0, "to": {"queue": "q"}}
    out = (await slotmq("get", "q", "--count", "3", "--body"))[1]
    assert out == "0\n1\n2"
    await slotmq("get", "q", "--count", "1000")
    assert queue_of(broker, "q").ready == 2502 - 3 - 1000


async def test_a_full_queue_and_an_alarm_refuse(
    broker: BrokerServer, slotmq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue and an alarm refuse a publish with a text for the operator."""
    limits = ("--argument", "x-max-length=1", "--argument", "x-overflow=reject-publish")
    await slotmq("declare", "queue", "q", *limits)
    feed(monkeypatch, b"1\n2\n3\n")
    assert await slotmq("publish", "q", "--lines") == (
        1,
        "1 message published to queue 'q'",
        "slotmq: 2 messages not published: a queue of the route is full",
    )
    monkeypatch.setitem(
        broker.clients.alarms._watermarks, "disk", Watermark("disk", 1 << 62, "store.disk_free_min_bytes")
    )
    broker.clients.alarm_watch.measure()
    assert (await slotmq("publish", "q", "m"))[2] == "slotmq: the disk alarm blocks publishing"
    await slotmq("declare", "queue", "other")
    assert await slotmq("move", "q", "--to", "other") == (
        1,
        "0 messages moved to queue 'other'",
        "slotmq: stopped before the end: the disk alarm blocks publishing; 1 message left",
    )


async def test_what_was_shown_is_gone_and_what_was_requeued_is_redelivered(broker: BrokerServer, slotmq: Any) -> None:
    """Peek changes nothing; get --requeue leaves the redelivered flag; get removes the message."""
    await slotmq("declare", "queue", "q")
    await slotmq("publish", "q", "m", "--property", "type=t", "--header", "n=3")
    assert "redelivered" not in (await slotmq("get", "q", "--requeue"))[1]
    code, out, _ = await slotmq("get", "q")
    assert (code, out.splitlines()[0]) == (0, "message 1, redelivered")
    assert '  headers: {"n":3}' in out and out.endswith("body (1 byte, utf-8):\n    m")
    assert await slotmq("get", "q") == (0, "", "slotmq: queue 'q' has no message ready")
    assert (queue_of(broker, "q").ready, queue_of(broker, "q").unacked) == (0, 0)


async def test_a_message_that_was_not_taken_comes_back(broker: BrokerServer) -> None:
    """A message comes back when the command died before it had shown it; that is not the broker's failure."""
    folder = broker.settings.server.data_dir
    await asyncio.to_thread(ask, folder, "declare_queue", queue="q")
    await asyncio.to_thread(ask, folder, "publish", to="q", bodies=["bQ=="])

    def die(_told: Any) -> None:
        assert (queue_of(broker, "q").ready, queue_of(broker, "q").unacked) == (0, 1)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await asyncio.to_thread(ask, folder, "get", queue="q", on_progress=die, accepts=True)
    heard: list[Any] = []
    await asyncio.to_thread(ask, folder, "get", queue="q", on_progress=heard.append, accepts=True)
    ((message,),) = [told["messages"] for told in heard]
    assert (message["body"], message["redelivered"]) == ("m", True)


async def test_messages_on_disk_are_taken_and_expired_ones_are_not(broker: BrokerServer, slotmq: Any) -> None:
    """Messages in memory and on disk are fetched in order, and expired ones are not fetched."""
    await slotmq("declare", "queue", "q", "--argument", "x-max-priority=2")
    for number in range(6):
        await slotmq("publish", "q", str(number), "--property", f"priority={number % 3}")
    engine = broker.engines["/"]
    for stream in queue_of(broker, "q").levels:
        stream.manager.seal()
        for slot in list(stream.manager.slots.values()):
            if slot.length:
                assert engine.pager.log_entries(stream, slot)
                slot.contents = None
    assert (await slotmq("get", "q", "--count", "6", "--body"))[1].split() == ["2", "5", "1", "4", "0", "3"]


async def test_copies_go_by_cc_and_bcc_and_bcc_is_not_seen(broker: BrokerServer, slotmq: Any) -> None:
    """CC and BCC route copies as for any publisher."""
    for name in ("a", "b", "c"):
        await slotmq("declare", "queue", name)
    assert (await slotmq("publish", ":a", "m", "--header", 'CC=["b"]', "--header", 'BCC=["c"]'))[0] == 0
    found = [json.loads((await slotmq("get", name, "--json"))[1])[0]["properties"]["headers"] for name in "abc"]
    assert found == [{"CC": ["b"]}] * 3


async def test_whoever_publishes_hears_that_the_vhost_was_deleted(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the vhost is deleted between two batches, its messages are not reported as published."""
    folder = broker.settings.server.data_dir
    await asyncio.to_thread(ask, folder, "add_vhost", name="v", description="", default_queue_type=None)
    await asyncio.to_thread(ask, folder, "declare_queue", queue="q", vhost="v")
    deleted = False

    async def sleep(_delay_s: float) -> None:
        nonlocal deleted
        if not deleted:
            deleted = True
            await broker.administration.change(lambda draft: draft.drop_vhost("v"))

    pause = SimpleNamespace(sleep=sleep)
    monkeypatch.setattr(messages, "asyncio", pause)
    with pytest.raises(Unanswered, match=r"^the vhost was deleted$"):
        await asyncio.to_thread(ask, folder, "publish", to="q", vhost="v", bodies=["bQ=="] * 250)
    assert deleted


@pytest.mark.parametrize(("limit", "left"), [(DROPPED_AT_ONCE, 700), (2 * DROPPED_AT_ONCE + 100, 100), (10_000, 0)])
async def test_more_messages_than_one_step_takes_are_dropped(broker: BrokerServer, limit: int, left: int) -> None:
    """A drop continues step by step up to its limit, or to the end of the queue, and leaves the rest in order."""
    engine = broker.engines["/"]
    queue = engine.vhost.queues.declare("q")
    envelope, facts = Envelope("", "q"), facts_of(NO_PROPERTIES)
    bodies = [b"%d" % number for number in range(2 * DROPPED_AT_ONCE + 200)]
    queue.level.append([Message(envelope, NO_PROPERTIES, body, 1, facts, 0) for body in bodies])
    assert await drop(engine, queue, limit) == len(bodies) - left
    contents = [one for slot in queue.level.manager.slots.values() for one in slot.contents or () if one is not None]
    assert [message.body for message in contents] == bodies[len(bodies) - left :]
    assert (queue.ready, queue.unacked) == (left, 0)


@pytest.mark.interpreted("a function of a module is replaced")
async def test_a_get_that_fetches_twice_has_one_limit(
    broker: BrokerServer, slotmq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that arrive during a get are part of its answer within the limit of bytes."""
    queue = broker.engines["/"].vhost.queues.declare("q")
    fetch = messages.fetch

    def post(count: int) -> None:
        for _ in range(count):
            message = Message(Envelope("", "q"), NO_PROPERTIES, bytes(100), 1, facts_of(NO_PROPERTIES), 1)
            broker.engines["/"].vhost.poster.post(message, [queue])

    async def fetch_and_post(*arguments: Any) -> None:
        await fetch(*arguments)
        post(10)

    monkeypatch.setattr(messages, "fetch", fetch_and_post)
    monkeypatch.setattr(messages, "FETCH_BYTES_MAX", 1000)
    post(8)
    code, said, _ = await slotmq("get", "q", "--count", "100", "--json")
    assert (code, len(json.loads(said))) == (0, 9)
