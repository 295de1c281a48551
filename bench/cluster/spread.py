"""Load on several nodes at once: `slotmq perf throughput` with the node of each publisher and consumer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from broker.perf.conductor import stage
from broker.perf.faults import RunFailed
from broker.perf.parts import Load, Share
from broker.perf.peer import Address
from broker.perf.progress import RunProgress
from broker.perf.result import Latency
from broker.perf.scenarios.messages import add_throughput, addressed

_WINDOW = 1000  # unconfirmed messages of a publisher, and unacked ones of a consumer
_ACK_EVERY = 100


@dataclass(frozen=True, slots=True)
class SpreadLoad(Load):
    """A load whose processes connect to given nodes in turn."""

    publish_at: tuple[Address, ...] = ()
    consume_at: tuple[Address, ...] = ()

    def publish_shares(self) -> list[Share]:
        """Return the share of each publishing process."""
        return _placed(Load.publish_shares(self), self.publish_at)

    def consume_shares(self) -> list[Share]:
        """Return the share of each consuming process."""
        return _placed(Load.consume_shares(self), self.consume_at)


def _placed(shares: Sequence[Share], addresses: Sequence[Address]) -> list[Share]:
    """Return the shares with these addresses in turn."""
    at = [addresses[number % len(addresses)] for number in range(len(shares))]
    return [Share(replace(one.load, address=address), one.numbers) for one, address in zip(shares, at, strict=True)]


def run(
    publish_at: Sequence[Address],
    consume_at: Sequence[Address],
    *,
    messages: int,
    size_bytes: int,
    queues: int = 1,
    per_s: float | None = None,
) -> dict[str, Any]:
    """Publish persistent messages with confirms, consume all of them with acks, and return the figures of the run.

    Raises: RunFailed when a message was lost.
    """
    words = ["-C", str(messages), "-s", str(size_bytes), "-c", str(_WINDOW), "-f", "persistent"]
    words += ["--queues", str(queues)]
    words += ["-q", str(_WINDOW), "-A", str(_ACK_EVERY) if per_s is None else "1"]
    words += ["-x", str(len(publish_at)), "-y", str(max(len(consume_at), 1))]
    words += [] if per_s is None else ["-r", str(per_s / len(publish_at))]
    options = _options(words)
    topology, load = addressed(options)
    spread = SpreadLoad(
        **{field.name: getattr(load, field.name) for field in fields(Load)},
        publish_at=tuple(publish_at),
        consume_at=tuple(consume_at),
    )
    processes = max(len(publish_at), len(consume_at))
    spread = replace(spread, address=publish_at[0], processes=processes, seconds=None)
    options.uri = spread.address
    with stage(options, topology, RunProgress(quiet=True)) as here:
        outcome = here.run(spread)
    if outcome.failures:
        raise RunFailed(outcome.failures[0])
    totals = outcome.totals(size_bytes)
    latency, confirms = Latency.of(outcome.due_times), Latency.of(outcome.confirm_times)
    return {
        "per_s": totals.delivered / outcome.seconds,
        "p50_us": latency and latency.p50,
        "p99_us": latency and latency.p99,
        "confirm_p50_us": confirms and confirms.p50,
        "confirm_p99_us": confirms and confirms.p99,
    }


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_throughput(parser.add_subparsers())
    return parser.parse_args(["throughput", *words])
