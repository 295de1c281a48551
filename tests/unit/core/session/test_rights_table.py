"""The rights of each operation: one table, and each operation with every subset of its rights.

Order and texts: RabbitMQ, rabbit_channel. A passive declare needs at least one right, which is stricter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

import pytest
from pamqp import commands

from broker.core.auth.permissions import KINDS, Kind
from tests.raw_client import publish_frames
from tests.unit.core.room import Client, Room, describe

Frames = Callable[[Client], list[str]]
Need = tuple[Kind, str]


class Operation(NamedTuple):
    """An operation of a client: the rights that it needs, in the order of the checks, and the kind of each name."""

    name: str
    does: Frames
    needs: tuple[Need, ...]


def says(method: Any) -> Frames:
    """Return a call that sends a method."""
    return lambda client: [describe(answer) for _, answer in client.tell(1, method)]


def publishes(exchange: str, key: str, **properties: Any) -> Frames:
    """Return a call that publishes."""
    frames = publish_frames(1, exchange, key, b"body", properties=commands.Basic.Properties(**properties))

    def publish(client: Client) -> list[str]:
        client.machine.feed(frames)
        return [describe(answer) for _, answer in client.replies()]

    return publish


X, Q, B = commands.Exchange, commands.Queue, commands.Basic
DLX: Final[dict[str, Any]] = {"x-dead-letter-exchange": "dlx"}
AE: Final[dict[str, Any]] = {"alternate-exchange": "ae"}
CC: Final[dict[str, Any]] = {"CC": ["b"], "BCC": ["c"]}

OPERATIONS: Final = (
    Operation("declare exchange", says(X.Declare(exchange="new")), (("configure", "exchange new"),)),
    Operation("declare exchange again", says(X.Declare(exchange="x")), (("configure", "exchange x"),)),
    Operation(
        "declare exchange with alternate",
        says(X.Declare(exchange="new", arguments=AE)),
        (("configure", "exchange new"), ("read", "exchange new"), ("write", "exchange ae")),
    ),
    Operation(
        "declare exchange with default alternate",
        says(X.Declare(exchange="new", arguments={"alternate-exchange": ""})),
        (("configure", "exchange new"), ("read", "exchange new"), ("write", "exchange amq.default")),
    ),
    Operation(
        "declare exchange with alternate again",
        says(X.Declare(exchange="alternated", arguments=AE)),
        (("configure", "exchange alternated"),),
    ),
    Operation("delete exchange", says(X.Delete(exchange="x")), (("configure", "exchange x"),)),
    Operation("delete no exchange", says(X.Delete(exchange="none")), (("configure", "exchange none"),)),
    Operation(
        "bind exchange",
        says(X.Bind(destination="d", source="x", routing_key="k")),
        (("write", "exchange d"), ("read", "exchange x")),
    ),
    Operation(
        "unbind exchange",
        says(X.Unbind(destination="d", source="x", routing_key="k")),
        (("write", "exchange d"), ("read", "exchange x")),
    ),
    Operation(
        "bind exchange to topic",
        says(X.Bind(destination="d", source="topics", routing_key="a")),
        (("write", "exchange d"), ("read", "exchange topics"), ("read", "topic a")),
    ),
    Operation("declare queue", says(Q.Declare(queue="new")), (("configure", "queue new"),)),
    Operation("declare queue again", says(Q.Declare(queue="q")), (("configure", "queue q"),)),
    Operation("declare nameless queue", says(Q.Declare()), (("configure", "queue amq.gen-*"),)),
    Operation(
        "declare queue with dead letters",
        says(Q.Declare(queue="new", arguments=DLX)),
        (("configure", "queue new"), ("read", "queue new"), ("write", "exchange dlx")),
    ),
    Operation(
        "declare queue with dead letters to the default exchange",
        says(Q.Declare(queue="new", arguments={"x-dead-letter-exchange": ""})),
        (("configure", "queue new"), ("read", "queue new"), ("write", "exchange amq.default")),
    ),
    Operation(
        "declare queue with dead letters again",
        says(Q.Declare(queue="mortal", arguments=DLX)),
        (("configure", "queue mortal"),),
    ),
    Operation("delete queue", says(Q.Delete(queue="q")), (("configure", "queue q"),)),
    Operation("delete no queue", says(Q.Delete(queue="none")), (("configure", "queue none"),)),
    Operation("purge", says(Q.Purge(queue="q")), (("read", "queue q"),)),
    Operation(
        "purge what is delayed", says(Q.Purge(queue="amq.delayed.later")), (("read", "queue amq.delayed.later"),)
    ),
    Operation(
        "bind queue",
        says(Q.Bind(queue="q", exchange="x", routing_key="k")),
        (("write", "queue q"), ("read", "exchange x")),
    ),
    Operation(
        "unbind queue",
        says(Q.Unbind(queue="q", exchange="x", routing_key="k")),
        (("write", "queue q"), ("read", "exchange x")),
    ),
    Operation(
        "bind queue to topic",
        says(Q.Bind(queue="q", exchange="topics", routing_key="a")),
        (("write", "queue q"), ("read", "exchange topics"), ("read", "topic a")),
    ),
    Operation(
        "unbind queue from topic",
        says(Q.Unbind(queue="q", exchange="topics", routing_key="a")),
        (("write", "queue q"), ("read", "exchange topics"), ("read", "topic a")),
    ),
    Operation("consume", says(B.Consume(queue="q")), (("read", "queue q"),)),
    Operation("get", says(B.Get(queue="q")), (("read", "queue q"),)),
    Operation("publish", publishes("x", "k"), (("write", "exchange x"),)),
    Operation("publish to a queue", publishes("", "q"), (("write", "exchange amq.default"),)),
    Operation("publish to a topic", publishes("topics", "a"), (("write", "exchange topics"), ("write", "topic a"))),
    Operation(
        "publish to more topics",
        publishes("topics", "a", headers=CC),
        (("write", "exchange topics"), ("write", "topic a"), ("write", "topic b"), ("write", "topic c")),
    ),
    Operation("publish with more keys", publishes("x", "a", headers=CC), (("write", "exchange x"),)),
    Operation("delay", publishes("later", "a", headers={"x-delay": 5}), (("write", "exchange later"),)),
    Operation("wait for answers", says(B.Consume(queue="amq.rabbitmq.reply-to", no_ack=True)), ()),
    Operation("limit deliveries", says(B.Qos(prefetch_count=1)), ()),
    Operation("begin a transaction", says(commands.Tx.Select()), ()),
)


def room() -> Room:
    """Return a vhost with everything that the operations use."""
    made = Room()
    client = made.enter()
    arguments: Any
    for name, kind, arguments in (
        ("x", "direct", None), ("d", "fanout", None), ("topics", "topic", None), ("alternated", "direct", AE),
        ("later", "x-delayed-message", {"x-delayed-type": "direct"}),
    ):  # fmt: skip
        client.call(1, X.Declare(exchange=name, exchange_type=kind, arguments=arguments), X.DeclareOk)
    client.call(1, Q.Declare(queue="q"), Q.DeclareOk)
    client.call(1, Q.Declare(queue="mortal", arguments=DLX), Q.DeclareOk)
    return made


def pattern(granted: set[Need], kind: Kind, *, topics: bool = False) -> str:
    """Return the expression that grants only these names."""
    names = [name.partition(" ") for which, name in granted if which == kind and name.startswith("topic ") == topics]
    return "^(" + "|".join(expression(name) for _, _, name in names) + ")$"


def expression(name: str) -> str:
    """Return an expression that matches a name; a star in the name matches anything."""
    return re.escape(name).replace("\\*", ".*")


def enter(made: Room, granted: set[Need]) -> Client:
    """Return a client of a user with only these rights."""
    client = made.enter_without_rights()
    client.permissions.set("bob", "/", *(pattern(granted, kind) for kind in KINDS))
    topics = (pattern(granted, kind, topics=True) for kind in ("write", "read"))
    client.permissions.topics.set("bob", "/", "topics", *topics)
    return client


def refusal(need: Need) -> str:
    """Return the close that names a missing right."""
    sort, _, name = need[1].partition(" ")
    if sort == "topic":
        what = f"topic '{name}' in exchange 'topics'"
    else:
        what = f"{sort} '{name.replace('*', '0' * 21 + '1')}'"
    return f"channel 403 ACCESS_REFUSED - access to {what} in vhost '/' refused for user 'bob'"


def choices() -> Iterator[Any]:
    """Yield each operation with each subset of its rights."""
    for operation in OPERATIONS:
        for held in product((True, False), repeat=len(operation.needs)):
            missing = [need[1] for need, is_held in zip(operation.needs, held, strict=True) if not is_held]
            yield pytest.param(operation, held, id=f"{operation.name} without {', '.join(missing) or 'nothing'}")


@pytest.mark.parametrize(("operation", "held"), list(choices()))
def test_an_operation_needs_each_of_its_rights_and_no_other(operation: Operation, held: tuple[bool, ...]) -> None:
    """The first missing right is named; an operation succeeds with exactly its own rights."""
    missing = [need for need, is_held in zip(operation.needs, held, strict=True) if not is_held]
    granted = {need for need, is_held in zip(operation.needs, held, strict=True) if is_held}
    client = enter(room(), granted)
    said = operation.does(client)
    if missing:
        assert said == [refusal(missing[0])]
    else:
        assert not [answer for answer in said if "403" in answer], said


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_all_rights_but_one_are_not_enough(operation: Operation) -> None:
    """No other right replaces a missing one."""
    for need in operation.needs:
        client = enter(room(), set())
        others = dict.fromkeys(KINDS, ".*") | {need[0]: f"^(?!{expression(need[1].partition(' ')[2])}$)"}
        if not need[1].startswith("topic "):
            client.permissions.set("bob", "/", *others.values())
            client.permissions.topics.clear("bob", "/")
        else:
            client.permissions.set("bob", "/", ".*", ".*", ".*")
            client.permissions.topics.set("bob", "/", "topics", others["write"], others["read"])
        assert operation.does(client) == [refusal(need)]


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize(
    ("method", "name"),
    [
        (X.Declare(exchange="x", passive=True), "exchange 'x'"),
        (X.Declare(exchange="none", passive=True), "exchange 'none'"),
        (Q.Declare(queue="q", passive=True), "queue 'q'"),
        (Q.Declare(queue="none", passive=True), "queue 'none'"),
        (Q.Declare(queue="amq.delayed.later", passive=True), "queue 'amq.delayed.later'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whoever_has_no_right_at_all_is_not_told_what_is_there(method: Any, name: str, kind: Kind | None) -> None:
    """A passive declare tells a user with any of the three rights whether the queue exists, and no one else."""
    client = enter(room(), set())
    if kind is not None:
        client.permissions.set("bob", "/", *(".*" if kind == other else "" for other in KINDS))
    (answer,) = says(method)(client)
    if kind is None:
        assert answer == f"channel 403 ACCESS_REFUSED - access to {name} in vhost '/' refused for user 'bob'"
    elif "none" in name:
        assert answer == f"channel 404 NOT_FOUND - no {name} in vhost '/'"
    else:
        assert answer.endswith("DeclareOk")


@pytest.mark.parametrize(
    "method", [X.Bind(destination="", source="x"), X.Bind(destination="x", source=""), Q.Bind(queue="q", exchange="")]
)
def test_the_default_exchange_is_bound_by_nobody(method: Any) -> None:
    """A binding of the default exchange is refused whatever rights the user has."""
    client = enter(room(), {(kind, "queue *") for kind in KINDS})
    assert says(method)(client) == ["channel 403 ACCESS_REFUSED - operation not permitted on the default exchange"]
