"""Numbered publishes, retried through full queues, transactions and broker deaths: each number counts once."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pytest
from pamqp import commands

from tests.fault.broker_clients import Client
from tests.fault.broker_history import History
from tests.fault.broker_life import Life, new_disk
from tests.raw_client import PeerGone, publish_frames

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("quiet")]

SEEDS: Final = range(12)
TORTURE_SEEDS: Final = range(1_000, 2_000)
LIVES: Final = 4
STEPS: Final = 400
NUMBERS: Final = 60  # for each producer
PRODUCERS: Final = ("p", "q")
FANOUT, ROOMY, TIGHT = "all", "roomy", "tight"
Number = tuple[str, int]


@dataclass
class Ledger:
    """The facts about each number, over all lives. Shapes: `arrived` holds, by queue, the attempts at each number that
    were seen in it.
    """

    acked: set[Number] = field(default_factory=set)
    attempts: int = 0
    nacks: int = 0
    repeats: int = 0
    commits: int = 0
    arrived: dict[str, dict[Number, set[int]]] = field(default_factory=lambda: {ROOMY: {}, TIGHT: {}})

    def body(self, number: Number) -> bytes:
        """Return the body of another attempt at a number."""
        self.attempts += 1
        self.repeats += number in self.acked
        return f"{number[0]} {number[1]} {self.attempts}".encode() + b"." * 40

    def saw(self, queue: str, body: bytes) -> None:
        """Record a message of a queue."""
        producer, sequence, attempt = body.rstrip(b".").decode().split(" ")
        self.arrived[queue].setdefault((producer, int(sequence)), set()).add(int(attempt))

    def died(self) -> None:
        """Forget unconfirmed messages that were seen: a broker delivers before it syncs, so they may not be on disk."""
        for queue, numbers in self.arrived.items():
            self.arrived[queue] = {number: seen for number, seen in numbers.items() if number in self.acked}


class Talk:
    """One client: a channel with confirms, one with transactions, and a queue that is usually full."""

    def __init__(self, client: Client, ledger: Ledger, random: Random) -> None:
        self.raw = client.raw
        self.ledger = ledger
        self.random = random
        self.pending: deque[Number] = deque()
        self.tag = 0

    def prepare(self) -> None:
        """Declare the topology and open the second channel."""
        tight: dict[str, Any] = {"x-max-length": 3, "x-overflow": "reject-publish"}
        self.call(1, commands.Exchange.Declare(exchange=FANOUT, exchange_type="fanout", durable=True))
        for queue, arguments in ((ROOMY, None), (TIGHT, tight)):
            self.call(1, commands.Queue.Declare(queue=queue, durable=True, arguments=arguments))
            self.call(1, commands.Queue.Bind(queue=queue, exchange=FANOUT))
        self.call(2, commands.Channel.Open())
        self.call(2, commands.Tx.Select())

    def call(self, channel: int, method: Any) -> Any:
        """Return the reply to a method, after recording the confirms that arrive before it."""
        self.raw.method(channel, method)
        while (value := self.pump()) is None:
            pass
        return value

    def pump(self) -> Any:
        """Read one frame; return None for a confirm."""
        value = self.raw.next().value
        if isinstance(value, commands.Basic.Ack | commands.Basic.Nack):
            while self.tag < (value.delivery_tag or 0):
                self.tag += 1
                number = self.pending.popleft()
                if isinstance(value, commands.Basic.Ack):
                    self.ledger.acked.add(number)
                else:
                    assert number not in self.ledger.acked, f"{number} was confirmed, and refused when it came again"
                    self.ledger.nacks += 1
            return None
        if isinstance(value, commands.Connection.Close):
            raise PeerGone(value.reply_text)
        return value

    def send(self, channel: int, number: Number) -> None:
        """Publish a number to all queues."""
        headers: dict[str, Any] = {"x-producer": number[0], "x-seq": number[1]}
        properties = commands.Basic.Properties(delivery_mode=2, headers=headers)
        self.raw.send(publish_frames(channel, FANOUT, "", self.ledger.body(number), properties=properties))

    def publish(self, number: Number) -> None:
        """Publish a number without waiting for its confirm."""
        self.pending.append(number)
        self.send(1, number)

    def commit(self, numbers: list[Number]) -> None:
        """Commit numbers in a transaction, which does nothing unless all of them fit."""
        for number in numbers:
            self.send(2, number)
        answer = self.call(2, commands.Tx.Commit())
        if isinstance(answer, commands.Tx.CommitOk):
            self.ledger.acked.update(numbers)
            self.ledger.commits += 1
        else:
            assert isinstance(answer, commands.Channel.Close) and answer.reply_text.endswith("partial tx completion")
            self.raw.method(2, commands.Channel.CloseOk())
            self.call(2, commands.Channel.Open())
            self.call(2, commands.Tx.Select())

    def take(self, queue: str, most: int) -> int:
        """Consume messages of a queue for good, and return how many."""
        for count in range(most):
            answer = self.call(1, commands.Basic.Get(queue=queue, no_ack=True))
            if isinstance(answer, commands.Basic.GetEmpty):
                return count
            self.ledger.saw(queue, self.raw.expect_content(1)[1])
        return most

    def settle(self) -> None:
        """Wait for every confirm."""
        while self.pending:
            assert self.pump() is None

    def number(self) -> Number:
        """Return a number: usually a new one, sometimes an old one."""
        return self.random.choice(PRODUCERS), self.random.randrange(NUMBERS)

    def work(self) -> None:
        """Publish, retry, commit and consume at random."""
        self.prepare()
        for _ in range(STEPS):
            match self.random.randrange(12):
                case 0 | 1 | 2:
                    self.take(TIGHT, self.random.randint(1, 4))
                case 3:
                    self.commit([self.number() for _ in range(self.random.randint(1, 3))])
                case 4:
                    self.settle()
                case _:
                    self.publish(self.number())

    def finish(self) -> None:
        """Publish every number until it is confirmed, publish it once more, and read the queues."""
        self.prepare()
        numbers = [(producer, sequence) for producer in PRODUCERS for sequence in range(NUMBERS)]
        self.random.shuffle(numbers)
        for number in numbers * 2:
            self.take(TIGHT, 4)
            self.publish(number)
            self.settle()
            assert number in self.ledger.acked, f"{number} found no room"
        for queue in (TIGHT, ROOMY):
            while self.take(queue, 100):
                pass


async def live_and_die(seed: int) -> Ledger:
    """Start and kill a broker several times; check what its clients saw at the end."""
    random, ledger, disk = Random(seed), Ledger(), new_disk()
    for number in range(LIVES):
        disk.lose_at = disk.calls + random.randint(1, 600) if random.random() < 0.7 else 0
        life = Life(disk, History({}), random)
        if await life.begin():
            await converse(life, ledger, Talk.work)
            await life.kill()
        ledger.died()
        disk = disk.after_loss(seed * LIVES + number) if random.random() < 0.8 else disk.after_kill()
    disk.lose_at = 0
    life = Life(disk, History({}), random)
    assert await life.begin()
    await converse(life, ledger, Talk.finish)
    await life.kill()
    return ledger


async def converse(life: Life, ledger: Ledger, what: Any) -> None:
    """Run one client while the broker takes checkpoints."""
    talk = asyncio.ensure_future(life.say(lambda client: what(Talk(client, ledger, client.random)), "producer"))
    while not talk.done():
        await asyncio.wait([talk], timeout=0.005)
        if not life.failed:
            life.moment()
    talk.result()


def check(ledger: Ledger, seed: int) -> None:
    """Assert that each number arrived once in each queue."""
    for queue, numbers in ledger.arrived.items():
        twice = {number: attempts for number, attempts in numbers.items() if len(attempts) > 1}
        assert not twice, f"seed {seed}: twice in {queue}: {twice}"
    missing = ledger.acked - ledger.arrived[ROOMY].keys()
    assert not missing, f"seed {seed}: confirmed and missing: {missing}"


@pytest.mark.slow
@pytest.mark.parametrize("threes", range(len(SEEDS) // 3))
async def test_each_number_counts_once(threes: int) -> None:
    """Whatever is retried and whenever the broker dies, no number is in a queue twice and no confirmed one missing."""
    did: Counter[str] = Counter()
    for seed in SEEDS[threes * 3 : threes * 3 + 3]:
        ledger = await live_and_die(seed)
        check(ledger, seed)
        did.update(nacks=ledger.nacks, repeats=ledger.repeats, commits=ledger.commits)
    assert all(did[name] for name in ("nacks", "repeats", "commits")), f"the scenario is too tame: {did}"


@pytest.mark.torture
@pytest.mark.timeout(0)
async def test_each_number_counts_once_through_thousands_of_deaths() -> None:
    """Each number counts once through thousands of deaths of the broker."""
    for seed in TORTURE_SEEDS:
        check(await live_and_die(seed), seed)
