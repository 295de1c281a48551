"""Exceptions during a request become responses without internal details."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from broker.core.auth.logins import Logins
from broker.core.auth.peer import Peer
from broker.core.auth.users import User, Users
from broker.net.control_request import ControlRefused
from broker.net.http.answer import Answer
from broker.net.http.conversation import Client
from broker.net.http.login import BasicLogin
from broker.net.http.request import HttpRequest
from broker.net.http.responder import Respond
from broker.net.http.routes import Call, HttpRoute, RouteTable
from broker.store.damage import StoreFailed

ALICE = {"authorization": "Basic YWxpY2U6eA=="}


@pytest.mark.parametrize(
    ("error", "status", "event"),
    [
        (ControlRefused("'x' should be a string"), 400, None),
        (ValueError("not as things stand"), 409, None),
        (StoreFailed("/data/secret", "Input/output error"), 503, "http.store_failed"),
        (KeyError("a password"), 500, "http.failed"),
    ],
)
async def test_an_error_is_an_answer(error: Exception, status: int, event: str | None) -> None:
    """A defect is 500 and an error in the log; the response to a failed store names no path."""

    async def fail(_call: Call) -> Answer:
        raise error

    login = BasicLogin(Logins(Users([User("alice", "x")])))
    respond = Respond(RouteTable([HttpRoute("GET", "/x", fail)]), login)
    with capture_logs() as events:
        answer = await respond(HttpRequest("GET", ("x",), {}, ALICE), Client(Peer("127.0.0.1"), lambda: False))
    assert answer.status == status and not answer.close
    reason = json.loads(answer.body)["reason"]
    assert "secret" not in reason and "password" not in reason
    assert [said["event"] for said in events] == ([] if event is None else [event])
