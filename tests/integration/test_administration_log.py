"""The log of administrative work: one event for each change, none for a refused one."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.cli.control_client import Unanswered
from tests.in_process import client_of, running_broker, told

ALL = {"configure": ".*", "write": "^a", "read": ""}
NAMED = {"user": "u", "vhost": "/"}
POLICY = {"pattern": "^q", "apply_to": "queues", "definition": {"max-length": 1}, "priority": 2, "operator": False}
USER = {"name": "u", "password": "TopSecret", "tags": ["monitoring"]}
TOPIC = {"exchange": "amq.topic", "write": "^w", "read": "^r"}

CHANGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("add_user", USER, {"event": "user.added", "user": "u", "tags": ["monitoring"]}),
    ("set_user", {**USER, "tags": []}, {"event": "user.changed", "user": "u", "changed": ["tags", "password"]}),
    ("set_user", {"name": "u", "tags": ["t"]}, {"event": "user.changed", "user": "u", "changed": ["tags"]}),
    ("set_permission", {**NAMED, **ALL}, {"event": "permission.set", **NAMED, **ALL}),
    ("set_topic_permission", {**NAMED, **TOPIC}, {"event": "topic_permission.set", **NAMED, **TOPIC}),
    ("delete_topic_permission", {**NAMED, "exchange": "amq.topic"},
     {"event": "topic_permission.cleared", **NAMED, "exchange": "amq.topic"}),
    ("delete_permission", NAMED, {"event": "permission.cleared", **NAMED}),
    ("delete_user", {"name": "u"}, {"event": "user.deleted", "user": "u"}),
    ("set_policy", {"name": "p", **POLICY}, {"event": "policy.set", "vhost": "/", "policy": "p", **POLICY}),
    ("delete_policy", {"name": "p"}, {"event": "policy.cleared", "vhost": "/", "policy": "p", "operator": False}),
    ("pause_queue", {"queue": "q"}, {"event": "queue.paused", "vhost": "/", "queue": "q"}),
    ("resume_queue", {"queue": "q"}, {"event": "queue.resumed", "vhost": "/", "queue": "q"}),
    ("purge_queue", {"queue": "q"}, {"event": "queue.purged", "vhost": "/", "queue": "q", "messages": 0}),
    ("delete_queue", {"queue": "q"}, {"event": "queue.deleted", "vhost": "/", "queue": "q", "messages": 0}),
    ("delete_exchange", {"exchange": "x"}, {"event": "exchange.deleted", "vhost": "/", "exchange": "x"}),
    ("add_vhost", {"name": "v"}, {"event": "vhost.created", "vhost": "v"}),
    ("delete_vhost", {"name": "v"}, {"event": "vhost.deleted", "vhost": "v"}),
]  # fmt: skip


async def test_each_change_is_an_event(tmp_path: Path) -> None:
    """The event says what was changed and to what, without the password."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        await channel.declare_exchange("x")
        for verb, arguments, expected in CHANGES:
            with capture_logs() as events:
                await told(broker, verb, **arguments)
            told_of = [event for event in events if event["log_level"] != "debug"]
            assert told_of == [{**expected, "log_level": "info"}], verb
            assert "TopSecret" not in str(events)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("delete_user", {"name": "nobody"}),
        ("set_permission", {"user": "nobody", **ALL}),
        ("delete_policy", {"name": "none"}),
        ("purge_queue", {"queue": "none"}),
        ("delete_exchange", {"exchange": "amq.topic"}),
    ],
)
async def test_change_that_is_refused_is_none(tmp_path: Path, verb: str, arguments: dict[str, Any]) -> None:
    """A refused change is not logged."""
    async with running_broker(tmp_path) as broker:
        with capture_logs() as events, pytest.raises(Unanswered):
            await told(broker, verb, **arguments)
        assert events == []


async def test_closed_connection_is_an_event(tmp_path: Path) -> None:
    """The event of a closed connection has its name, its user and the reason."""
    async with running_broker(tmp_path) as broker, client_of(broker):
        (row,) = await told(broker, "list_connections")
        with capture_logs() as events:
            await told(broker, "close_connection", name=row["name"], reason="maintenance")
        closed = {"conn": row["name"], "user": "guest", "reason": "maintenance", "log_level": "info"}
        assert {"event": "connection.force_closed", **closed} in events
