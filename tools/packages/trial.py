"""Uses an installed broker as users do: `python trial.py [EXTRA...]` tries the broker in this Python's environment.

Needs pika, and pyzmq for the extra zmq, but nothing of the project: only the installed package is tried.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pika

DEADLINE_S: Final = 60
READY: Final = re.compile(r"is ready at (?P<url>amqp://\S+?)/ ")
BODY: Final = b"hello"
FREE_HTTP_PORTS: Final = {"SLOTMQ_HTTP__PORT": "0", "SLOTMQ_METRICS__PORT": "0"}  # `manage` enables both
ZMQ_SETTINGS: Final = """
[[zmq.publish]]
endpoint = "tcp://127.0.0.1:{port}"
exchange = "amq.topic"
"""


class TrialFailed(Exception):
    """The broker does not work as it should; the text says how, in one line."""


class Trial:
    """One broker, installed with some extras, in a folder of its own."""

    def __init__(
        self,
        scripts: Path,
        folder: Path,
        extras: Collection[str],
        environment: Mapping[str, str] | None = None,
        serve: Sequence[str] = ("slotmq", "serve"),
    ) -> None:
        self._folder = folder
        self._extras = extras
        self._serve = serve
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLOTMQ_"))}
        self._environment = own | {
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "SLOTMQ_SERVER__PORT": "0",
            **(FREE_HTTP_PORTS if "manage" in extras else {}),
            **(environment or {}),
        }

    def use(self, health: Sequence[str] = ()) -> None:
        """Use the broker and each of its extras, and run a health check. Raises: TrialFailed."""
        self.check_version()
        (self._folder / "slotmq.toml").write_text(
            ZMQ_SETTINGS.format(port=free_port()) if "zmq" in self._extras else ""
        )
        with self.broker() as (url, started):
            self.exchange_messages(url)
            self.run("slotmq", "vhost", "add", "x")
            self.run("slotmq", "vhost", "delete", "x")
            self.exchange_messages(url)  # the broker still works
            if health:
                self.run(*health)
            if "zmq" in self._extras:
                self.receive_by_zmq(url)
            if "manage" in self._extras:
                self.read_http(started["http_port"], started["metrics_port"])
            elif started["http_port"] is not None:
                raise TrialFailed(f"HTTP on port {started['http_port']} without the extra that it needs")
        self.check_cluster(installed="cluster" in self._extras)

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command and return its output. Raises: TrialFailed for another exit code."""
        said = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        text = (said.stdout + said.stderr).strip()
        if said.returncode != code:
            raise TrialFailed(f"{' '.join(command)} ended with {said.returncode}: {text}")
        return text

    def check_version(self) -> None:
        """Check that all hot modules are compiled."""
        said = self.run("slotmq", "--version")
        if "(compiled:" not in said or "interpreted" in said:
            raise TrialFailed(f"not compiled: {said}")

    @contextmanager
    def broker(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Run the broker, provide its URL and its start event, and check its exit code and log."""
        log = self._folder / "log"
        command = [*self._serve, "--config", "slotmq.toml"]
        with (
            log.open("wb") as file,
            subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, stderr=file, text=True
            ) as process,
        ):
            limit = threading.Timer(DEADLINE_S, process.kill)
            limit.start()
            try:
                assert process.stdout
                ready = READY.search(process.stdout.readline())
                if ready is None:
                    raise TrialFailed(f"not ready: {log.read_text()}")
                (started,) = [event for event in events(log) if event["event"] == "server.started"]
                yield ready["url"], started
                process.send_signal(signal.SIGTERM)
                if process.wait():
                    raise TrialFailed(f"SIGTERM ended it with {process.returncode}: {log.read_text()}")
            finally:
                limit.cancel()
                process.kill()
        bad = [event for event in events(log) if event["level"] in ("error", "critical")]
        if bad:
            raise TrialFailed(f"an error in the log: {bad[0]}")

    def exchange_messages(self, url: str) -> None:
        """Publish a persistent message, await its confirm, consume and acknowledge it."""
        with pika.BlockingConnection(pika.URLParameters(f"{url}/%2F")) as connection:
            channel = connection.channel()
            channel.queue_declare("late", durable=True)
            channel.queue_bind("late", "amq.topic", "flight.#")
            channel.confirm_delivery()
            channel.basic_publish("amq.topic", "flight.UA", BODY, pika.BasicProperties(delivery_mode=2))
            for method, _properties, body in channel.consume("late", inactivity_timeout=DEADLINE_S):
                if body != BODY:
                    raise TrialFailed(f"consumed {body!r}")
                channel.basic_ack(method.delivery_tag)
                break
            channel.cancel()

    def receive_by_zmq(self, url: str) -> None:
        """Receive a message of a pika client with a SUB socket."""
        import zmq  # noqa: PLC0415 - only with the extra

        endpoint = json.loads(self.run("slotmq", "zmq", "--json"))[0]["endpoint"]
        with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
            subscriber.connect(endpoint)
            subscriber.subscribe("flight.")
            for _attempt in range(DEADLINE_S * 10):  # the subscription takes effect after a moment
                self.exchange_messages(url)
                if subscriber.poll(100):
                    break
            if not subscriber.poll(0) or BODY not in subscriber.recv_multipart():
                raise TrialFailed("a SUB socket received nothing")

    def read_http(self, http: int, metrics: int) -> None:
        """Read the page, the API and the metrics."""
        for port, path, wanted in (
            (http, "/", "<title>SlotMQ"),
            (http, "/api/overview", '"rabbitmq_version"'),
            (http, "/api/queues/%2F/late", '"late"'),
            (metrics, "/metrics", "\nrabbitmq_queues_created_total "),
        ):
            login = base64.b64encode(b"guest:guest").decode()
            request = Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Basic {login}"})
            with urlopen(request, timeout=DEADLINE_S) as answer:
                if wanted not in answer.read().decode():
                    raise TrialFailed(f"{path} does not say {wanted}")

    def check_cluster(self, *, installed: bool) -> None:
        """Check that a node reports an unreachable database, and a missing extra by its name."""
        url = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
        said = self.run("slotmq", "serve", "--cluster", url, "--node", "a", code=2)
        if ("'.[cluster]'" in said) == installed or "Traceback" in said:
            raise TrialFailed(f"a node without a database: {said}")


def events(log: Path) -> list[dict[str, Any]]:
    """Return the events of a log. Raises: TrialFailed for any other line, such as one of a traceback."""
    found = []
    for line in log.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            raise TrialFailed(f"in the log: {line}") from None
    return found


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def main(extras: list[str]) -> int:
    """Try the broker of this environment, and return an exit code."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            Trial(Path(sys.executable).parent, Path(folder), extras).use()
        except TrialFailed as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
    print("compiled, serves, publishes, consumes, adds and deletes a vhost, stops")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
