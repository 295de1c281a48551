"""`python -m bench.listing`: how long 10,000 queues take to list over HTTP, and what that does to delivery meanwhile.

A light client publishes 200 messages a second and measures the latency of each; in turn alone, and while another
process lists all queues again and again. The ratio of the percentiles is what the listing costs others.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from base64 import b64encode
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.brokers import NotStarted, slotmq
from bench.growth.ground import EXCHANGE, control, declare_bound
from bench.growth.light import LightClient
from broker.perf.faults import Refusal, Stalled

__all__ = ["main"]

LOGIN = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}
READ_BYTES = 1 << 20


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.listing", description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (default 3)")
    parser.add_argument("--path", default="/api/queues", help="what is asked again and again (default /api/queues)")
    options = parser.parse_args(arguments)
    http_port = _free_port()
    settings = {"SLOTMQ_HTTP__ENABLED": "true", "SLOTMQ_HTTP__PORT": str(http_port)}
    try:
        with tempfile.TemporaryDirectory() as folder, slotmq(Path(folder), variables=settings) as broker:
            peer = control(broker.address)
            names = [f"listed.{number:06d}" for number in range(options.queues)]
            declare_bound(peer, names, names)
            client = LightClient(broker.address, EXCHANGE)
            client.await_route()
            report(measure(client, http_port, options))
            client.close()
            peer.close()
    except (NotStarted, OSError, Refusal, Stalled) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def measure(client: LightClient, http_port: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the latencies of each round, alone and while the queues are listed, and the times of the listings."""
    rounds = []
    for _ in range(options.rounds):
        alone = client.watch(options.seconds)
        ours, theirs = multiprocessing.Pipe()
        lister = multiprocessing.Process(target=list_again_and_again, args=(http_port, options.path, theirs))
        lister.start()
        ours.recv()  # the first listing has begun
        beside = client.watch(options.seconds)
        ours.send("enough")
        rounds.append({"alone": alone, "beside": beside, **ours.recv()})
        lister.join()
    return rounds


def list_again_and_again(http_port: int, path: str, told: Connection) -> None:
    """Ask for the list until somebody says that it is enough, and tell how long each answer took."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=60)
    told.send("begun")
    took_s: list[float] = []
    size_bytes = 0
    while not took_s or not told.poll():
        begun = time.monotonic()
        connection.request("GET", path, headers=LOGIN)
        answer = connection.getresponse()
        size_bytes = 0
        while octets := answer.read(READ_BYTES):
            size_bytes += len(octets)
        took_s.append(time.monotonic() - begun)
    told.send({"took_s": took_s, "size_bytes": size_bytes, "status": answer.status})


def report(rounds: list[dict[str, Any]]) -> None:
    """Print a line for each round, and the medians."""
    print(f"{'round':>6} {'p50 ms':>14} {'p99 ms':>14} {'max ms':>14} {'list s':>8}")
    for number, one in enumerate(rounds, 1):
        cells = [f"{one['alone'][name]:5.2f} -> {one['beside'][name]:5.2f}" for name in ("p50_ms", "p99_ms", "max_ms")]
        print(f"{number:6} {' '.join(f'{cell:>14}' for cell in cells)} {statistics.median(one['took_s']):8.3f}")
    ratios = {
        name: statistics.median(one["beside"][name] / one["alone"][name] for one in rounds)
        for name in ("p50_ms", "p99_ms")
    }
    took_s = statistics.median(took for one in rounds for took in one["took_s"])
    print(
        f"median: p50 x {ratios['p50_ms']:.2f}, p99 x {ratios['p99_ms']:.2f}, one listing {took_s:.3f} s, "
        f"{rounds[-1]['size_bytes'] / 1e6:.1f} MB, status {rounds[-1]['status']}"
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
