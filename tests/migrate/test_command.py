"""`slotmq migrate` as a command: output, exit codes, logins, and kills of its process."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pika
import pytest

from broker.cli.main import main
from broker.migrate.link import MigrationFault
from broker.migrate.migration import QueuePlace, fetch_definitions, places_of
from broker.testing import Broker
from tests.broker_process import BrokerProcess
from tests.migrate.killed_migration import migrate_through_kills


@pytest.fixture
def brokers() -> Iterator[tuple[Broker, Broker]]:
    """Provide a source with two queues and a target with one of them."""
    with Broker(users={"ann": "s3 cret"}) as source, Broker() as target:
        for broker, queues in ((source, ("work", "gone")), (target, ("work",))):
            with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
                channel = connection.channel()
                for queue in queues:
                    channel.queue_declare(queue, durable=True)
                    for number in range(3 if broker is source else 0):
                        channel.basic_publish("", queue, b"%d" % number)
        source.wait_idle()
        yield source, target


def test_each_queue_has_a_line_and_the_exit_code_tells_of_faults(
    brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue that the target does not have is named; the others are drained."""
    source, target = brokers
    words = ["migrate", "--from", source.url, "--to", target.url, "--queue", "work", "--queue", "gone"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.out == "queue 'work' in /: 3 messages moved\n3 messages moved\n"
    assert said.err == (
        "slotmq: queue 'gone' in /: the target has no such queue: import the definitions, or declare it\n"
    )
    assert [message.body for message in target.queue("work").messages] == [b"0", b"1", b"2"]
    assert main([*words, "--json"]) == 1
    rows = {row["queue"]: row for row in json.loads(capsys.readouterr().out)["queues"]}
    assert (rows["work"]["moved"], rows["work"]["problem"], rows["gone"]["moved"]) == (0, None, 0)


def test_the_password_comes_from_the_environment(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A URL with a user and no password takes it from SLOTMQ_FROM_PASS; without one the command says what to set."""
    source, target = brokers
    url = f"amqp://ann@127.0.0.1:{source.port}"
    words = ["migrate", "--from", url, "--to", target.url, "--queue", "work"]
    assert main(words) == 2
    assert "set SLOTMQ_FROM_PASS or SLOTMQ_FROM_PASS_FILE" in capsys.readouterr().err
    monkeypatch.setenv("SLOTMQ_FROM_PASS", "wrong")
    assert main(words) == 1
    assert "source: 403 ACCESS_REFUSED" in capsys.readouterr().err
    monkeypatch.setenv("SLOTMQ_FROM_PASS", "s3 cret")
    assert main(words) == 0


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--from", "http://x"], 2, "--from: not an amqp:// or amqps:// URL: http://x"),
        (["--from", "amqp://[u@h"], 2, "not a valid URL: amqp://***@h\n"),
        (["--from", "amqp://x", "--from-api", "http://["], 2, "not a valid URL: http://["),
        (["--from", "amqp://127.0.0.1:1"], 2, "AMQP cannot list queues: give --definitions, --from-api, or --queue"),
        (["--from", "amqp://127.0.0.1:1", "--queue", "q"], 1, "target: cannot reach 127.0.0.1 port 1: "),
        (["--from", "amqp://x", "--from-api", "ftp://x"], 1, "--from-api takes an http:// or https:// URL"),
        (["--from", "amqp://x", "--from-api", "http://x:y"], 1, "--from-api takes an http:// or https:// URL"),
        (["--from", f"amqp://{'a' * 64}"], 2, "--from: not an amqp:// or amqps:// URL: amqp://aaaa"),
        (["--from", "amqp://x", "--from-api", f"http://{'a' * 64}"], 1, "--from-api takes an http:// or https:// URL"),
        (["--from", "amqp://x", "--definitions", "/none"], 2, "/none: cannot be read: No such file"),
        (["--from", "amqp://x", "--jobs", "0"], 2, "--jobs should be from 1 to 64"),
    ],
)
def test_what_cannot_work_is_one_line(
    words: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the flag or the broker."""
    assert main(["migrate", "--to", "amqp://127.0.0.1:1", *words]) == code
    said = capsys.readouterr()
    assert said.err.startswith(f"slotmq: {line}")
    assert said.err.count("\n") == 1


class Api(BaseHTTPRequestHandler):
    """Answers as RabbitMQ's management API does."""

    def do_GET(self) -> None:
        """Answer with definitions."""
        login = base64.b64decode(self.headers["Authorization"].split()[1])
        self.send_response(200 if (self.path, login) == ("/api/definitions", b"ann:a:b") else 401)
        self.end_headers()
        self.wfile.write(b'{"queues": [{"name": "q", "vhost": "/"}]}')

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def test_definitions_come_from_the_api() -> None:
    """The login of the URL is used; a refusal says which user it takes."""
    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        base = f"127.0.0.1:{server.server_port}"
        assert fetch_definitions(f"http://ann:a%3Ab@{base}/api/") == {"queues": [{"name": "q", "vhost": "/"}]}
        with pytest.raises(MigrationFault, match=r"answered 401 Unauthorized \(the user needs"):
            fetch_definitions(f"http://ann:other@{base}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_queues_of_definitions() -> None:
    """Streams are told apart, and what an earlier run declared is left out."""
    rows = [
        {"name": "a", "vhost": "/"},
        {"name": "b", "vhost": "v"},
        {"name": "s", "vhost": "/", "arguments": {"x-queue-type": "stream"}},
        {"name": "slotmq-migrate.0", "vhost": "/"},
        {"name": "alone"},
    ]
    queues, streams = places_of({"queues": rows}, None, "mine")
    assert (queues, streams) == (
        [QueuePlace("/", "a"), QueuePlace("v", "b"), QueuePlace("mine", "alone")],
        [QueuePlace("/", "s")],
    )
    assert places_of({"queues": rows}, "v", "v")[0] == [QueuePlace("v", "b"), QueuePlace("v", "alone")]


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_the_process_may_be_killed_at_any_time(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """SIGKILL at random moments, until a run ends by itself: each message arrives once and in order."""
    source = broker_process.start().address
    target = BrokerProcess(tmp_path / "target").start()
    try:
        migrate_through_kills(source, target.address)
    finally:
        target.kill()
