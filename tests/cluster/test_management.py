"""The HTTP API of a node of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.http_talk import Web


@pytest.fixture
def web(tmp_path: Path, postgres_url: str, schema: str) -> Iterator[Web]:
    """Provide a connection to the API of the only node of a cluster."""
    environment = {
        "SLOTMQ_CLUSTER__URL": postgres_url,
        "SLOTMQ_CLUSTER__SCHEMA_NAME": schema,
        "SLOTMQ_HTTP__ENABLED": "true",
        "SLOTMQ_HTTP__PORT": "0",
    }
    node = BrokerProcess(tmp_path / "a", "--node", "a", environment=environment).start()
    status: Any = ask(node.folder, "status")
    web = Web(urlsplit(status["http_url"]).port or 0)
    yield web
    web.close()
    errors = node.errors()
    assert node.terminate() == 0, node.stderr()
    assert not errors, errors


def test_a_node_shows_the_cluster_and_changes_it(web: Web) -> None:
    """The node names itself, declares no living node dead, and carries out what the API is asked for."""
    told = web.get("/api/slotmq").json
    assert (told["cluster"], told["overlay"], told["zmq"]) == (True, False, False)
    facts = web.get("/api/slotmq/cluster").json
    assert (facts["node"], facts["state"], [row["node"] for row in facts["nodes"]]) == ("a", "joined", ["a"])
    assert facts["database_ms"] is not None
    for node, reason in (("a", "'a' is this node"), ("b", "no node 'b' in the cluster")):
        status, _word, told = web.ask("DELETE", f"/api/slotmq/cluster/nodes/{node}").refusal
        assert (status, reason in told) == (400, True), told

    [node] = web.get("/api/nodes").json
    assert (node["name"], node["running"]) == ("a", True)
    assert web.get("/api/overview").json["node"] == "a"
    assert web.ask("PUT", "/api/queues/%2F/shared", {"durable": True}).status == 201
    assert web.ask("PUT", "/api/queues/%2F/shared", {"durable": True}).status == 204
    assert web.ask("PUT", "/api/vhosts/more").status == 201
    said = web.ask(
        "POST",
        "/api/exchanges/%2F/amq.default/publish",
        {"routing_key": "shared", "payload": "one", "payload_encoding": "string", "properties": {"delivery_mode": 2}},
    )
    assert said.json == {"routed": True}
    wait_until(lambda: web.get("/api/queues/%2F/shared").json["messages"] == 1, "the message is counted")
    assert [row["payload"] for row in web.get("/api/queues/%2F/shared/peek?count=1").json] == ["one"]
    taken = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert [row["payload"] for row in web.ask("POST", "/api/queues/%2F/shared/get", taken).json] == ["one"]
    assert web.ask("DELETE", "/api/queues/%2F/shared").status == 204
    assert web.get("/api/slotmq/dead-letters").json == []
    assert web.get("/api/definitions").json["vhosts"]
