"""Random calls of three nodes over six connections at once: no deadlock, nothing lost, and sound tables afterwards."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field

import asyncpg
import pytest

from tests.cluster.invariants import violations
from tests.cluster.sql_session import Session, Sessions, Share

CALLS = 120
LEVELS = (1, 2, 3, 4)
PURGED = 9
LIMITED = 4
DROPPED = 5  # it has limits, too, and what is too much is not dead-lettered
LIMITS = json.dumps(
    [
        {
            "level": level,
            "vhost": "/",
            "counter": level,
            "max_length": 8,
            "max_bytes": 60,
            "overflow": "drop-head",
            "single_active": False,
            "buries": level == LIMITED,
        }
        for level in (LIMITED, DROPPED)
    ]
)
KEEPING = {"due": "lease_due($1, $2, 10)", "excess": "lease_excess($1, $2)", "keep": "keep($1, $2)"}


@dataclass
class Node:
    """The knowledge shared by the two connections of a node."""

    name: str
    epoch: int = 0
    sequence: int = 0
    joining: asyncio.Lock = field(default_factory=asyncio.Lock)
    calling: asyncio.Lock = field(default_factory=asyncio.Lock)  # a node has one call in flight
    held: set[tuple[int, int, int, int]] = field(default_factory=set)  # level, number, index, length

    def take(self, chooser: random.Random) -> list[tuple[int, int, str]]:
        """Take some held messages, so that the other connection does not use them as well."""
        share = chooser.choice((0.2, 0.6, 1.0))
        taken = {message for message in sorted(self.held) if chooser.random() < share}
        self.held -= taken
        slots: dict[tuple[int, int, int], set[int]] = {}
        for level, number, index, length in taken:
            slots.setdefault((level, number, length), set()).add(index)
        chosen = [
            (level, number, "".join("01"[index in indexes] for index in range(length)))
            for (level, number, length), indexes in slots.items()
        ]
        chooser.shuffle(chosen)
        return chosen

    def got(self, level: int, number: int, text: str) -> None:
        """Record messages that the node has."""
        self.held |= {(level, number, index, len(text)) for index, bit in enumerate(text) if bit == "1"}


class Storm:
    """The calls of all connections, and what was published and settled."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.published: set[tuple[int, int, int]] = set()
        self.settling: set[tuple[int, int, int]] = set()
        self.fenced = 0

    async def one(self, session: Session, node: Node, chooser: random.Random) -> None:
        """Make one call, or join again where the node was counted out."""
        session.node, session.epoch = node.name, node.epoch
        try:
            await self.call(session, node, chooser)
        except asyncpg.PostgresError as error:
            assert error.sqlstate == "SQ001", repr(error)
            async with node.joining:
                if session.epoch == node.epoch:
                    self.fenced += 1
                    joined = await Session(session.connection).join(node.name)
                    node.epoch, node.sequence, node.held = joined.epoch, 0, set()

    async def call(self, session: Session, node: Node, chooser: random.Random) -> None:
        """Make a random call."""
        level = chooser.choice(LEVELS)
        some = chooser.sample(LEVELS, chooser.randint(1, 4))
        kind = chooser.choice(
            "commit commit commit lease lease lease give give beat ring keep keep limits due excess consumer purge "
            "sweep".split()
        )
        if kind == "commit":
            async with node.calling:
                await self.commit(session, node, chooser, some)
        elif kind == "lease":
            epoch = node.epoch
            asked = [*some, DROPPED]
            able = [chooser.choice((0, 5, 20)) for _ in asked]
            for row in await session.lease(*((each, chooser.randint(0, 9)) for each in asked), able=able):
                self.got(node, epoch, row)
        elif kind == "give":
            await session.give_back(*node.take(chooser))
        elif kind == "beat":
            await self.count_out(session, node, chooser)
        elif kind == "ring":
            await session.value("SELECT turn_ring($1, $2, 16384)", session.node, session.epoch)
        elif kind in KEEPING:
            epoch = node.epoch
            for row in await session.rows(f"SELECT * FROM {KEEPING[kind]}", session.node, session.epoch):
                if row["number"] is not None:
                    self.got(node, epoch, row)
        elif kind == "limits":
            await session.value("SELECT replace_limits($1, $2, '/', $3)", session.node, session.epoch, LIMITS)
        elif kind == "consumer":
            level = chooser.choice((level, DROPPED))
            verb = chooser.choice(("consumer_add($1, $2, $3, false)", "consumer_remove($1, $2, $3)"))
            await session.value(f"SELECT {verb}", session.node, session.epoch, level)
        else:
            await session.rows(f"SELECT {kind}($1, $2, $3)", session.node, session.epoch, [PURGED])

    @staticmethod
    def got(node: Node, epoch: int, row: dict[str, object]) -> None:
        """Record a leased row, unless the node is another epoch by now."""
        if node.epoch == epoch:
            node.got(row["level"], row["number"], row["bits"])  # type: ignore[arg-type]  # a row of the driver

    async def commit(self, session: Session, node: Node, chooser: random.Random, levels: list[int]) -> None:
        """Publish to some levels, and settle some messages."""
        node.sequence += 1
        epoch, shares = node.epoch, []
        for level in [*levels, DROPPED, PURGED]:
            places = [chooser.choice(("free", "mine", "acked")) for _ in range(chooser.randint(1, 6))]
            sizes = None
            if level in {LIMITED, DROPPED}:
                places = ["free"] * len(places)
                sizes = tuple(chooser.randint(1, 20) for _ in places)
            free, mine = ("".join("01"[at == place] for at in places) for place in ("free", "mine"))
            shares.append(Share(level, free, mine, due_at=chooser.choice((None, 5, 50)), sizes=sizes))
        settle = node.take(chooser)
        self.settling |= {(s, n, index) for s, n, text in settle for index, bit in enumerate(text) if bit == "1"}
        done = await session.commit(*shares, settle=settle, sequence=node.sequence, synchronous=chooser.random() < 0.8)
        for place, share in enumerate(shares, 1):
            if share.level in {PURGED, DROPPED}:
                continue
            refused = done["refused"].get(place, "0" * share.count)
            for index in range(share.count):
                if "1" in (share.free[index], share.mine[index]) and refused[index] == "0":
                    self.published.add((share.level, done["number"], index))
            if node.epoch == epoch:
                node.got(share.level, done["number"], share.mine)

    async def count_out(self, session: Session, node: Node, chooser: random.Random) -> None:
        """Beat, and now and then count someone out whose beats are known."""
        found = {row["node"]: row for row in await session.beat()}
        other = found.get(chooser.choice([each.name for each in self.nodes if each is not node]))
        if other is not None and chooser.random() < 0.4:
            await session.value(
                "SELECT count_out($1, $2, $3, $4, $5)",
                session.node, session.epoch, other["node"], other["epoch"], other["beats"],
            )  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_calls_at_once_leave_sound_tables(sessions: Sessions, seed: int) -> None:
    """All functions at once: the only errors are those of fenced nodes, and each message is where it must be."""
    nodes = [Node(name) for name in "abc"]
    storm = Storm(nodes)
    connections = []
    for node in nodes:
        calls, leases = await sessions(node.name), await sessions(node.name)
        node.epoch = calls.epoch
        connections += [(calls, node), (leases, node)]
    watch = connections[0][0]
    await watch.value("SELECT set_limits($1)", LIMITS)
    await watch.value("SELECT set_level(3, '/', NULL, NULL, NULL, NULL, true)")

    async def run(place: int, session: Session, node: Node) -> None:
        chooser = random.Random(f"{seed} {place}")
        for _ in range(CALLS):
            await storm.one(session, node, chooser)

    await asyncio.gather(*(run(place, session, node) for place, (session, node) in enumerate(connections)))

    assert await violations(watch.connection) == []
    await watch.value("UPDATE consumer SET room = 0")
    await watch.value("SELECT drop_excess($1)", [DROPPED])
    assert await watch.value("SELECT ready <= 8 AND bytes <= 60 FROM level WHERE level = $1", DROPPED)
    assert await violations(watch.connection) == []
    rows = await watch.rows("SELECT level, number, bits FROM slot WHERE NOT level = ANY ($1)", [PURGED, DROPPED])
    left = {(r["level"], r["number"], index) for r in rows for index, bit in enumerate(r["bits"]) if bit == "1"}
    assert storm.published - storm.settling <= left, "a message is lost"
    assert storm.fenced > 0  # 5 to 19 in forty runs
    assert await watch.value("SELECT count(*) FROM ring") > 2
