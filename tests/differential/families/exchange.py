"""Exchanges: declare, delete, equivalence, reserved names, bindings between them, alternates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.steps import Conversation, Step, bind, call, confirm, declared, exchange, publish, queue

__all__ = ["conversations"]

_CHANGES: dict[str, dict[str, Any]] = {
    "kind": {"exchange_type": "fanout"},
    "durable": {"durable": True},
    "auto-delete": {"auto_delete": True},
    "internal": {"internal": True},
    "alternate": {"arguments": {"alternate-exchange": "~other"}},
    "unknown-argument": {"arguments": {"x-unknown": 1}},
}


def _exchange(name: str, *steps: Step) -> Conversation:
    return Conversation(f"exchange/{name}", steps)


def _tied(at: str, destination: str, source: str, key: str = "", **arguments: Any) -> Step:
    fields: dict[str, Any] = {"destination": destination, "source": source, "routing_key": key}
    return call(at, "exchange.bind", **fields, **({"arguments": arguments} if arguments else {}))


def _untied(at: str, destination: str, source: str, key: str = "", **arguments: Any) -> Step:
    fields: dict[str, Any] = {"destination": destination, "source": source, "routing_key": key}
    return call(at, "exchange.unbind", **fields, **({"arguments": arguments} if arguments else {}))


def _delete(at: str, name: str, **fields: Any) -> Step:
    return call(at, "exchange.delete", exchange=name, **fields)


def _passive(at: str, name: str, kind: str = "direct") -> Step:
    return call(at, "exchange.declare", exchange=name, exchange_type=kind, passive=True)


def _target(*names: str) -> list[Step]:
    """Return the steps that declare queues and turn on confirms."""
    return [queue("A1", name) for name in names] + [confirm("A1")]


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    for kind in ("direct", "fanout", "topic", "headers"):
        yield _exchange(f"declare-{kind}", exchange("A1", "~x", kind), exchange("A1", "~x", kind), _delete("A1", "~x"))
    for what, change in _CHANGES.items():
        again = call("A1", "exchange.declare", **{"exchange": "~x", "exchange_type": "direct", **change})
        yield _exchange(f"inequivalent-{what}", exchange("A1", "~x"), again, _passive("A1", "~x"))
    yield _exchange(
        "inequivalent-alternates",
        exchange("A1", "~x", arguments={"alternate-exchange": "~one"}),
        exchange("A1", "~x", arguments={"alternate-exchange": "~one"}),
        exchange("A1", "~x", arguments={"alternate-exchange": "~two"}),
        exchange("A1", "~x"),
    )
    yield _exchange("unknown-kind", exchange("A1", "~x", "x-unknown"), _passive("A1", "~x"))
    yield _exchange("no-kind", exchange("A1", "~x", ""))
    yield _exchange("passive-missing", _passive("A1", "~x"))
    yield _exchange("passive-says-other-kind", exchange("A1", "~x", "topic"), _passive("A1", "~x", "fanout"))
    yield _exchange("passive-unknown-kind", exchange("A1", "~x", "topic"), _passive("A1", "~x", "unknown"))
    yield _exchange("default-declare", exchange("A1", ""))
    yield _exchange("default-passive", _passive("A1", ""))
    yield _exchange("default-delete", _delete("A1", ""))
    yield _exchange("default-bind", *_target("~q"), bind("A1", "~q", "", "k"))
    yield _exchange("default-unbind", *_target("~q"), call("A1", "queue.unbind", queue="~q", routing_key="~q"))
    yield _exchange("default-as-destination", exchange("A1", "~x"), _tied("A1", "", "~x", "k"))
    yield _exchange("reserved-declare", exchange("A1", "amq.mine"))
    yield _exchange("reserved-redeclare", exchange("A1", "amq.topic", "topic", durable=True))
    yield _exchange("reserved-redeclare-inequivalent", exchange("A1", "amq.topic", "topic"))
    yield _exchange("reserved-delete", _delete("A1", "amq.direct"))
    yield _exchange("reserved-delete-missing", _delete("A1", "amq.mine"))
    yield _exchange("reserved-passive", _passive("A1", "amq.headers"), _passive("A1", "amq.match"))
    yield _exchange("reserved-trace", publish("A1", "amq.rabbitmq.trace", "k"), call("A1", "basic.qos"))
    yield _exchange("name-with-a-newline", exchange("A1", "~x\ny"), _passive("A1", "~x\ny"))
    yield _exchange("name-with-spaces", exchange("A1", "~ x y "), _passive("A1", "~ x y "))
    yield _exchange("nowait", exchange("A1", "~x", nowait=True), _passive("A1", "~x"))
    yield _exchange("nowait-wrong", exchange("A1", "~x"), exchange("A1", "~x", "fanout", nowait=True))
    yield _exchange("delete-missing", _delete("A1", "~x"))
    yield _exchange("delete-if-unused", exchange("A1", "~x"), _delete("A1", "~x", if_unused=True), _passive("A1", "~x"))
    yield _exchange(
        "delete-if-unused-used",
        *_target("~q"),
        exchange("A1", "~x"),
        bind("A1", "~q", "~x", "k"),
        _delete("A1", "~x", if_unused=True),
        _passive("A1", "~x"),
    )
    yield _exchange("alternate-wrong-type", exchange("A1", "~x", arguments={"alternate-exchange": 5}))
    yield _exchange("alternate-no-string", exchange("A1", "~x", arguments={"alternate-exchange": True}))
    yield _exchange("argument-unknown", exchange("A1", "~x", x_anything="kept"), exchange("A1", "~x", x_anything="no"))
    yield from _auto_delete()
    yield from _internal()
    yield from _alternates()
    yield from _between()


def _auto_delete() -> Iterator[Conversation]:
    yield _exchange(
        "auto-delete",
        *_target("~q"),
        exchange("A1", "~x", auto_delete=True),
        _passive("A1", "~x"),
        bind("A1", "~q", "~x", "k"),
        bind("A1", "~q", "~x", "l"),
        call("A1", "queue.unbind", queue="~q", exchange="~x", routing_key="k"),
        _passive("A1", "~x"),
        call("A1", "queue.unbind", queue="~q", exchange="~x", routing_key="l"),
        _passive("A1", "~x"),
    )
    yield _exchange(
        "auto-delete-with-queue",
        *_target("~q"),
        exchange("A1", "~x", auto_delete=True),
        bind("A1", "~q", "~x", "k"),
        call("A1", "queue.delete", queue="~q"),
        _passive("A1", "~x"),
    )
    yield _exchange(
        "auto-delete-chain",
        exchange("A1", "~x", auto_delete=True),
        exchange("A1", "~y", auto_delete=True),
        *_target("~q"),
        _tied("A1", "~y", "~x", "k"),
        bind("A1", "~q", "~y", "k"),
        call("A1", "queue.delete", queue="~q"),
        _passive("A1", "~y"),
        _passive("A1", "~x"),
    )


def _internal() -> Iterator[Conversation]:
    yield _exchange("internal-publish", exchange("A1", "~x", internal=True), publish("A1", "~x", "k"))
    yield _exchange(
        "internal-reached-through-another",
        *_target("~q"),
        exchange("A1", "~in", "fanout", internal=True),
        exchange("A1", "~x", "fanout"),
        _tied("A1", "~in", "~x"),
        bind("A1", "~q", "~in"),
        publish("A1", "~x", "k", "through", mandatory=True),
    )


def _alternates() -> Iterator[Conversation]:
    yield _exchange(
        "alternate",
        *_target("~q", "~rest"),
        exchange("A1", "~rest-x", "fanout"),
        exchange("A1", "~x", arguments={"alternate-exchange": "~rest-x"}),
        bind("A1", "~q", "~x", "k"),
        bind("A1", "~rest", "~rest-x"),
        publish("A1", "~x", "k", "routed", mandatory=True),
        publish("A1", "~x", "other", "unrouted", mandatory=True),
    )
    yield _exchange(
        "alternate-missing-then-made",
        *_target("~rest"),
        exchange("A1", "~x", arguments={"alternate-exchange": "~late"}),
        publish("A1", "~x", "k", "one", mandatory=True),
        exchange("A1", "~late", "fanout"),
        bind("A1", "~rest", "~late"),
        publish("A1", "~x", "k", "two", mandatory=True),
        _delete("A1", "~late"),
        publish("A1", "~x", "k", "three", mandatory=True),
    )
    yield _exchange(
        "alternate-chain-and-cycle",
        *_target("~q"),
        exchange("A1", "~a", arguments={"alternate-exchange": "~b"}),
        exchange("A1", "~b", arguments={"alternate-exchange": "~c"}),
        exchange("A1", "~c", arguments={"alternate-exchange": "~a"}),
        publish("A1", "~a", "k", "nowhere", mandatory=True),
        bind("A1", "~q", "~c", "k"),
        publish("A1", "~b", "k", "found", mandatory=True),
    )
    yield _exchange(
        "alternate-is-the-default-exchange",
        *_target("~q"),
        exchange("A1", "~x", arguments={"alternate-exchange": ""}),
        publish("A1", "~x", "~q", "found", mandatory=True),
    )
    yield _exchange(
        "alternate-of-a-bound-exchange",
        *_target("~q"),
        exchange("A1", "~rest-x", "fanout"),
        exchange("A1", "~x", "fanout"),
        exchange("A1", "~y", arguments={"alternate-exchange": "~rest-x"}),
        _tied("A1", "~y", "~x"),
        bind("A1", "~q", "~rest-x"),
        publish("A1", "~x", "k", "found", mandatory=True),
    )


def _between() -> Iterator[Conversation]:
    yield _exchange(
        "bound-to-exchange",
        *_target("~q", "~p"),
        exchange("A1", "~x", "topic"),
        exchange("A1", "~y", "topic"),
        _tied("A1", "~y", "~x", "a.#"),
        bind("A1", "~q", "~y", "#.z"),
        bind("A1", "~p", "~x", "a.z"),
        publish("A1", "~x", "a.b.z", "one", mandatory=True),
        publish("A1", "~x", "a.z", "two", mandatory=True),
        publish("A1", "~x", "a.b", "three", mandatory=True),
        publish("A1", "~x", "b.z", "four", mandatory=True),
        _untied("A1", "~y", "~x", "a.#"),
        publish("A1", "~x", "a.b.z", "five", mandatory=True),
        declared("~q", "~p"),
    )
    yield _exchange(
        "bound-in-a-cycle",
        *_target("~q"),
        exchange("A1", "~x", "fanout"),
        exchange("A1", "~y", "fanout"),
        _tied("A1", "~y", "~x"),
        _tied("A1", "~x", "~y"),
        _tied("A1", "~x", "~x"),
        bind("A1", "~q", "~y"),
        publish("A1", "~x", "k", "once", mandatory=True),
    )
    yield _exchange(
        "bound-both-ways-once",
        *_target("~q"),
        exchange("A1", "~x", "fanout"),
        exchange("A1", "~y", "fanout"),
        _tied("A1", "~y", "~x"),
        bind("A1", "~q", "~y"),
        bind("A1", "~q", "~x"),
        publish("A1", "~x", "k", "once"),
    )
    yield _exchange("bind-missing-source", exchange("A1", "~x"), _tied("A1", "~x", "~none"))
    yield _exchange("bind-missing-destination", exchange("A1", "~x"), _tied("A1", "~none", "~x"))
    yield _exchange("bind-both-missing", _tied("A1", "~none", "~neither"))
    yield _exchange("unbind-missing", exchange("A1", "~x"), exchange("A1", "~y"), _untied("A1", "~y", "~x", "k"))
    yield _exchange("unbind-missing-exchange", exchange("A1", "~x"), _untied("A1", "~y", "~x", "k"))
    yield _exchange(
        "deleted-with-its-ties",
        *_target("~q"),
        exchange("A1", "~x", "fanout"),
        exchange("A1", "~y", "fanout"),
        _tied("A1", "~y", "~x"),
        bind("A1", "~q", "~y"),
        _delete("A1", "~y", if_unused=True),
        _delete("A1", "~y"),
        publish("A1", "~x", "k", "lost", mandatory=True),
        exchange("A1", "~y", "fanout"),
        publish("A1", "~x", "k", "lost too", mandatory=True),
    )
