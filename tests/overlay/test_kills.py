"""Six real brokers under a steady load of 2,000 messages a second: processes die, freeze and come back.

Always: what was confirmed arrives, in order, and nothing comes twice unless it is marked as redelivered.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.overlay.figure7 import INNERS, Figure7, Load, figure7
from tests.overlay.steady_clients import BODY_BYTES

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
