"""Nodes join, see each other, leave, and are counted out when they are dead."""

from __future__ import annotations

import pytest

from broker.cluster.errors import NameTaken
from tests.cluster.members import TestNode, until


async def test_nodes_see_each_other_until_one_leaves(postgres_url: str, schema: str) -> None:
    """Every node knows the others within a beat, also that one has left."""
    a, b = TestNode(postgres_url, "a", schema), TestNode(postgres_url, "b", schema)
    await a.node.start()
    await b.node.start()
    await until(lambda: a.names == b.names == ["a", "b"])
    assert a.node.epoch < b.node.epoch
    assert a.node.may_act() and b.node.may_act()
    await b.node.leave()
    assert not b.node.may_act()
    await until(lambda: a.names == ["a"])
    await a.node.leave()


async def test_the_name_of_a_living_node_is_refused(postgres_url: str, schema: str) -> None:
    """A second broker under the name of a living node does not start."""
    first, second = TestNode(postgres_url, "a", schema), TestNode(postgres_url, "a", schema)
    await first.node.start()
    with pytest.raises(NameTaken, match=r"another broker is the node a \(amqp://a\)"):
        await second.node.start()
    assert first.node.may_act()
    await first.node.leave()


async def test_a_dead_node_is_counted_out_and_its_name_can_be_used_again(postgres_url: str, schema: str) -> None:
    """A node that stopped without leaving is counted out by another one."""
    a, b, again = (TestNode(postgres_url, name, schema) for name in "aba")
    await a.node.start()
    await b.node.start()
    await until(lambda: b.names == ["a", "b"])
    await a.node.close()  # as after a kill: it does not leave
    await until(lambda: b.names == ["b"])
    await again.node.start()
    await until(lambda: b.names == ["a", "b"])
    await again.node.leave()
    await b.node.leave()


async def test_a_lone_node_that_was_killed_counts_out_its_former_epoch(postgres_url: str, schema: str) -> None:
    """A restarted broker does not wait for other nodes."""
    dead, again = TestNode(postgres_url, "a", schema), TestNode(postgres_url, "a", schema)
    await dead.node.start()
    await dead.node.close()
    await again.node.start()
    assert again.node.epoch > dead.node.epoch
    assert again.node.may_act()
    await again.node.leave()
