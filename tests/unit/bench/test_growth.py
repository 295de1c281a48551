"""The growth benchmark: the evaluation of its measurements, and its clients against a broker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.ground import EXCHANGE, control, declare_bound, fill, sink, source
from bench.growth import soak
from bench.growth.suite import curves_of, verdict
from bench.herd import Herd
from bench.light import EVERY_S, LightClient
from bench.run import Run
from broker.perf.peer import Address
from tests.in_process import queue_of
from tests.raw_talk import mortal_broker, talk


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({1: 1.0, 10: 1.2}, "flat within 20%"),
        ({1: 1.0, 10: 0.9}, "flat within 0%"),
        ({1: 1.0, 10: 1.22, 100: 1.21}, "1.2 times at 10"),
        ({1: 1.0, 10: 1.1, 1000: 3.5}, "3.5 times at 1,000"),
    ],
)
def test_the_verdict_names_what_is_not_flat(times: dict[int, float], said: str) -> None:
    """Growth up to a fifth is flat; above it the worst size is named with its ratio to the smallest."""
    run = Run("growth")
    for size, ratio in times.items():
        run.add("queues", {"cpu_us": 10.0 * ratio, "times": ratio}, title="one by one", size=size)
    ((key, rows),) = curves_of(run).items()
    assert (key, verdict(rows)) == (("queues", "one by one"), said)


STUCK = """
import asyncio, sys, time
from pathlib import Path
from bench.growth import turn_sampler
turn_sampler._PACKAGE = ""  # the functions of all files are named
file = Path(sys.argv[1])

async def stuck():
    for _ in range(1000):
        if "stuck" in file.read_text():
            break
        time.sleep(0.05)  # a long turn
        await asyncio.sleep(0)

with asyncio.Runner(loop_factory=turn_sampler._watched(asyncio.new_event_loop, file, names=True)) as runner:
    runner.run(stuck())
"""


def test_a_long_turn_is_written_with_its_function(tmp_path: Path) -> None:
    """The sampler sees which function the loop is in while a turn lasts."""
    turns = tmp_path / "turns"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", STUCK, str(turns)], check=True, env=environment, capture_output=True)
    named = [json.loads(line) for line in turns.read_text().splitlines() if "stuck" in line]
    assert named
    assert all(seconds >= 0.01 for _at, seconds, _name in named)


async def test_a_paced_herd_leaves_the_backlog_as_long_as_it_is(tmp_path: Path) -> None:
    """The run's messages are acked elsewhere in the queue, so the backlog shrinks by those in transit at most."""
    async with mortal_broker(tmp_path) as broker:
        address = Address("127.0.0.1", broker.listener.port)

        def stock() -> None:
            peer = control(address)
            declare_bound(peer, ["q"], ["g.#"])
            fill(address, ["g.a", "g.b"], 5_000, limit_s=20)
            peer.close()

        def consume() -> tuple[int, int]:
            peer = control(address)
            peer.consume("q", "c", auto_ack=False, prefetch=100)
            sender = source(address, ["g.a", "g.b"], window=100)
            herd = Herd([sender], [sink(peer, 10)], lead=200, paced=100)
            moved = herd.run(20, lambda: herd.published >= 3_000)
            herd.close()
            return herd.published, sum(moved.got_each)

        await talk(broker, stock)
        assert queue_of(broker, "q").ready == 5_000
        published, delivered = await talk(broker, consume)
        manager = queue_of(broker, "q").level.manager
        assert published >= 3_000
        assert abs(delivered - published) <= 400
        settled = manager.next_id - 1 - manager.ready - manager.unacked
        assert settled <= published
        assert settled >= published - 400


async def test_the_light_client_counts_every_message_of_its_schedule(tmp_path: Path) -> None:
    """The count is that of the messages that were due, even if the client was delayed."""
    async with mortal_broker(tmp_path) as broker:
        address = Address("127.0.0.1", broker.listener.port)

        def watch() -> dict[str, Any]:
            control(address).close()
            light = LightClient(address, EXCHANGE)
            try:
                return light.watch(20 * EVERY_S)
            finally:
                light.close()

        found = await asyncio.wait_for(talk(broker, watch), 30)
    assert found["messages"] == 20
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]


def test_a_soak_compares_its_end_with_the_time_after_its_start() -> None:
    """The third tenth of the time is early, the last is late; one high sample counts as the highest only."""
    samples = [(float(second), (50 + second // 10) * soak.MIB) for second in range(100)]
    samples[50] = (50.0, 300 * soak.MIB)
    assert soak._ends(samples) == {"early_mb": 52, "late_mb": 59, "max_mb": 300}
