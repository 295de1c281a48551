"""Requests that no honest tool sends: each is answered, none with an internal error."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from broker.manage.app import api_routes
from tests.manage.api_talk import Api, managed

REQUESTS: Final = 300
RENEWED: Final = 40  # requests after which what they are about is made again
FIELDS: Final = (
    "name value password password_hash hashing_algorithm tags configure write read exchange vhost description "
    "default_queue_type tracing durable auto_delete exclusive internal type arguments node routing_key properties "
    "payload payload_encoding count ackmode encoding truncate pattern definition priority apply-to users to limit "
    "match into reasons died_in headers action component queues exchanges bindings policies parameters permissions"
).split()
NAMES: Final = (
    "/", "q", "e", "amq.default", "amq.topic", "guest", "max-queues", "limits", "vhost-limits", "policy", "~", "%7E",
    "é" * 200, "a\nb", "\x00", "..", "<img onerror=x>", "12", "days", "5672", "slotmq-paused-queue", "shovel", " ",
)  # fmt: skip
VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 1 << 31, -(1 << 63), 1 << 64, 1e300, 0.5, "", "x", "é" * 300, "true", "-5", "(", ".*",
    "string", "base64", "auto", "ack_requeue_false", "reject_requeue_false", "queue:q", "exchange:e:k", "topic", "\n",
    [], ["x"], [1], [None], [["a", 1]], {}, {"a": 1}, {"x-max-length": -1}, {"max-length": "x"}, {"headers": 5},
    {"headers": {"a": [None, {"b": 1 << 70}]}}, {"priority": "9"}, {"timestamp": -1}, {"expiration": "x"}, [{}],
    [{"name": "q"}], [{"name": "q", "vhost": "/", "arguments": {"x": [1, {}]}}],
)  # fmt: skip
BODIES: Final = (b"", b"{", b"[]", b"5", b'"x"', b"null", b"\xff", b"[" * 5000, b'{"a":' * 2000, b'{"a":1e999}')
WORST: Final = ("é" * 200, "a\nb\x00", "<img onerror=x>/..")
GOOD: Final = {
    "routing_key": "k", "payload": "x", "payload_encoding": "string", "properties": {}, "type": "topic", "value": 1,
    "count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "pattern": "x", "definition": {"expires": 9000000},
    "tags": "", "configure": "", "write": "", "read": "", "name": "x", "action": "sync", "users": [], "exchange": "e",
}  # fmt: skip
"""A body that most routes take."""
KEEPS: Final = ("/api/vhosts/{vhost}", "/api/users/{user}")
"""Paths whose DELETE would take away what the others work on."""


def request(chance: random.Random, method: str, path: str) -> tuple[str, str, Any]:
    """Return a request to a route."""
    words = [
        quote(chance.choice(NAMES), safe="") if word.startswith("{") and chance.random() < 0.6 else
        {"{vhost}": "%2F", "{queue}": "q", "{exchange}": "e", "{user}": "ada"}.get(word, word.strip("{}"))
        for word in path.removeprefix("/api/").split("/")
    ]  # fmt: skip
    query = chance.choice(
        ("", "", "?limit=x", "?count=-1", "?truncate=9e9", "?if-empty=true", "?columns=a..b", "?page=0")
    )
    body: Any = chance.choice(BODIES)
    if chance.random() < 0.8:
        body = {name: chance.choice(VALUES) for name in chance.sample(FIELDS, chance.randrange(12))}
    if method == "GET":
        body = None
    return method, "/".join(words) + query, body


def words_of(path: str, name: str) -> str:
    """Return a path of the API with a name in place of each word but the vhost."""
    given = path.removeprefix("/api/").replace("{vhost}", "%2F").split("/")
    return "/".join([quote(name, safe="") if word.startswith("{") else word for word in given])


def changing_routes() -> list[tuple[str, str]]:
    """Return the routes that the requests go to."""
    routes = [(route.method, route.path) for route in api_routes() if "{vhost}/start" not in route.path]
    return [route for route in routes if route[1] != "/api/live" and (route[0] != "DELETE" or route[1] not in KEEPS)]


async def test_no_name_is_an_internal_error(api: Api) -> None:
    """Names that are too long for AMQP, or have odd characters, are taken or refused at every route."""
    for method, path in changing_routes():
        for name in WORST:
            said = await api.ask(method, words_of(path, name), None if method == "GET" else GOOD)
            assert said.status != 500, f"{method} {path}: {said.body!r}"


async def test_no_request_is_an_internal_error(tmp_path: Path) -> None:
    """Whatever a caller with all rights sends, the answer says what is wrong, as JSON, and the broker continues."""
    chance = random.Random(11)
    routes = changing_routes()
    async with managed(tmp_path, auth={"users": {"guest": "guest"}}) as (broker, api):  # who cannot be deleted
        for number in range(REQUESTS):
            if number % RENEWED == 0:
                await prepared(api)
            method, path, body = request(chance, *chance.choice(routes))
            sent = json.dumps(body).encode() if isinstance(body, dict) else body
            said = await api.ask(method, path, sent)
            assert said.status < 500 or "health" in path, f"{method} {path} {sent!r}: {said.status} {said.body!r}"
            if said.status >= 400 and "health" not in path:
                assert set(said.json) == {"error", "reason"}
        assert broker.failure is None
        assert (await api.expect(200, "GET", "whoami"))["name"] == "guest"
        assert not broker.listener.transports


async def prepared(api: Api) -> None:
    """Make what the requests are about."""
    for method, path, body in (
        ("PUT", "vhosts/%2F", {}),
        ("PUT", "users/ada", {"password_hash": "", "tags": ""}),
        ("PUT", "queues/%2F/q", {"durable": True}),
        ("PUT", "exchanges/%2F/e", {"type": "topic"}),
        ("POST", "bindings/%2F/e/e/q/q", {"routing_key": "#"}),
    ):
        await api.ask(method, path, body)
