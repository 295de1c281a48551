"""The dip of a subscriber's rate when a middle broker fails, in all ways in which it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.overlay.figure7 import INNERS, LEAVES, SUBSCRIBERS, Figure7, figure7
from tests.overlay.steady_clients import Arrival
from tests.overlay.test_kills import PER_S
from tools.link_proxy import Way

BUCKET_S = 0.1
DIP_MAX_S = 1.0


def longest_dip_s(arrivals: Sequence[Arrival], per_s: float, since_s: float, until_s: float) -> float:
    """Return the longest time in which fewer than half of the messages came in each tenth of a second."""
    buckets = [0] * int((until_s - since_s) / BUCKET_S)
    for arrival in arrivals:
        place = int((arrival.at_s - since_s) / BUCKET_S)
        if 0 <= place < len(buckets):
            buckets[place] += 1
    longest = length = 0
    for count in buckets:
        length = length + 1 if count < per_s * BUCKET_S / 2 else 0
        longest = max(longest, length)
    return longest * BUCKET_S


def kill(tree: Figure7, name: str) -> None:
    """End the process with -9."""
    tree.kill(name)


def freeze(tree: Figure7, name: str) -> None:
    """Stop the process; its sockets stay."""
    tree.freeze(name)


def reset(tree: Figure7, name: str) -> None:
    """Reset its links."""
    for leaf in LEAVES:
        tree.links[leaf, name].cut()


def lose(tree: Figure7, name: str) -> None:
    """Lose what the publishing leaf sends to it."""
    tree.links["pb", name].lose(Way.TO_TARGET)


def hear_nothing(tree: Figure7, name: str) -> None:
    """Lose what it sends to the publishing leaf."""
    tree.links["pb", name].lose(Way.FROM_TARGET)


def lose_at_a_subscriber(tree: Figure7, name: str) -> None:
    """Lose what it sends to one of the subscribers."""
    tree.links["sb1", name].lose(Way.FROM_TARGET)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [kill, freeze, reset, lose, hear_nothing, lose_at_a_subscriber])
async def test_the_rate_dips_for_less_than_a_second(
    fault: Callable[[Figure7, str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the middle brokers fails twice, while the others live."""
    dips: list[float] = []
    delays: list[float] = []
    async with figure7(tmp_path, PER_S) as (tree, load):
        for name in [*INNERS, *INNERS]:
            await load.confirm(PER_S)
            await load.arrive(*SUBSCRIBERS)
            first = len(load.publisher.published_s)
            since_s = load.publisher.published_s[-1]
            fault(tree, name)
            await load.confirm(3 * PER_S)
            await load.arrive(*SUBSCRIBERS)
            until_s = load.publisher.published_s[-1]
            for subscriber in load.subscribers.values():
                arrivals = list(subscriber.arrivals)
                dips.append(longest_dip_s(arrivals, PER_S / 2, since_s, until_s))
                published_s = load.publisher.published_s
                late = [one.at_s - published_s[one.number] for one in arrivals if one.number >= first]
                delays.append(max(late))
            if not tree.processes[name].alive:
                await tree.start(name)
            tree.thaw(name)
            for leaf in LEAVES:
                tree.links[leaf, name].heal()
            await tree.linked(name)
    with capsys.disabled():
        print(f"\n{fault.__name__}: dips of", " ".join(f"{dip:.1f}" for dip in dips), end=" s, ")
        print("the latest messages after", " ".join(f"{delay:.2f}" for delay in delays), "s")
    assert max(dips) <= DIP_MAX_S
