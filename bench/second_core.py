"""What threads could take over from the event loop, and what a second process gains: `python -m bench.second_core`.

It prints how long work takes that a thread could do, beside the time to hand it over; how many syncs one, two and four
processes make; and what a message costs in one broker with two loads, and in two brokers with one load each.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from crc32c import crc32c

import compiled_build
from bench import brokers, machine
from bench.append_limit import append_limit
from bench.certificate import Certificate
from bench.meter import Figures, threads_s
from bench.packages import compiled_package, package_at
from bench.results import leave
from bench.scenarios.perf_run import perf
from broker.perf.crew import RunFailed

_SIZES: Final = (64, 1 << 10, 200 << 10)
_REPEATS: Final = 300
_PROCESSES: Final = (1, 2, 4)
_LIMIT_S: Final = 60.0
_WINDOW: Final = ("-s", "1024", "-c", "1000", "-q", "1000", "-A", "100", "--processes", "1")
_LOADS: Final = {"transient": _WINDOW, "persistent": (*_WINDOW, "--persistent")}
_FLOWS: Final = 2


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.second_core", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each load runs (2)")
    parser.add_argument("--dir", type=Path, help="the disk to measure")
    parser.add_argument("--package", type=package_at, help="a folder that compiled_build.py has written already")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-", dir=options.dir) as name:
        try:
            measure(Path(name), options.seconds, options.package)
        except (brokers.NotStarted, compiled_build.CompileError, RunFailed, OSError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def measure(folder: Path, seconds: float, package: Path | None) -> None:
    """Print one figure after the other. Raises: NotStarted, CompileError, RunFailed, OSError."""
    print(", ".join(f"{fact} {value}" for fact, value in machine.describe(folder).items()))
    print(f"hand work to a thread, get its answer: {asyncio.run(hand_over_us()):.1f} us")
    for size in _SIZES:
        print(f"checksum {size} B: {usual_us(partial(crc32c, bytes(size))):.1f} us")
    for size, (encrypt_us, fetch_us) in encryption_us(folder).items():
        print(f"encrypt {size} B: {encrypt_us:.1f} us, fetch the result from OpenSSL: {fetch_us:.1f} us")
    for processes in _PROCESSES:
        print(f"fdatasync of 4 KiB by {processes}: {syncs_per_s(folder, processes, seconds):.0f}/s")
    package = package or compiled_package()
    for load, flags in _LOADS.items():
        for count in (1, _FLOWS):
            found = flows(folder / f"{load}-{count}", package, count, (*flags, "-z", f"{seconds}s"))
            told = f"{found['cpu_us']:.2f} CPU-us per message, {found['per_s']:,.0f}/s"
            print(f"two loads of 1 KiB, {load}, by {count}: {told}", flush=True)


def usual_us(work: Callable[[], object]) -> float:
    """Return the median time of some work."""
    times = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return median(times) * 1e6


async def hand_over_us() -> float:
    """Return the median time until a thread has done nothing and the loop knows."""
    loop, times = asyncio.get_running_loop(), []
    with ThreadPoolExecutor(1) as threads:
        for _ in range(_REPEATS):
            begun = time.perf_counter()
            await loop.run_in_executor(threads, int)
            times.append(time.perf_counter() - begun)
    return median(times) * 1e6


def encryption_us(folder: Path) -> dict[int, tuple[float, float]]:
    """Return for each size how long OpenSSL encrypts, and how long fetching the result takes; none without openssl."""
    certificate = Certificate.issue(folder)
    if certificate is None:
        return {}
    sender, sent = connected(certificate)
    found = {}
    for size in _SIZES:
        block, encrypting, fetching = bytes(size), [], []
        for _ in range(_REPEATS):
            begun = time.perf_counter()
            sender.write(block)
            encrypted = time.perf_counter()
            sent.read()
            fetching.append(time.perf_counter() - encrypted)
            encrypting.append(encrypted - begun)
        found[size] = median(encrypting) * 1e6, median(fetching) * 1e6
    return found


def connected(certificate: Certificate) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """Return the server's end of a TLS connection in memory, and what it sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.file, certificate.key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = ssl.create_default_context(cafile=certificate.file).wrap_bio(
        to_client, to_server, server_hostname="127.0.0.1"
    )
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for end in (client, server):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
    to_client.read()  # session tickets
    return server, to_client


def syncs_per_s(folder: Path, processes: int, seconds: float) -> float:
    """Return how many syncs of 4 KiB these processes make together, each in a file of its own."""
    with ProcessPoolExecutor(processes) as pool:
        runs = [pool.submit(append_limit, folder, 4096, 1, seconds) for _ in range(processes)]
        return sum(run.result()["per_s"] for run in runs)


def flows(folder: Path, package: Path, count: int, flags: Sequence[str]) -> Figures:
    """Return what a message costs, and the rate, of two loads at once that this many brokers share."""
    with ExitStack() as running:
        started = [
            running.enter_context(brokers.slotmq(folder / str(number), package=package)) for number in range(count)
        ]
        trees = [one.processes for one in started if one.processes]
        used_s = sum(map(threads_s, trees))
        with ThreadPoolExecutor(_FLOWS) as threads:
            runs = [
                threads.submit(perf, started[number % count], "throughput", *flags, limit_s=_LIMIT_S)
                for number in range(_FLOWS)
            ]
            totals = [run.result()[0].totals for run in runs]
        used_s = sum(map(threads_s, trees)) - used_s
    messages = sum(one.delivered for one in totals)
    return {"cpu_us": used_s / messages * 1e6, "per_s": sum(one.deliver_per_s for one in totals)}


if __name__ == "__main__":
    sys.exit(main())
