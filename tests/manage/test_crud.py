"""Each noun of the management API made, changed and deleted, twice: what Terraform and rabbit-hole rely on.

Statuses are those that RabbitMQ 3.10 with its management plugin gave for the same requests.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.operations.request import OperationRefused, Request
from broker.server import BrokerServer
from tests.manage.api_talk import Api

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
HASH = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"  # of test12, with SHA-256
SHA256 = "rabbit_password_hashing_sha256"

Step = tuple[int, str, str, Any]
"""The status that is expected, and the request."""

NOUNS: list[tuple[str, dict[str, Any], Any]] = [
    ("vhosts/shop", {"description": "a shop", "tags": "a,b"}, None),
    ("users/ada", {"password": "secret", "tags": "management"}, ("tags", ["management"])),
    ("users/eva", {"password_hash": HASH, "hashing_algorithm": SHA256, "tags": []}, ("password_hash", HASH)),
    ("permissions/shop/ada", ALL, ("write", ".*")),
    ("policies/shop/p%2F1", {"pattern": "^q", "definition": {"max-length": 5}}, ("definition", {"max-length": 5})),
    ("operator-policies/shop/o", {"pattern": "", "definition": {"expires": 9000}, "priority": 2}, ("priority", 2)),
    ("parameters/federation-upstream/shop/up", {"value": {"uri": "amqp://h"}}, ("value", {"uri": "amqp://h"})),
    ("parameters/shovel/shop/dig", {"value": {"src-uri": "amqp://"}}, ("component", "shovel")),
    ("global-parameters/mqtt", {"value": "x"}, ("value", "x")),
    ("exchanges/shop/e%20x", {"type": "topic", "durable": True, "auto_delete": False, "arguments": {}}, None),
    ("queues/shop/q%2F1", {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 7}}, None),
]
"""The path of each noun, the body that makes it, and a field that its own page shows."""


async def test_what_is_made_twice_is_there_once(api: Api) -> None:
    """The first PUT makes (201), the second finds it (204); the first DELETE deletes, the second finds nothing."""
    for path, body, shown in NOUNS:
        await api.expect(201, "PUT", path, body)
        await api.expect(204, "PUT", path, body)
        if shown is not None:
            row = await api.expect(200, "GET", path)
            assert row[shown[0]] == shown[1]
    for path, _body, _shown in reversed(NOUNS[1:]):
        await api.expect(204, "DELETE", path)
        await api.expect(404, "DELETE", path)
    await api.expect(204, "DELETE", "vhosts/shop")
    await api.expect(404, "DELETE", "vhosts/shop")


async def test_bindings_are_deleted_by_their_properties_key(broker: BrokerServer, api: Api) -> None:
    """The answer to a binding says where it is; of two that differ in their arguments alone one can be deleted."""
    await api.expect(201, "PUT", "queues/%2F/q", {"durable": True})
    for exchange in ("e", "f"):
        await api.expect(201, "PUT", f"exchanges/%2F/{exchange}", {"type": "topic", "durable": True})
    made = []
    for end in ("q/q", "e/f"):
        between = f"bindings/%2F/e/e/{end}"
        for body in ({"routing_key": "k/x ~é"}, {"routing_key": "k/x ~é", "arguments": {"x": 1}}, {}, {}):
            said = await api.ask("POST", between, body)
            assert (said.status, said.body) == (201, b"")
            made.append(f"bindings/%2F/e/e/{end[0]}/{said.headers['location']}")
    assert broker.vhosts["/"].exchanges["e"].binding_count == 6
    assert len(set(made)) == 6
    assert made[0].endswith("q/k%252Fx%2B%257E%25C3%25A9")
    assert made[2].endswith("q/~")
    for place in dict.fromkeys(made):
        await api.expect(204, "DELETE", place)
        await api.expect(404, "DELETE", place)
    assert broker.vhosts["/"].exchanges["e"].binding_count == 0
    for source, end in (("none", "q/q"), ("e", "q/none"), ("e", "e/none")):
        reason = f"no {'queue' if end == 'q/none' else 'exchange'} 'none' in vhost '/'"
        refused = await api.refusal("POST", f"bindings/%2F/e/{source}/{end}", {"routing_key": "a"})
        assert refused == (404, "not_found", reason)
    await api.expect(401, "POST", "bindings/%2F/e/amq.default/q/q", {"routing_key": "a"})


async def test_what_exists_with_other_arguments_is_refused_in_the_words_of_amqp(api: Api) -> None:
    """Inequivalent arguments are 400 with AMQP's text, and so are those that a queue cannot have."""
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("queues/%2F/q", {"durable": False},
         "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"),
        ("queues/%2F/q", {"durable": True, "arguments": {"x-max-length": 6}},
         "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received '6' but current is '5'"),
        ("queues/%2F/q", {"durable": "perhaps"}, "'durable' should be true or false"),
        ("queues/%2F/q", {"durable": True, "arguments": 3}, "'arguments' should be an object"),
        ("queues/%2F/q", {"exclusive": True},
         "an exclusive queue belongs to a connection, which a request does not have"),
        ("queues/%2F/r", {"arguments": {"x-message-ttl": "soon"}},
         "invalid arg 'x-message-ttl' for queue 'r' in vhost '/': \"expected integer, got longstr\""),
        ("exchanges/%2F/e", {"type": "direct", "durable": True},
         "inequivalent arg 'type' for exchange 'e' in vhost '/': received 'direct' but current is 'topic'"),
        ("exchanges/%2F/e", {"type": "magic"}, "unknown exchange type 'magic'"),
    ]  # fmt: skip
    # rabbitmqadmin's Python script writes booleans as texts
    await api.expect(
        201, "PUT", "queues/%2F/q", {"durable": "true", "auto_delete": "false", "arguments": {"x-max-length": 5}}
    )
    await api.expect(201, "PUT", "exchanges/%2F/e", {"type": "topic", "durable": "true"})
    for path, body, reason in refused:
        assert await api.refusal("PUT", path, body) == (400, "bad_request", reason)
    for path in ("queues/%2F/amq.q", "exchanges/%2F/amq.e", "exchanges/%2F/amq.default"):
        assert (await api.expect(401, "PUT", path, {"durable": True}))["error"] == "not_authorised"
    for path in ("exchanges/%2F/amq.direct", "exchanges/%2F/amq.default"):
        await api.expect(401, "DELETE", path)
    for path in ("queues/none/q", "exchanges/none/e", "policies/none/p", "queues/%2F/q/nothing"):
        refusal = await api.refusal("PUT", path, {"pattern": "", "definition": {"expires": 9}})
        assert refusal == (404, "Object Not Found", "Not Found")


