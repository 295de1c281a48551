"""Messages on their way through dead-letter exchanges, delays and transactions, and brokers that die meanwhile.

No message is finally acked here: a message that leaves a queue is dead-lettered, released or moved in a transaction.
Therefore each confirmed message is somewhere after any accident, and in exactly one place when the broker did not
die.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pytest
from pamqp import commands

from broker.core.policy.policy import Policy
from broker.server import BrokerServer
from broker.store.damage import StoreFailed
from tests.deadline import wait_until_async
from tests.fault.broker_clients import Client
from tests.fault.broker_life import Life, new_disk, new_history
from tests.fault.faulty_files import FaultyFiles, PowerLost
from tests.raw_client import PeerGone, publish_frames

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("quiet")]

Basic, Exchange, Queue, Tx = commands.Basic, commands.Exchange, commands.Queue, commands.Tx

LIVES: Final = 3
MOMENTS_MAX: Final = 40
DEAD: Final = "dead"
ARCHIVE: Final = "archive"
LATE: Final = "late"
INTO: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
SOURCES: Final[dict[str, dict[str, Any]]] = {
    "brief": INTO | {"x-message-ttl": 10},
    "short": INTO | {"x-max-length": 5},
    "small": INTO | {"x-max-length-bytes": 400},
    "levels": INTO | {"x-max-length": 8, "x-max-priority": 2},
    "worn": INTO | {"x-queue-type": "quorum", "x-delivery-limit": 1},
    "refused": INTO,
    "chain": {"x-max-length": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "short"},
}
POLICIES: Final[tuple[dict[str, Any], ...]] = ({"max-length": 2}, {"message-ttl": 5}, {"max-length-bytes": 90})


@dataclass
class Journey:
    """The published and the confirmed messages, by number, over all lives."""

    sent: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)

    def verify(self, places: dict[str, Counter[int]], context: str, *, once: bool = False) -> None:
        """Assert that no confirmed message is missing, none came from nowhere, and none exists twice."""
        there = sum(places.values(), Counter[int]())
        lost = sorted(self.confirmed - there.keys())
        assert not lost, f"{context}: {len(lost)} lost, first {lost[:5]}"
        assert not there.keys() - self.sent, f"{context}: never sent"
        if once:
            twice = {number: [at for at in places if number in places[at]] for number in there if there[number] > 1}
            assert not twice, f"{context}: twice {twice}"


def prepare(client: Client) -> None:
    """Declare the topology."""
    raw = client.raw
    table: Any = {"x-delayed-type": "fanout"}
    exchange = Exchange.Declare(exchange=LATE, exchange_type="x-delayed-message", durable=True, arguments=table)
    raw.call(1, exchange, Exchange.DeclareOk)
    for queue in (DEAD, ARCHIVE):
        raw.declare_queue(1, queue, durable=True)
    for queue, arguments in SOURCES.items():
        raw.declare_queue(1, queue, durable=True, arguments=arguments)
    raw.call(1, Queue.Bind(queue="refused", exchange=LATE), Queue.BindOk)


def publishing(journey: Journey) -> Callable[[Client], None]:
    """Return a job that publishes bursts and waits for their confirms."""
    published = 0

    def publish(client: Client) -> None:
        nonlocal published
        random, raw = client.random, client.raw
        numbers = []
        for _ in range(random.randint(1, 20)):
            number = len(journey.sent) * 2 + int(client.name[-1])
            journey.sent.add(number)
            numbers.append(number)
            headers: dict[str, Any] = {"x-delay": random.randint(1, 20)} if random.random() < 0.2 else {}
            exchange, key = (LATE, "") if headers else ("", random.choice(list(SOURCES)))
            properties = Basic.Properties(
                delivery_mode=2,
                priority=random.randint(0, 2),
                expiration=random.choice((None, None, "1", "30")),
                headers=headers,
            )
            body = b"%d " % number + bytes(random.choice((0, 50, 300)))
            raw.send(publish_frames(1, exchange, key, body, properties=properties))
        first, published = published, published + len(numbers)
        upto = first
        while upto < published:
            answer = raw.next().value
            if not isinstance(answer, Basic.Ack):
                raise PeerGone(repr(answer))
            journey.confirmed.update(numbers[upto - first : (answer.delivery_tag or 0) - first])
            upto = answer.delivery_tag or 0

    return publish


def return_some(client: Client) -> None:
    """Fetch from a queue and requeue or reject the messages."""
    raw, random = client.raw, client.random
    raw.method(1, Basic.Get(queue=random.choice(("worn", "refused", "levels", "worn", "refused"))))
    got = raw.next().value
    if isinstance(got, Basic.GetOk):
        raw.expect_content(1)
        raw.method(1, Basic.Nack(got.delivery_tag or 0, False, random.random() < 0.6))
    elif not isinstance(got, Basic.GetEmpty):
        raise PeerGone(repr(got))


def moving() -> Callable[[Client], None]:
    """Return a job that moves messages from the dead letters to the archive, a few in each transaction."""
    selected = False

    def move(client: Client) -> None:
        nonlocal selected
        raw, random = client.raw, client.random
        if not selected:
            raw.open_channel(2)
            raw.call(2, Tx.Select(), Tx.SelectOk)
            selected = True
        for _ in range(random.randint(1, 6)):
            raw.method(2, Basic.Get(queue=DEAD))
            got = raw.next().value
            if not isinstance(got, Basic.GetOk):
                break
            _, body = raw.expect_content(2)
            raw.send(publish_frames(2, "", ARCHIVE, body, properties=Basic.Properties(delivery_mode=2)))
            raw.method(2, Basic.Ack(got.delivery_tag or 0))
        raw.method(2, Tx.Commit() if random.random() < 0.8 else Tx.Rollback())
        answer = raw.next().value
        if isinstance(answer, Tx.RollbackOk):
            raw.call(2, Basic.Recover(requeue=True), Basic.RecoverOk)
        elif not isinstance(answer, Tx.CommitOk):
            raise PeerGone(repr(answer))

    return move


async def work(life: Life, journey: Journey, moments: int) -> None:
    """Run all jobs until the broker dies, or for this many moments."""
    over = False

    def forever(act: Callable[[Client], None]) -> Callable[[Client], None]:
        def again(client: Client) -> None:
            while not over and not life.failed:
                act(client)

        return again

    roles = {
        "publisher-0": publishing(journey),
        "publisher-1": publishing(journey),
        "consumer": return_some,
        "mover": moving(),
    }
    clients = [asyncio.ensure_future(life.say(forever(act), name)) for name, act in roles.items() if not life.failed]
    for _ in range(moments):
        await asyncio.sleep(life.random.choice((0, 0.001, 0.01)))
        if life.failed:
            break
        life.moment()
        change_policy(life)
    over = True
    await asyncio.gather(*clients)


def change_policy(life: Life) -> None:
    """Set another policy occasionally."""
    policies = life.broker.engines["/"].vhost.policies
    try:
        if life.random.random() < 0.2:
            pattern = f"^{life.random.choice(list(SOURCES))}$"
            policies.set(Policy("p", pattern, "queues", life.random.choice(POLICIES), 0))
        elif life.random.random() < 0.1:
            policies.clear("p")
    except (PowerLost, StoreFailed) as error:
        life.broker._fail(error)


async def look(broker: BrokerServer) -> dict[str, Counter[int]]:
    """Return the numbers of the messages in each queue at one moment, wherever they are stored."""
    engine = broker.engines["/"]
    engine.pager.budget_bytes = 1 << 30

    async def in_memory() -> bool:
        missing = [
            (stream, slot)
            for queue in engine.vhost.queues.values()
            for stream in queue.levels
            for slot in stream.manager.slots.values()
            if slot.contents is None
        ]
        for stream, slot in missing:
            engine.reader.read(stream, slot, lambda: None)
        return not missing

    await wait_until_async(in_memory, "the messages on disk")
    return {
        queue.name: Counter(
            int(slot.contents[index].body.split(b" ")[0])
            for stream in queue.levels
            for slot in stream.manager.slots.values()
            for index in slot.acks.unsettled(0, slot.length)
            if slot.contents is not None
        )
        for queue in engine.vhost.queues.values()
    }


async def recover(disk: FaultyFiles, random: Random, journey: Journey, context: str) -> Life:
    """Start a broker on the remaining files, and check that everything is there."""
    disk.lose_at = 0
    life = Life(disk, new_history(), random)
    assert await life.begin()
    journey.verify(await look(life.broker), context)
    return life


async def live_and_die(seed: int) -> dict[str, int]:
    """Start and kill a broker several times on one disk; return where the messages were in the end."""
    random, journey, disk = Random(seed), Journey(), new_disk()
    life = Life(disk, new_history(), random)
    assert await life.begin()
    await life.say(prepare, "prepare")
    places: dict[str, Counter[int]] = {}
    for number in range(LIVES):
        if random.random() < 0.7:
            disk.lose_at = disk.calls + random.randint(1, 1000)
        await work(life, journey, random.randint(1, MOMENTS_MAX))
        await life.kill()
        disk = disk.after_loss(seed * LIVES + number) if random.random() < 0.8 else disk.after_kill()
        life = await recover(disk, random, journey, f"seed {seed}, life {number}")
        places = await look(life.broker)
        disk = life.files.disk
    await life.kill()
    return {name: len(numbers) for name, numbers in places.items()}


@pytest.mark.slow
async def test_what_was_confirmed_is_somewhere_after_any_death() -> None:
    """A dead letter, a delayed message or a moved message is at its source or at its target."""
    found: Counter[str] = Counter()
    for seed in range(8):
        found.update(await live_and_die(seed))
    assert found[DEAD], "the scenario is too tame"
    assert found[ARCHIVE], "the scenario is too tame"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_without_a_death_each_is_in_one_place(seed: int) -> None:
    """Without a death, no message is both dead-lettered and in its old queue, while running or after a clean stop."""
    random, journey, disk = Random(seed), Journey(), new_disk()
    life = Life(disk, new_history(), random)
    assert await life.begin()
    await life.say(prepare, "prepare")
    await work(life, journey, 60)
    assert not life.failed
    journey.verify(await look(life.broker), "running", once=True)
    await life.stop()
    life = Life(disk, new_history(), random)
    assert await life.begin()
    journey.verify(await look(life.broker), "started again", once=True)
    await life.stop()


@pytest.mark.torture
@pytest.mark.timeout(0)
async def test_what_was_confirmed_is_somewhere_after_thousands_of_deaths() -> None:
    """Confirmed messages are at their source or target after thousands of deaths."""
    for seed in range(1_000, 2_000):
        await live_and_die(seed)
