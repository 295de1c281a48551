"""`slotmq top` against a broker: what it asks, what it prints, and its view on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pytest

from broker.cli.broker_url import BrokerUrl
from broker.cli.control_client import Unanswered, ask
from broker.cli.main import main
from broker.operations.queue_readings import HeadTimes
from broker.testing import Broker
from tests.deadline import DEADLINE_S
from tests.in_process import client_of, queue_of, running_broker
from tests.raw_talk import page_out


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Provide a broker with three queues, whose heads are of different ages."""
    with Broker(http={"enabled": True}, vhosts=["other"]) as running:
        with pika.BlockingConnection(pika.URLParameters(running.url)) as connection:
            channel = connection.channel()
            for name, count in (("old", 1), ("long", 3), ("empty", 0)):
                channel.queue_declare(name, durable=True)
                for _ in range(count):
                    channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))
                running.wait_idle()
                running.clock.advance(60)
        yield running


@pytest.fixture
def url(broker: Broker) -> str:
    """Provide the URL of the API."""
    return str(broker.server.manage.url())


def test_queues_are_sorted_and_chosen_by_the_broker(url: str) -> None:
    """Only the rows that are shown travel; totals are those of all that match."""

    def names(**question: Any) -> list[str]:
        return [row["name"] for row in ask(BrokerUrl(url), "top", **question)["queues"]]

    assert names(by="ready", limit=2) == ["long", "old"]
    assert names(by="ready", limit=2, offset=1) == ["old", "empty"]
    assert names(by="name", reverse=True) == ["old", "long", "empty"]
    assert names(by="age") == ["old", "long", "empty"]
    assert names(filter="L", by="name") == ["long", "old"]
    assert names(vhost="other") == []
    answer = ask(BrokerUrl(url), "top", by="age", limit=1)
    assert answer["queues"][0]["age"] == 180.0
    assert (answer["matching"], answer["totals"]["ready"], answer["vhosts"]) == (3, 4, ["/", "other"])
    with pytest.raises(Unanswered, match="'by' should be one of publish"):
        ask(BrokerUrl(url), "top", by="size")


async def test_the_age_of_a_head_on_disk_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that no one consumes lies on disk; its head is not read at each look."""
    async with running_broker(tmp_path / "data") as broker:
        async with client_of(broker) as channel:
            await channel.declare_queue("q", durable=True)
            for _ in range(3):
                await channel.default_exchange.publish(aio_pika.Message(b"x", delivery_mode=2), "q")
        queue = queue_of(broker, "q")
        (slot,) = queue.level.manager.slots.values()
        assert slot.contents is not None
        heads, at_ms = HeadTimes(), slot.contents[0].timestamp_ms
        assert await heads.oldest_ms(queue) == at_ms
        page_out(broker, "q")
        assert slot.contents is None
        reads: list[Any] = []
        slots, kept = queue.level.store.slots, dict(queue.level.store.log.live)
        read = slots.read

        def counted(_store: Any, *words: Any) -> Any:
            reads.append(words)
            return read(*words)

        monkeypatch.setattr(type(slots), "read", counted)
        assert [await heads.oldest_ms(queue) for _ in range(3)] == [at_ms] * 3
        assert len(reads) == 1
        assert queue.level.store.log.live == kept, "a look lets go of the segments that it read"
        heads.retain_only(set())
        assert not heads._on_disk


def test_without_a_terminal_it_prints_a_table(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Tab-separated rows in the order that was asked for, or the answer as JSON."""
    assert main(["top", "--url", url, "--sort", "ready", "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[1] for line in lines] == ["long", "old"]
    assert main(["top", "--url", url, "--json", "--filter", "old"]) == 0
    assert json.loads(capsys.readouterr().out)["queues"][0]["name"] == "old"
    assert main(["top", "--url", url, "--interval", "0"]) == 2
    assert "--interval should be from 0.5" in capsys.readouterr().err


def test_the_view_on_a_terminal(url: str) -> None:
    """It shows the queues, takes keys, and leaves the terminal as it was."""
    theirs, ours = pty.openpty()
    before = termios.tcgetattr(ours)
    environment = {**os.environ, "SLOTMQ_URL": url, "COLUMNS": "100", "LINES": "12", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "broker", "top"], stdin=ours, stdout=ours, stderr=ours, env=environment
    )
    shown = b""

    def until(text: bytes) -> None:
        nonlocal shown
        end = time.monotonic() + DEADLINE_S
        while text not in shown:
            assert select.select([theirs], [], [], max(0.0, end - time.monotonic()))[0], (text, shown)
            shown += os.read(theirs, 1 << 16)

    try:
        until(b"long")
        until("PUBLISH/s↓".encode())
        shown = b""
        os.write(theirs, b"\xff")  # not a character
        until(b"q quit")
        os.write(theirs, b"/ol\r")
        until(b"1 queue in all vhosts")
        os.write(theirs, b"q")
        until(b"\x1b[?1049l")
        assert process.wait(DEADLINE_S) == 0
        assert termios.tcgetattr(ours) == before
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)
