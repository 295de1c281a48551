"""One run of the demo: a broker with its page, and clients that keep it busy until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import socket
import sys
import tempfile
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from demo.broker_process import BrokerFailed, BrokerProcess
from demo.flights import FlightsMissing, json_bodies, load_frame, routing_keys
from demo.ui.scene import DESKS, PAUSED, Flight, Scene

PAGE_LINE = re.compile(r"http://\S+")
USUAL_PORT = 15672
QUEUES_MAX = 12_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until Ctrl-C or for --seconds; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.ui", description=__doc__)
    parser.add_argument("--seconds", type=float, metavar="S", help="end after so long (default: at Ctrl-C)")
    parser.add_argument("--rate", type=float, default=300, metavar="N", help="flights published per second (300)")
    parser.add_argument("--queues", type=int, default=11, metavar="N", help="number of queues (11)")
    parser.add_argument("--rows", type=int, default=20_000, metavar="N", help="flights that go round (20000)")
    parser.add_argument("--http-port", type=int, metavar="PORT", help=f"port of the page ({USUAL_PORT} if it is free)")
    options = parser.parse_args(arguments)
    if not (1 <= options.queues <= QUEUES_MAX and options.rows >= 1 and 0 < options.rate <= 10_000):
        parser.error(f"--queues is 1 to {QUEUES_MAX}, --rows at least 1, --rate up to 10000")
    folder = Path(tempfile.mkdtemp(prefix="slotmq-demo-"))
    command = f"{sys.executable} -m broker serve --host 127.0.0.1 --port {{port}} --data-dir {{folder}}"
    port = usual_port() if options.http_port is None else options.http_port
    os.environ |= {
        "SLOTMQ_HTTP__ENABLED": "true",
        "SLOTMQ_HTTP__PORT": str(port),
        "SLOTMQ_HTTP__SAMPLE_INTERVAL_MS": "1000",
        "SLOTMQ_METRICS__ENABLED": "false",
        "SLOTMQ_SLOTS__WINDOW_MESSAGES": "250",
    }
    broker = BrokerProcess(command, folder)
    try:
        frame = load_frame(options.rows)
        flights = list(zip(routing_keys(frame), json_bodies(frame), strict=True))
        address, _took_s = broker.start()
        found = PAGE_LINE.search(broker.output_path.read_text())
        assert found is not None, "a broker with HTTP names its page"
        page = found.group().rstrip(",")
        url = f"amqp://guest:guest@127.0.0.1:{address.port}/"
        with suppress(KeyboardInterrupt):
            asyncio.run(show(page, url, flights, options))
        broker.stop()
    except (BrokerFailed, FlightsMissing) as failed:
        print(failed, file=sys.stderr)
        return 1
    finally:
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def usual_port() -> int:
    """Return the usual port of the page if it is free, else 0 for any."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


async def show(page: str, url: str, flights: Sequence[Flight], options: argparse.Namespace) -> None:
    """Let the flights pass, and say where to look."""
    scene = Scene(url, flights, options.rate, options.queues)
    await scene.declare()
    await asyncio.to_thread(ask, "POST", f"{page}api/queues/%2F/{PAUSED}/pause")
    for desk in DESKS:  # the history of a queue begins when somebody asks for it
        await asyncio.to_thread(ask, "GET", f"{page}api/history/queues/%2F/{desk.name}")
    print(f"open {page} (user guest, password guest); AMQP at {url}", flush=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(options.seconds):
            await scene.run()


def ask(method: str, url: str) -> None:
    """Send a request to the HTTP API."""
    login = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}
    urllib.request.urlopen(urllib.request.Request(url, method=method, headers=login), timeout=10).close()
