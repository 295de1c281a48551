"""Six real brokers under a steady load of 2,000 messages a second, whose links break in the ways of networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.overlay.figure7 import INNERS, LEAVES, figure7
from tests.overlay.test_kills import PER_S, STEP, survive
from tools.link_proxy import Way

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
