"""The shared store against a model: random calls of three nodes, which also die, leave and come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from typing import Any, ClassVar, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.cluster.invariants import violations
from tests.cluster.sql_session import Session, Share

Message = tuple[int, int, int]  # level, number, index
Value = TypeVar("Value")

NODES = ("a", "b", "c")
LEVELS = (1, 2, 3, 4)
LIMITED = (3, 4)  # two levels of a queue that rejects
MAX_LENGTH = 6
FREE = ""
TABLES = "slot, batch, member, beat, level, ring, consumer, keeper, producer, producer_run, orphan"

nodes = st.sampled_from(NODES)
chances = st.randoms(use_true_random=False)


class StoreMachine(RuleBasedStateMachine):
    """Keeps for each unsettled message who has it, whether it is redelivered and how often it was delivered."""

    runner: ClassVar[asyncio.Runner]
    connection: ClassVar[asyncpg.Connection]

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, Session] = {}
        self.holder: dict[Message, str] = {}
        self.counts_of: dict[Message, int] = {}
        self.length_of: dict[int, dict[int, int]] = {level: {} for level in LEVELS}
        self.seen: set[Message] = set()
        self.settled: set[Message] = set()
        self.latest: dict[str, tuple[list[Share], dict[str, Any]]] = {}
        self.outside = Session(self.connection)
        rings = self.run(self.outside.rows("SELECT ring FROM ring"))
        chunks = ", ".join(f"chunk_{row['ring']}" for row in rings)
        self.run(self.connection.execute(f"TRUNCATE {TABLES}, {chunks}"))
        self.run(self.connection.execute("UPDATE cluster SET ring = 0, generation = 1"))
        used = f"INSERT INTO ring SELECT i, i = 0 FROM generate_series(0, {len(rings) - 1}) i"
        self.run(self.connection.execute(used))
        for level in LIMITED:
            self.run(self.outside.value(f"SELECT set_level({level}, '/', 3, {MAX_LENGTH}, NULL, 'reject-publish')"))

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Wait for a call."""
        return self.runner.run(work)

    def held(self, node: str, of: range | tuple[int, ...] = LEVELS) -> list[Message]:
        """Return what the model says a holder has."""
        return sorted(message for message, holder in self.holder.items() if holder == node and message[0] in of)

    def some(self, random: Any, messages: list[Message]) -> list[Message]:
        """Return a random part of messages, often all of them or none."""
        share = random.choice((0.0, 0.3, 0.7, 1.0))
        return [message for message in messages if random.random() < share]

    def rows_of(self, messages: list[Message]) -> dict[tuple[int, int], str]:
        """Return the bits of messages by slot."""
        slots: dict[tuple[int, int], str] = {}
        for level, number, _ in messages:
            length = self.length_of[level][number]
            slots[level, number] = "".join(
                "1" if (level, number, index) in messages else "0" for index in range(length)
            )
        return slots

    def freed(self, node: str) -> None:
        """Record that a node is gone: what it held is free and redelivered."""
        for message in self.held(node):
            self.holder[message] = FREE
            self.seen.add(message)
        del self.members[node]
        self.latest.pop(node, None)

    # ---- members -----------------------------------------------------------------------------------------------------

    @rule(node=nodes)
    def join(self, node: str) -> None:
        """Join, unless the node is a member."""
        if node not in self.members:
            self.members[node] = self.run(Session(self.outside.connection).join(node))

    @precondition(lambda self: len(self.members) > 1)
    @rule(random=chances)
    def count_out(self, random: Any) -> None:
        """Count a member out, and hear that its calls are refused."""
        observer, dead = random.sample(sorted(self.members), 2)
        former = self.members[dead]
        assert self.run(self.members[observer].count_out(former))
        self.freed(dead)
        for call in (former.commit(Share(1, mine="1")), former.lease((1, 9)), former.held()):
            with pytest.raises(asyncpg.PostgresError) as raised:
                self.run(call)
            assert raised.value.sqlstate == "SQ001"

    @precondition(lambda self: self.members)
    @rule(random=chances)
    def leave(self, random: Any) -> None:
        """Leave without returning anything first."""
        node = random.choice(sorted(self.members))
        session = self.members[node]
        self.run(session.value("SELECT leave($1, $2)", session.node, session.epoch))
        self.freed(node)

    @precondition(lambda self: self.members)
    @rule(random=chances)
    def went_back(self, random: Any) -> None:
        """Miss a batch: every message of before is redelivered, and every node joins anew."""
        session = self.members[random.choice(sorted(self.members))]
        generation = self.run(session.value("SELECT generation FROM cluster"))
        missed = "SELECT generation FROM come_back($1, $2, 999, 0, $3, false)"
        assert self.run(session.value(missed, session.node, session.epoch, generation)) == generation + 1
        self.seen |= set(self.holder)
        for node in sorted(self.members):
            former = self.members[node]
            assert self.run(self.outside.value("SELECT count_out(NULL, NULL, $1, $2, 0)", node, former.epoch))
            self.freed(node)

    # ---- messages ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.members)
    @rule(random=chances)
    def commit(self, random: Any) -> None:
        """Publish to some levels, and settle some of what the node holds, in one call."""
        node = random.choice(sorted(self.members))
        shares = []
        for level in random.sample(LEVELS, random.randrange(4)):
            places = [random.choice("free mine acked".split()) for _ in range(random.randint(1, 5))]
            if level in LIMITED:
                places = ["free"] * len(places)
            free, mine = ("".join("01"[at == place] for at in places) for place in ("free", "mine"))
            shares.append(Share(level, free, mine))
        settled = self.some(random, self.held(node))
        settle = [(level, number, text) for (level, number), text in self.rows_of(settled).items()]
        done = self.run(self.members[node].commit(*shares, settle=settle))
        for message in settled:
            del self.holder[message]
            self.settled.add(message)
        ready = len(self.held(FREE, LIMITED))
        for place, share in enumerate(shares, 1):
            room = max(MAX_LENGTH - ready, 0) if share.level in LIMITED else share.count
            taken = min(share.count, room)
            refused = "0" * taken + "1" * (share.count - taken)
            assert done["refused"].get(place, "0" * share.count) == refused
            ready += taken if share.level in LIMITED else 0
            self.length_of[share.level][done["number"]] = share.count
            for index in range(taken):
                for text, holder in ((share.free, FREE), (share.mine, node)):
                    if text[index] == "1":
                        self.holder[share.level, done["number"], index] = holder
        self.latest[node] = (shares, done)

    @precondition(lambda self: self.latest)
    @rule(random=chances)
    def repeat(self, random: Any) -> None:
        """Send the newest call of a node again."""
        node = random.choice(sorted(self.latest))
        shares, done = self.latest[node]
        assert self.run(self.members[node].commit(*shares, sequence=self.members[node].sequence)) == done

    @precondition(lambda self: self.members)
    @rule(random=chances)
    def lease(self, random: Any) -> None:
        """Lease from some levels, and get the lowest free messages with what is known of them."""
        node = random.choice(sorted(self.members))
        free = {level: self.held(FREE, (level,)) for level in random.sample(LEVELS, random.randint(1, 4))}
        after = random.choice([0, 0, *(number for messages in free.values() for _, number, _ in messages)])
        asked = [(level, random.choice((0, 1, 2, 5, 100))) for level in free]
        rows = self.run(self.members[node].lease(*asked, after=after))
        leased = {
            (row["level"], row["number"], index): row
            for row in rows
            for index, bit in enumerate(row["bits"])
            if bit == "1"
        }
        wanted: list[Message] = []
        for level, room in asked:
            able = [message for message in free[level] if message[1] >= after]
            wanted += able[:room]
            last = [row for row in rows if row["level"] == level][-1:]
            assert [row["more"] for row in last] == [len(able) > room for _ in last]
        assert sorted(leased) == sorted(wanted)
        for message, row in leased.items():
            self.holder[message] = node
            self.check(message, row)

    def check(self, message: Message, row: dict[str, Any]) -> None:
        """Check what a row says of a message."""
        index = message[2]
        assert (row["seen"] is not None and row["seen"][index] == "1") == (message in self.seen), message
        counts = {} if row["counts"] is None else {int(k): v for k, v in delivery_counts(row["counts"]).items()}
        assert counts.get(index) == self.counts_of.get(message), message

    @precondition(lambda self: self.members)
    @rule(random=chances)
    def give_back(self, random: Any) -> None:
        """Return some of what a node holds, of which some was delivered."""
        node = random.choice(sorted(self.members))
        for (level, number), text in self.rows_of(self.some(random, self.held(node))).items():
            delivered = "".join(random.choice(("0", bit)) for bit in text)
            counts = {index: random.randint(1, 9) for index, bit in enumerate(delivered) if bit == "1"}
            self.run(self.members[node].give_back((level, number, text), seen=delivered, counts=counts or None))
            for index, bit in enumerate(text):
                if bit == "1":
                    self.holder[level, number, index] = FREE
            for index, count in counts.items():
                self.seen.add((level, number, index))
                self.counts_of[level, number, index] = count

    @precondition(lambda self: self.members)
    @rule(random=chances)
    def purge(self, random: Any) -> None:
        """Purge a level: what is free is gone."""
        session, level = self.members[random.choice(sorted(self.members))], random.choice(LEVELS)
        found = self.run(session.rows("SELECT * FROM purge($1, $2, $3)", session.node, session.epoch, [level]))
        gone = self.held(FREE, (level,))
        assert found == [{"level": level, "messages": len(gone)}]
        for message in gone:
            del self.holder[message]
            self.settled.add(message)

    @precondition(lambda self: self.members)
    @rule(random=chances)
    def turn_ring(self, random: Any) -> None:
        """Look after the ring, whose tables are full with a page."""
        session = self.members[random.choice(sorted(self.members))]
        self.run(session.value("SELECT turn_ring($1, $2, 8192)", session.node, session.epoch))

    # ---- checks ------------------------------------------------------------------------------------------------------

    @invariant()
    def tables_agree(self) -> None:
        """Every message of the model is in one row, of its holder, and the tables have no others."""
        rows = self.run(self.outside.rows("SELECT * FROM slot"))
        found = [
            ((row["level"], row["number"], index), row["holder"])
            for row in rows
            for index, bit in enumerate(row["bits"])
            if bit == "1"
        ]
        assert len(found) == len(set(found)) == len(self.holder)
        assert dict(found) == self.holder
        assert not self.settled & self.holder.keys()

    def teardown(self) -> None:
        """Check the invariants, which also look at the records."""
        assert self.run(violations(self.outside.connection)) == []


def delivery_counts(text: str) -> dict[str, int]:
    """Return the delivery counts of a row."""
    counts: dict[str, int] = json.loads(text)
    return counts


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Provide an event loop that outlives one call."""
    with asyncio.Runner() as runner:
        yield runner


def test_the_shared_store_agrees_with_its_model(postgres_url: str, schema: str, runner: asyncio.Runner) -> None:
    """Each message is in one place: none is lost, none that was settled returns, redelivered where it must be."""
    session = runner.run(Session.open(postgres_url, schema))
    StoreMachine.runner, StoreMachine.connection = runner, session.connection
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(max_examples=60, stateful_step_count=30, suppress_health_check=list(HealthCheck)),
    )
    runner.run(session.close())
