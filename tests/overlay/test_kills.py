"""Six real brokers under a steady load of 2,000 messages a second: processes die and come back, and links break.

Always: what was confirmed arrives, in order, and nothing comes twice unless it is marked as redelivered.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.overlay.figure7 import INNERS, LEAVES, Figure7, Load, figure7
from tests.overlay.steady_clients import BODY_BYTES
from tools.link_proxy import Way

PER_S = 2000
STEP = 600  # messages between two faults


async def survive(tree: Figure7, load: Load, *names: str) -> None:
    """Return once messages that are confirmed without some inner brokers have arrived, all through the others."""
    others = [name for name in INNERS if name not in names]
    before = sum(map(tree.carried_bytes, others))
    await load.confirm(STEP)
    await load.arrive("sb1", "sb2")
    assert sum(map(tree.carried_bytes, others)) - before >= STEP * BODY_BYTES


@pytest.mark.slow
@pytest.mark.fault
async def test_any_broker_may_die(tmp_path: Path) -> None:
    """With a middle broker down all continues through the others; a leaf that comes back gets what it missed.

    The publisher's broker may have more than it confirmed; of that, too, each message comes at most once.
    """
    async with figure7(tmp_path, PER_S) as (tree, load):
        for name in INNERS:
            tree.kill(name)
            await survive(tree, load, name)
            await tree.start(name)
            await tree.linked(name)
        tree.kill("sb1")
        await load.confirm(STEP)
        await load.arrive("sb2")
        await tree.start("sb1")
        await load.arrive("sb1")
        await load.confirm(STEP)
        tree.kill("pb")  # with messages that are not confirmed yet
        await tree.start("pb")
        await load.confirm(STEP)


@pytest.mark.torture
async def test_all_brokers_may_die_at_once(tmp_path: Path) -> None:
    """All six are killed in the same moment, again and again, and start in any order."""
    async with figure7(tmp_path, PER_S) as (tree, load):
        for life in range(5):
            await load.confirm(STEP)
            tree.kill(*tree.processes)
            names = list(tree.processes)
            await tree.start(*names[life:])
            await tree.start(*names[:life])
        await load.confirm(STEP)


@pytest.mark.torture
async def test_the_publishing_leaf_may_die_again_and_again(tmp_path: Path) -> None:
    """Each time with confirms on their way; a message that was not confirmed comes at most once."""
    async with figure7(tmp_path, PER_S) as (tree, load):
        for life in range(8):
            await load.confirm(100 + 97 * life)
            tree.kill("pb")
            await tree.start("pb")
        await load.confirm(STEP)


@pytest.mark.torture
async def test_two_of_three_middle_brokers_may_be_down(tmp_path: Path) -> None:
    """Any one of three is enough; with none the messages wait."""
    async with figure7(tmp_path, PER_S) as (tree, load):
        for alive in INNERS:
            dead = [name for name in INNERS if name != alive]
            tree.kill(*dead)
            await survive(tree, load, *dead)
            tree.kill(alive)
            await load.confirm(STEP)
            await tree.start(*INNERS)
            await load.arrive("sb1", "sb2")
            await tree.linked(*INNERS)


SILENT_STEP = 16 * PER_S  # two intervals of the heartbeat, and more


@pytest.mark.slow
@pytest.mark.fault
async def test_the_others_carry_what_one_middle_broker_does_not(tmp_path: Path) -> None:
    """Its links are reset, it cannot reach one leaf though the others can, it hangs: messages arrive meanwhile."""
    async with figure7(tmp_path, PER_S) as (tree, load):
        for name in INNERS:
            for leaf in LEAVES:
                tree.links[leaf, name].cut()
            await survive(tree, load)
        for name in INNERS:
            tree.links["sb1", name].cut(stays=True)
            await survive(tree, load)
            tree.links["sb1", name].heal()
            await tree.linked(name)
        for name in INNERS:
            tree.freeze(name)
            await survive(tree, load, name)
            tree.thaw(name)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", Way)
async def test_heartbeats_notice_a_link_that_loses_one_direction(tmp_path: Path, way: Way) -> None:
    """The messages arrive over other links meanwhile, and both ends hear that the link is lost."""
    async with figure7(tmp_path, PER_S) as (tree, load):
        for leaf, name in [("pb", "ib1"), ("pb", "ib2"), ("pb", "ib3"), ("sb2", "ib1")]:
            tree.links[leaf, name].lose(way)
            for _ in range(SILENT_STEP // STEP):
                await survive(tree, load)
            assert name not in tree.links_of(leaf)
            assert leaf not in tree.links_of(name)
            tree.links[leaf, name].heal()
            await tree.linked(name)


@pytest.mark.torture
async def test_slow_links_lose_nothing(tmp_path: Path) -> None:
    """Links that are late by up to 0.2 s each way, and narrower than the load, deliver everything in the end."""
    async with figure7(tmp_path, PER_S) as (tree, load):
        for number, link in enumerate(tree.links.values()):
            link.delay_s = 0.025 * number
        await load.confirm(4 * PER_S)
        await load.arrive("sb1", "sb2")
        for name in INNERS:
            tree.links["sb1", name].bytes_per_s = 100_000
        await load.confirm(4 * PER_S)
        tree.kill("ib1")
        await load.confirm(PER_S)
        for name in INNERS:
            tree.links["sb1", name].bytes_per_s = 0
        await tree.start("ib1")
