"""Commands on another machine: the control socket's conversation over HTTP, with the command line as its client."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
import trustme

from broker.cli.broker_url import BrokerUrl
from broker.cli.control_client import Unanswered, ask, conversation
from broker.cli.main import main
from broker.manage import control_route
from broker.net import control
from broker.operations import operation
from broker.testing import Broker
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.http_talk import basic

MANY = 10_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Provide a broker with its HTTP API."""
    with Broker(http={"enabled": True}) as running:
        yield running


@pytest.fixture
def url(broker: Broker) -> str:
    """Provide the URL of the API."""
    return str(broker.server.manage.url())


def test_a_request_is_read_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON of a command over HTTP is parsed once, and its parameters are checked once."""
    counts: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        counts[name] += 1
        return real(*arguments)

    for module, name in (
        (control, "read_json"),
        (control_route, "read_json"),
        (control_route, "read"),
        (operation, "read"),
    ):
        monkeypatch.setattr(module, name, partial(counted, name, getattr(module, name)))
    assert main(["health", "--url", url]) == 0
    assert counts == {"read_json": 1, "read": 1}


def test_commands_work_over_http(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Verbs that answer, that take input, that tell progress and that wait until messages are accepted."""
    file = tmp_path / "definitions.json"
    for words in (
        ["declare", "queue", "q"],
        ["publish", "q", "hello"],
        ["list", "queues", "--columns", "name,messages"],
        ["get", "q", "--body"],
        ["list", "queues", "--columns", "name,messages"],
        ["definitions", "export", str(file)],
        ["definitions", "import", str(file)],
        ["move", "q", "--to", "amq.fanout:"],
        ["health"],
    ):
        assert main([*words, "--url", url]) == 0, words
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == ["queue 'q' declared", "1 message published to queue 'q'", "q\t1", "helloq\t0"]
    assert said[4].startswith("there already: ")
    assert said[5] == "0 messages moved to exchange 'amq.fanout', key ''"
    monkeypatch.setenv("SLOTMQ_URL", url)
    assert main(["delete", "queue", "q"]) == 0
    assert main(["health"]) == 0


def test_a_long_answer_arrives_whole(broker: Broker, url: str) -> None:
    """A list of many pieces is the same list as over the socket."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for number in range(1200):
            channel.queue_declare(f"long-{number:04}", exclusive=True)
        rows = ask(BrokerUrl(url), "list_queues")
        assert sorted(row["name"] for row in rows) == [f"long-{number:04}" for number in range(1200)]


def test_a_command_that_has_enough_is_answered(broker: Broker, url: str) -> None:
    """A move that is told to stop answers how far it came; one that is cut off leaves nothing running."""
    told: list[Any] = []
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("from", exclusive=True)
        for _ in range(MANY):  # more than are moved before the broker hears that it is enough
            channel.basic_publish("", "from", b"x")
        broker.wait_idle()
        with conversation(BrokerUrl(url), "move", queue="from", to="amq.fanout:k") as client:
            client.shutdown(socket.SHUT_WR)
            lines = b"".join(iter(lambda: client.recv(1 << 16), b"")).splitlines()
        answer = json.loads(lines[-1])
        assert (answer["ok"], answer["result"]["stopped"]) == (True, "interrupted")
        with conversation(BrokerUrl(url), "trace") as client:
            assert json.loads(client.recv(1 << 16)) == {"progress": {"tracing": "/"}}
            told.append(broker.server.manage.clients())
        wait_until(lambda: broker.server.manage.clients() == 0, "the end of the trace")
        assert told == [1]
        with conversation(BrokerUrl(url), "get", queue="from") as client:
            assert b'"messages"' in client.recv(1 << 16)
        left = MANY - answer["result"]["moved"]
        wait_until(lambda: broker.queue("from").ready == left, "the return of the message that was not accepted")


def test_a_refusal_is_said(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A user hears which tag is missing, whatever the verb; who needs which is in the table of rights."""
    password = "w:@ /"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(password.encode())))
    assert main(["user", "add", "watcher", "--password-stdin", "--tag", "monitoring", "--url", url]) == 0
    watcher = url.replace("//", f"//watcher:{quote(password, safe='')}@")
    assert main(["status", "--url", watcher]) == 0
    assert main(["stop", "--url", watcher]) == 1
    assert capsys.readouterr().err == f"slotmq: {url[:-1]} refuses: Not administrator user\n"
    with pytest.raises(Unanswered, match="refuses: Not administrator user"):
        ask(BrokerUrl(watcher), "no such verb")
    assert main(["user", "delete", "watcher", "--url", url]) == 0