async def test_queues_and_exchanges_are_deleted_on_conditions(api: Api) -> None:
    """A queue with messages, and an exchange with bindings, stay when the caller wants that."""
    await api.expect(201, "PUT", "queues/%2F/q", {"durable": True})
    await api.expect(201, "PUT", "exchanges/%2F/e", {"durable": True})
    await api.expect(201, "POST", "bindings/%2F/e/e/q/q", {"routing_key": "k"})
    message = {"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}
    assert await api.expect(200, "POST", "exchanges/%2F/e/publish", message) == {"routed": True}
    for path, reason in (
        ("queues/%2F/q?if-empty=true", "queue 'q' in vhost '/' not empty"),
        ("exchanges/%2F/e?if-unused=true", "exchange 'e' in vhost '/' in use"),
    ):
        assert await api.refusal("DELETE", path) == (400, "bad_request", reason)
    await api.expect(204, "DELETE", "queues/%2F/q/contents")
    await api.expect(204, "DELETE", "queues/%2F/q?if-empty=true&if-unused=true")
    await api.expect(204, "DELETE", "exchanges/%2F/e?if-unused=true")


async def test_users_keep_their_limits_and_may_lose_their_password(api: Api) -> None:
    """A PUT replaces tags and password; limits stay; several users are deleted together or not at all."""
    await api.expect(400, "PUT", "users/ada", {"password": "secret"})  # RabbitMQ wants tags
    ada = await api.with_user("ada", "administrator")
    assert (await ada.expect(200, "GET", "whoami"))["tags"] == ["administrator"]
    await api.expect(204, "PUT", "user-limits/ada/max-connections", {"value": 5})
    await api.expect(204, "PUT", "users/ada", {"tags": "monitoring,policymaker", "password_hash": ""})
    row = await api.expect(200, "GET", "users/ada")
    assert row["tags"] == ["monitoring", "policymaker"]
    assert (row["password_hash"], row["limits"]) == ("", {"max-connections": 5})
    await ada.expect(401, "GET", "whoami")
    await api.expect(
        201, "PUT", "users/test", {"password_hash": HASH, "hashing_algorithm": SHA256, "tags": "management"}
    )
    hashed = api.login("test", "test12")
    await hashed.expect(200, "GET", "whoami")
    names = {row["name"] for row in await api.expect(200, "GET", "users/without-permissions")}
    assert names == {"ada", "test"}
    refused = await api.expect(400, "POST", "users/bulk-delete", {"users": ["ada", "nobody"]})
    assert refused["reason"] == "User 'nobody' does not exist"
    await api.expect(200, "GET", "users/ada")
    await api.expect(204, "POST", "users/bulk-delete", {"users": ["ada", "test"]})
    assert [row["name"] for row in await api.expect(200, "GET", "users")] == ["guest"]


async def test_limits_are_set_and_cleared_one_by_one(api: Api) -> None:
    """Each limit has its own path; what has no limits is not listed."""
    await api.expect(201, "PUT", "users/ada", {"password": "x", "tags": ""})
    for noun, field, name, other in (
        ("vhost-limits/%2F", "vhost", "/", "max-queues"),
        ("user-limits/ada", "user", "ada", "max-channels"),
    ):
        await api.expect(204, "PUT", f"{noun}/max-connections", {"value": 5})
        await api.expect(204, "PUT", f"{noun}/max-connections", {"value": 6})
        await api.expect(204, "PUT", f"{noun}/{other}", {"value": 7})
        found = [{field: name, "value": {"max-connections": 6, other: 7}}]
        assert await api.expect(200, "GET", noun) == found
        assert await api.expect(200, "GET", noun.partition("/")[0]) == found
        for path, body in (
            (f"{noun}/nonsense", {"value": 1}),
            (f"{noun}/{other}", {"value": "x"}),
            (f"{noun}/{other}", {}),
        ):
            await api.expect(400, "PUT", path, body)
        for limit in ("max-connections", other, other):
            await api.expect(204, "DELETE", f"{noun}/{limit}")
        assert await api.expect(200, "GET", noun) == []
    await api.expect(404, "PUT", "vhost-limits/none/max-queues", {"value": 1})
    await api.expect(404, "GET", "user-limits/none")


async def test_permissions_are_of_users_and_vhosts_that_exist(api: Api) -> None:
    """Permissions and topic permissions are set for what exists, and a bad expression changes nothing."""
    await api.expect(201, "PUT", "vhosts/shop")
    await api.expect(201, "PUT", "users/ada", {"password": "x", "tags": ""})
    await api.expect(201, "PUT", "permissions/shop/ada", ALL)
    for path, body in (
        ("permissions/shop/ada", {**ALL, "write": "("}),
        ("permissions/shop/ada", {"configure": "", "write": ""}),
        ("permissions/none/ada", ALL),
        ("permissions/shop/none", ALL),
    ):
        await api.expect(400, "PUT", path, body)
    row = {"user": "ada", "vhost": "shop", **ALL}
    assert await api.expect(200, "GET", "permissions/shop/ada") == row
    for path in ("permissions", "users/ada/permissions", "vhosts/shop/permissions"):
        assert row in await api.expect(200, "GET", path)
    topics = "topic-permissions/shop/ada"
    await api.expect(201, "PUT", topics, {"exchange": "amq.topic", "write": "^a", "read": ""})
    await api.expect(204, "PUT", topics, {"exchange": "logs", "write": "^b", "read": ""})
    rows = [
        {"user": "ada", "vhost": "shop", "exchange": exchange, "write": write, "read": ""}
        for exchange, write in (("amq.topic", "^a"), ("logs", "^b"))
    ]
    for path in (topics, "topic-permissions", "users/ada/topic-permissions", "vhosts/shop/topic-permissions"):
        assert await api.expect(200, "GET", path) == rows
    await api.expect(204, "DELETE", f"{topics}/logs")
    assert await api.expect(200, "GET", topics) == rows[:1]
    await api.expect(204, "DELETE", topics)
    await api.expect(404, "GET", topics)


async def test_a_vhost_is_changed_in_place(broker: BrokerServer, api: Api) -> None:
    """A second PUT changes what it names; tracing is switched; the user who adds a vhost gets all rights in it."""
    ada = await api.with_user("ada", "administrator")
    await ada.expect(201, "PUT", "vhosts/shop", {"description": "old", "default_queue_type": "quorum"})
    await ada.expect(201, "PUT", "queues/shop/q", {"durable": True})
    assert broker.vhosts["shop"].queues["q"].arguments["x-queue-type"] == "quorum"
    await api.expect(204, "PUT", "vhosts/shop", {"description": "new", "tags": "a, b", "tracing": True})
    facts = broker.administration.vhost_fields("shop")
    assert (facts["description"], facts["tags"], facts["default_queue_type"]) == ("new", ["a", "b"], "quorum")
    assert broker.vhosts["shop"].firehose.publishing
    await api.expect(204, "PUT", "vhosts/shop")
    assert broker.vhosts["shop"].firehose.publishing
    await api.expect(204, "PUT", "vhosts/shop", {"tracing": False})
    assert not broker.vhosts["shop"].firehose.publishing
    await api.expect(400, "PUT", "vhosts/shop", {"default_queue_type": "stream"})
    await api.expect(204, "POST", "vhosts/shop/start/any")
    await api.expect(400, "PUT", "vhosts/" + "v" * 256)


async def test_a_protected_vhost_is_not_deleted(broker: BrokerServer, api: Api) -> None:
    """The protection holds until it is ended, for the command line too."""
    await api.expect(201, "PUT", "vhosts/shop", {"description": "d"})
    await api.expect(204, "POST", "vhosts/shop/deletion/protection")
    refused = await api.expect(412, "DELETE", "vhosts/shop")
    assert refused["error"] == "precondition_failed"
    with pytest.raises(OperationRefused, match="protected from deletion"):
        await broker.entrance.managed.verbs["delete_vhost"](Request({"name": "shop"}))
    assert (await api.expect(200, "GET", "vhosts/shop"))["protected_from_deletion"]
    await api.expect(204, "DELETE", "vhosts/shop/deletion/protection")
    await api.expect(204, "DELETE", "vhosts/shop")


async def test_policies_take_what_amqp_would(broker: BrokerServer, api: Api) -> None:
    """A bad policy is refused in RabbitMQ's words, with nothing changed; lists show the vhosts that a user sees."""
    await api.expect(201, "PUT", "queues/%2F/q", {"durable": True})
    await api.expect(201, "PUT", "policies/%2F/p", {"pattern": "^q", "definition": {"max-length": 5}, "priority": "3"})
    for body in (
        {"definition": {"max-length": 5}},
        {"pattern": "q"},
        {"pattern": "(", "definition": {"max-length": 5}},
        {"pattern": "q", "definition": {"nonsense": 5}},
        {"pattern": "q", "definition": {"max-length": "x"}},
        {"pattern": "q", "definition": {"max-length": 1}, "apply-to": "nothing"},
        {"pattern": "q", "definition": {"max-length": 1}, "priority": "high"},
    ):
        await api.expect(400, "PUT", "policies/%2F/p", body)
    row = {
        "vhost": "/",
        "name": "p",
        "pattern": "^q",
        "apply-to": "all",
        "definition": {"max-length": 5},
        "priority": 3,
    }
    assert await api.expect(200, "GET", "policies") == [row]
    assert await api.expect(200, "GET", "policies/%2F") == [row]
    assert broker.vhosts["/"].queues["q"].policy == "p"
    ada = await api.with_user("ada", "policymaker")
    assert await ada.expect(200, "GET", "policies") == []
    await ada.expect(401, "GET", "policies/%2F")
