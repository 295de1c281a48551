"""The requests that tools send, as their sources write them, and the statuses that they take for success.

Terraform's provider and other Go programs use rabbit-hole, which writes what it does not set as null or as an empty
text; rabbitmqadmin is version 2, in Rust; NServiceBus asks when it starts.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.manage.api_talk import Api

RABBIT_HOLE: list[tuple[str, str, Any, int]] = [
    ("PUT", "vhosts/tf", {"description": "", "tags": None, "default_queue_type": "", "tracing": False}, 201),
    ("PUT", "vhosts/tf", {"description": "d", "tags": ["a"], "default_queue_type": "classic", "tracing": False}, 204),
    ("GET", "vhosts/tf", None, 200),
    ("PUT", "vhost-limits/tf/max-connections", {"value": 10}, 204),
    ("GET", "vhost-limits/tf", None, 200),
    ("PUT", "users/tf", {"name": "", "password": "x", "tags": None}, 201),
    ("PUT", "users/tf", {"name": "tf", "password": "x", "tags": "management,monitoring"}, 204),
    ("PUT", "user-limits/tf/max-channels", {"value": 10}, 204),
    ("PUT", "permissions/tf/tf", {"configure": "", "write": ".*", "read": ".*"}, 201),
    ("GET", "permissions/tf/tf", None, 200),
    ("PUT", "topic-permissions/tf/tf", {"exchange": "amq.topic", "write": ".*", "read": ".*"}, 201),
    ("GET", "topic-permissions/tf/tf", None, 200),
    ("PUT", "exchanges/tf/e", {"type": "fanout", "durable": True, "auto_delete": False, "arguments": None}, 201),
    ("PUT", "exchanges/tf/e", {"type": "fanout", "durable": True, "auto_delete": False, "arguments": {}}, 204),
    ("GET", "exchanges/tf/e", None, 200),
    ("PUT", "queues/tf/q",
     {"type": "quorum", "vhost": "tf", "durable": True, "auto_delete": False,
      "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 5}}, 201),
    ("GET", "queues/tf/q", None, 200),
    ("POST", "bindings/tf/e/e/q/q",
     {"source": "e", "vhost": "tf", "destination": "q", "destination_type": "queue", "routing_key": "#",
      "arguments": None, "properties_key": ""}, 201),
    ("GET", "bindings/tf/e/e/q/q", None, 200),
    ("DELETE", "bindings/tf/e/e/q/q/%2523", None, 204),
    ("DELETE", "bindings/tf/e/e/q/q/%23", None, 404),
    ("PUT", "policies/tf/p",
     {"vhost": "tf", "pattern": ".*", "apply-to": "all", "name": "p", "priority": 0,
      "definition": {"max-length": 5}}, 201),
    ("GET", "policies/tf/p", None, 200),
    ("PUT", "operator-policies/tf/p", {"pattern": ".*", "definition": {"expires": 9_000_000}, "priority": 0}, 201),
    ("PUT", "parameters/federation-upstream/tf/up",
     {"component": "federation-upstream", "vhost": "tf", "name": "up", "value": {"uri": "amqp://h",
      "expires": 9}}, 201),
    ("GET", "parameters/federation-upstream/tf/up", None, 200),
    ("DELETE", "parameters/federation-upstream/tf/up", None, 204),
    ("DELETE", "operator-policies/tf/p", None, 204),
    ("DELETE", "policies/tf/p", None, 204),
    ("DELETE", "queues/tf/q", None, 204),
    ("DELETE", "exchanges/tf/e", None, 204),
    ("DELETE", "topic-permissions/tf/tf", None, 204),
    ("DELETE", "permissions/tf/tf", None, 204),
    ("DELETE", "users/tf", None, 204),
    ("DELETE", "vhost-limits/tf/max-connections", None, 204),
    ("DELETE", "vhosts/tf", None, 204),
    ("DELETE", "vhosts/tf", None, 404),
]  # fmt: skip

MESSAGE = {"routing_key": "q", "payload": "hello", "payload_encoding": "string", "properties": {"delivery_mode": 2}}

RABBITMQADMIN: list[tuple[str, str, Any, int]] = [
    ("PUT", "vhosts/v2",
     {"name": "v2", "description": "", "tags": None, "default_queue_type": None, "tracing": False}, 201),
    ("POST", "vhosts/v2/deletion/protection", None, 204),
    ("DELETE", "vhosts/v2", None, 412),
    ("DELETE", "vhosts/v2/deletion/protection", None, 204),
    ("PUT", "users/v2",
     {"name": "v2", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "tags": "administrator"}, 201),
    ("PUT", "permissions/v2/v2", {"user": "v2", "vhost": "v2", "configure": ".*", "write": ".*", "read": ".*"}, 201),
    ("PUT", "permissions/v2/guest", {"configure": ".*", "write": ".*", "read": ".*"}, 204),  # guest added the vhost
    ("PUT", "queues/v2/q",
     {"name": "q", "durable": True, "auto_delete": False, "exclusive": False,
      "arguments": {"x-queue-type": "classic"}}, 201),
    ("PUT", "exchanges/v2/e",
     {"name": "e", "type": "direct", "durable": True, "auto_delete": False, "arguments": None}, 201),
    ("POST", "bindings/v2/e/e/q/q", {"routing_key": "q", "arguments": None}, 201),
    ("POST", "exchanges/v2/e/publish", MESSAGE, 200),
    ("POST", "queues/v2/q/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}, 200),
    ("DELETE", "queues/v2/q/contents", None, 204),
    ("DELETE", "bindings/v2/e/e/q/q/q", None, 204),
    ("GET", "health/checks/local-alarms", None, 200),
    ("GET", "health/checks/alarms", None, 200),
    ("GET", "health/checks/node-is-quorum-critical", None, 200),
    ("GET", "health/checks/protocol-listener/amqp", None, 200),
    ("POST", "rebalance/queues", {}, 204),
    ("PUT", "feature-flags/quorum_queue/enable", {"name": "quorum_queue"}, 204),
    ("PUT", "cluster-name", {"name": "blue"}, 204),
    ("GET", "cluster-name", None, 200),
    ("GET", "definitions", None, 200),
    ("POST", "definitions", {"vhosts": [{"name": "v2"}], "queues": []}, 204),
    ("GET", "definitions/v2", None, 200),
    ("PUT", "global-parameters/g", {"name": "g", "value": {"a": 1}}, 201),
    ("DELETE", "global-parameters/g", None, 204),
    ("POST", "users/bulk-delete", {"users": ["v2"]}, 204),
    ("DELETE", "queues/v2/q", None, 204),
    ("DELETE", "exchanges/v2/e", None, 204),
    ("DELETE", "connections/username/v2", None, 204),
    ("DELETE", "vhosts/v2", None, 204),
]  # fmt: skip

NSERVICEBUS: list[tuple[str, str, Any, int]] = [
    ("GET", "overview", None, 200),
    ("GET", "feature-flags", None, 200),
    ("PUT", "queues/%2F/nsb.errors", {"durable": True, "arguments": {"x-queue-type": "quorum"}}, 201),
    ("GET", "queues/%2F/nsb.errors", None, 200),
    ("PUT", "policies/%2F/nsb.nsb.errors.delivery-limit",
     {"apply-to": "quorum_queues", "definition": {"delivery-limit": -1}, "pattern": "^nsb\\.errors$",
      "priority": 0}, 201),
    ("GET", "bindings/%2F", None, 200),
]  # fmt: skip


@pytest.mark.parametrize(
    "requests", [RABBIT_HOLE, RABBITMQADMIN, NSERVICEBUS], ids=["rabbit-hole", "v2", "NServiceBus"]
)
async def test_the_requests_of_a_tool_succeed(api: Api, requests: list[tuple[str, str, Any, int]]) -> None:
    """Every request in its turn has the status that the tool expects."""
    for method, path, body, status in requests:
        await api.expect(status, method, path, body)