def test_the_password_comes_from_elsewhere(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes from a variable or a file; a wrong one is refused in one line that does not show it."""
    words = ["status", "--url", url.replace("//", "//guest@")]
    assert main(words) == 2
    assert "no password for guest@127.0.0.1: set SLOTMQ_PASS or SLOTMQ_PASS_FILE" in capsys.readouterr().err
    monkeypatch.setenv("SLOTMQ_PASS", "wr0ng")
    assert main(words) == 1
    error = capsys.readouterr().err
    assert error == f"slotmq: {url[:-1]} refuses: the login was refused; the broker's log says why\n"
    monkeypatch.delenv("SLOTMQ_PASS")
    file = tmp_path / "password"
    file.write_text("guest\n")
    monkeypatch.setenv("SLOTMQ_PASS_FILE", str(file))
    assert main(words) == 0


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\nServer: other\r\n\r\n",
            "no SlotMQ answers at {}, but something else: 404 Not Found",
        ),
        (b"AMQP\x00\x00\x09\x01", "no SlotMQ answers at {}: "),
        (b"", "no SlotMQ answers at {}: "),
        (b"HTTP/1.1 200 OK\r\n\r\nhello\n", "the broker at {} closed the connection"),
    ],
    ids=["another server", "another protocol", "nothing", "nonsense"],
)
def test_what_is_no_slotmq_is_said_in_a_line(answer: bytes, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and one line, whatever answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(answer)
                client.shutdown(socket.SHUT_WR)
                client.recv(1 << 16)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert main(["status", "--url", url]) == 1
        thread.join(DEADLINE_S)
    error = capsys.readouterr().err
    assert error.startswith(f"slotmq: {line.format(url)}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["status", "--url", "http://127.0.0.1:1"], 1, "no broker answers at http://127.0.0.1:1: Connection refused"),
        (["status", "--url", "amqp://127.0.0.1"], 2, "--url takes an http:// or https:// URL"),
        (["status", "--url", "http://127.0.0.1:x"], 2, "no valid port in http://127.0.0.1:x"),
        (["status", "--url", "http://["], 2, "not a valid URL: http://["),
        (["status", "--url", "http://u:s\u2100cret@h"], 2, "not a valid URL: http://***@h\n"),
        (["status", "--url", "http://x", "--data-dir", "d"], 2, "give either --url or a data folder"),
        (["backup", "here", "--url", "http://127.0.0.1:1"], 2, "the folder is on the broker's machine"),
        (["status", "--url", "https://127.0.0.1:1", "--cafile", "/none"], 2, "--cafile: /none: No such file"),
    ],
)
def test_what_cannot_work_is_one_line(
    words: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says what to change."""
    assert main(words) == code
    assert capsys.readouterr().err.startswith(f"slotmq: {line}")


def test_requests_that_are_none(url: str) -> None:
    """A request without a known verb is 400; one with a length needs no chunks, and no end of line."""
    host = url.removeprefix("http://").rstrip("/")
    connection = HTTPConnection(host, timeout=DEADLINE_S)
    for body, status in ((b"", 400), (b"[]\n", 400), (b'{"verb": 3}', 400), (b'{"verb": "health"}', 200)):
        connection.request("POST", "/v1/control", body, basic(("guest", "guest")))
        answer = connection.getresponse()
        assert (answer.status, answer.read()[:4]) == (status, b'{"ok' if status == 200 else b'{"er')
    connection.close()


def test_a_broker_is_stopped_over_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command returns when the stop has begun, and the broker ends in order."""
    process = BrokerProcess(tmp_path / "broker", environment={"SLOTMQ_HTTP__ENABLED": "true", "SLOTMQ_HTTP__PORT": "0"})
    process.start()
    try:
        status = ask(process.folder, "status")
        assert main(["stop", "--url", status["http_url"]]) == 0
        assert capsys.readouterr().out == "stopping\n"
        assert process.wait() == 0
        assert not process.errors()
    finally:
        process.kill()


def test_commands_work_over_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The certificate is verified against --cafile; --insecure accepts any."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    tls = {"certfile": str(tmp_path / "cert.pem"), "keyfile": str(tmp_path / "key.pem")}
    with Broker(http={"enabled": True, "tls": True}, tls=tls) as broker:
        url = f"https://localhost:{broker.server.manage.port()}"
        assert main(["status", "--url", url, "--cafile", str(tmp_path / "ca.pem")]) == 0
        assert main(["status", "--url", url, "--insecure"]) == 0
        capsys.readouterr()
        assert main(["status", "--url", url]) == 1
        assert "--cafile names the authority that signed it" in capsys.readouterr().err
        assert main(["status", "--url", url.replace("https", "http")]) == 1
