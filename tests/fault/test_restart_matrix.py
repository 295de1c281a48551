"""Exactly the right queues, exchanges, bindings, messages and policies exist after a stop or a kill."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

import pika
import pytest

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.conftest import ORACLE_URL
from tests.deadline import wait_until
from tests.fault.restart_world import EXCHANGES, QUEUES, TYPES, Binding, Found, build, look
from tests.integration.pika.conversation import parameters

pytestmark = [pytest.mark.fault, pytest.mark.slow]

OF_RULES = {
    "levels",
    "dead",
    "expiring",
    "aging",
    "policed",
    "used",
    "purged",
    "again",
    "amq.delayed.type-x-delayed-message",
}
SURVIVING_QUEUES = [name for name, durable, exclusive, _ in QUEUES if durable and not exclusive]
SURVIVING_EXCHANGES = [name for name, durable, *_ in EXCHANGES if durable]


@dataclass
class Restarted:
    """The state found after the first end of the broker, and after a second one of the other kind."""

    killed: bool
    first: Found
    second: Found


def end(broker: BrokerProcess, connection: pika.BlockingConnection, *, kill: bool) -> None:
    """End the broker by SIGKILL, or cleanly and without an error; a connected client reads its close."""
    if kill:
        broker.kill()
    else:
        broker.running.send_signal(signal.SIGTERM)
    with suppress(pika.exceptions.AMQPError):
        while connection.is_open:
            connection.process_data_events(time_limit=1)
    if not kill:
        assert broker.wait() == 0
        assert broker.errors() == []


def settled(broker: BrokerProcess) -> bool:
    """Return whether messages that fell due during the downtime have arrived."""
    rows = {row["name"]: row["messages"] for row in ask(broker.folder, "list_queues")}
    return bool(rows["dead"] == 2 and rows["expiring"] == 1)


@pytest.fixture(scope="module", params=[False, True], ids=["stopped", "killed"])
def restarted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    """Provide a world that went through two ends of the broker."""
    if ORACLE_URL:
        pytest.skip("starts and kills its own broker")
    broker = BrokerProcess(tmp_path_factory.mktemp("matrix") / "folder").start()
    found = []
    try:
        connection = pika.BlockingConnection(parameters(broker.address))
        build(broker, connection.channel())
        for kill in (request.param, not request.param):
            end(broker, connection, kill=kill)
            broker.start()
            wait_until(lambda: settled(broker), "what fell due meanwhile")
            found.append(look(broker))
        yield Restarted(request.param, *found)
    finally:
        broker.kill()


@pytest.fixture(params=["first", "second"])
def found(request: pytest.FixtureRequest, restarted: Restarted) -> Found:
    """Provide what was found after one of the ends; the other end may neither lose nor restore anything."""
    looked: Found = getattr(restarted, request.param)
    return looked


def test_queues(found: Found) -> None:
    """Durable queues that are not exclusive survive, including auto-delete queues, and no others."""
    assert found.queues.keys() == {*SURVIVING_QUEUES, *OF_RULES}
    assert found.queues["queue-durable-shared-auto"]["auto_delete"] is True
    assert found.queues["aging"]["arguments"] == {"x-message-ttl": 3_600_000, "x-max-length": 2, "x-unknown": "kept"}


def test_exchanges(found: Found) -> None:
    """Durable exchanges survive with their types and arguments, beside the predefined ones only."""
    mine = {name: row for name, row in found.exchanges.items() if name and not name.startswith("amq.")}
    assert mine.keys() == {*SURVIVING_EXCHANGES, *(f"type-{kind}" for kind in TYPES)}
    assert {name: row["arguments"] for name, row in mine.items() if name.startswith("type-")} == {
        f"type-{kind}": arguments for kind, arguments in TYPES.items()
    }
    for name, _, auto, internal in EXCHANGES:
        if name in mine:
            assert (mine[name]["auto_delete"], mine[name]["internal"]) == (auto, internal)


def test_bindings(found: Found) -> None:
    """Bindings between durable objects survive, to queues and to exchanges, and no others."""
    expected: list[Binding] = [("type-x-delayed-message", "queue", "dead", "delayed.#")]
    expected += [
        (exchange, "queue", queue, "a.#") for exchange, queue in product(SURVIVING_EXCHANGES, SURVIVING_QUEUES)
    ]
    expected += [
        (source, "exchange", destination, "e2e.*")
        for source, destination in product(SURVIVING_EXCHANGES, repeat=2)
        if source != destination
    ]
    assert found.bindings == sorted(expected)


def test_messages(found: Found) -> None:
    """Persistent messages of surviving queues exist once and in order; transient ones are gone."""
    for name in SURVIVING_QUEUES:
        last = ["last"] if name == "queue-durable-shared-stays" else []
        assert found.bodies(name) == ["persistent 1", "persistent 2", *last]


def test_redelivery_marks(restarted: Restarted) -> None:
    """After a stop only messages delivered before are redelivered; after a kill or a first fetch, all are."""
    marks = [redelivered for _, redelivered in restarted.first.messages["queue-durable-shared-stays"]]
    assert marks == [restarted.killed] * 3
    assert restarted.first.messages["used"] == [("requeued", True), ("unacked", True), ("fresh", restarted.killed)]
    assert all(redelivered for _, redelivered in restarted.second.messages["used"])


def test_priorities(found: Found) -> None:
    """Messages keep their priorities, and their order within one."""
    assert found.bodies("levels") == ["priority 5", "priority 5", "priority 3", "priority 1", "priority 0"]


def test_times(found: Found) -> None:
    """Messages that fell due during the downtime are dead-lettered or delivered; those that are due later wait."""
    assert sorted(found.bodies("dead")) == ["delay soon", "soon"]
    assert found.bodies("expiring") == ["later"]
    assert found.queues["amq.delayed.type-x-delayed-message"]["messages"] == 2


def test_rules(found: Found) -> None:
    """Messages that a limit dropped stay dropped; policies survive, except a deleted one."""
    assert found.bodies("aging") == ["kept 1", "kept 2"]
    assert found.bodies("policed") == ["c", "d"]
    assert found.policies.keys() == {"length", "stricter"}
    assert (found.queues["policed"]["policy"], found.queues["policed"]["operator_policy"]) == ("length", "stricter")


def test_settled_messages(found: Found) -> None:
    """Messages that were acked, purged or deleted with their queue do not come back."""
    assert found.bodies("used") == ["requeued", "unacked", "fresh"]
    assert found.bodies("purged") == ["kept"]
    assert found.bodies("again") == ["kept"]


def test_vhosts(found: Found) -> None:
    """A vhost exists until it is deleted."""
    assert found.vhosts == {"/", "kept"}
