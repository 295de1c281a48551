"""Rows that need more than a usual broker: clusters, TLS, vhosts that are down, long queues, many bindings."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aio_pika
import pytest

from broker.administration.definitions import Draft
from broker.core.auth.peer import TlsFacts
from broker.manage.api.connections import _tls_fields
from broker.manage.api.nodes import node_rows
from broker.manage.api.queues import LISTED_EXACTLY_MAX
from broker.operations.operated_broker import ClusterMembership
from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import client_of, queue_of
from tests.manage.shop import get, managed_broker

CERTIFICATE = {
    "subject": ((("organizationName", "Example"),), (("commonName", "client"),)),
    "issuer": ((("commonName", "Example CA"),),),
    "notBefore": "Jan  1 00:00:00 2026 GMT",
    "notAfter": "Jan  1 00:00:00 2027 GMT",
}


async def test_the_other_nodes_of_a_cluster_have_rows(tmp_path: Path) -> None:
    """A row of another node has the types of this node's, and what the node reports."""
    others = [
        {"node": "n2", "state": "alive", "clients": 4, "version": "9.9"},
        {"node": "n3", "state": "silent"},
    ]
    async with managed_broker(tmp_path / "data") as broker:
        own = broker.entrance.managed.node_name
        cluster = cast("ClusterMembership", SimpleNamespace(facts=lambda: {"nodes": [{"node": own}, *others]}))
        rows = node_rows(replace(broker.entrance.managed, cluster=cluster))
    assert [(row["name"], row["running"], row["sockets_used"]) for row in rows[1:]] == [
        ("n2", True, 4),
        ("n3", False, 0),
    ]
    for row in rows[1:]:
        assert row.keys() == rows[0].keys()
        assert {name: type(value) for name, value in row.items()} == {
            name: type(value) for name, value in rows[0].items()
        }


async def test_this_node_tells_what_the_system_says(tmp_path: Path) -> None:
    """Memory, descriptors and disk are those of the process and the machine."""
    async with managed_broker(tmp_path / "data", memory={"alarm_bytes": 1}) as broker:
        [row] = await get(broker, "nodes")
        assert row["mem_used"] > 1 << 20
        assert (row["mem_limit"], row["mem_alarm"], row["disk_free_alarm"]) == (1, True, False)
        assert 0 < row["fd_used"] < row["fd_total"]
        assert row["disk_free"] > 0
        assert row["os_pid"] == str(broker._facts()["pid"])
        assert (await get(broker, f"nodes/{row['name']}"))["name"] == row["name"]
        memory = (await get(broker, f"nodes/{row['name']}/memory"))["memory"]
        assert memory["total"]["rss"] > 1 << 20
        ports = {(one["protocol"], one["port"]) for one in (await get(broker, "overview"))["listeners"]}
        assert ports == {("amqp", broker.listener.port), ("http", broker.manage.port())}


def test_a_connection_shows_its_certificate() -> None:
    """The row has the TLS parameters, and the names in the client's certificate as RabbitMQ writes them."""
    fields = _tls_fields(TlsFacts("TLSv1.3", "TLS_AES_256_GCM_SHA384", CERTIFICATE))
    assert fields["ssl"] is True
    assert (fields["ssl_protocol"], fields["ssl_cipher"]) == ("TLSv1.3", "TLS_AES_256_GCM_SHA384")
    assert fields["peer_cert_subject"] == "commonName=client,organizationName=Example"
    assert fields["peer_cert_issuer"] == "commonName=Example CA"
    assert fields["peer_cert_validity"] == "Jan  1 00:00:00 2026 GMT - Jan  1 00:00:00 2027 GMT"
    assert set(_tls_fields(None).values()) == {None, False}


async def test_a_vhost_that_is_down_is_listed(broker: BrokerServer) -> None:
    """It has no numbers, and its state says that it is stopped; a request for what is in it tells operators why."""
    broker.vhosts.offline["crm"] = "segment 7 is on fire"
    rows = await get(broker, "vhosts")
    assert [(row["name"], list(row["cluster_state"].values())) for row in rows] == [
        ("/", ["running"]),
        ("crm", ["stopped"]),
    ]
    assert "messages" not in await get(broker, "vhosts/crm")
    down = (503, "unavailable", "vhost 'crm' is down: segment 7 is on fire")
    assert (await ask(broker, "GET", "/api/queues/crm")).refusal == down
    assert (await ask(broker, "GET", "/api/vhosts/crm/permissions")).refusal == down
    assert (await ask(broker, "PUT", "/api/queues/crm/q", {})).status == 401  # guest has no permissions there

    def edit(draft: Draft) -> None:
        draft.users.add("reader", "an own password", ["management"])
        draft.permissions.set("reader", "crm", "", "", "")

    await broker.administration.change(edit)
    said = await ask(broker, "GET", "/api/queues/crm", user=("reader", "an own password"))
    assert said.refusal == (503, "unavailable", "vhost 'crm' is down")  # the reason names files
    del broker.vhosts.offline["crm"]


async def test_bytes_of_long_queues_are_extrapolated_in_lists(tmp_path: Path) -> None:
    """A list counts the first messages of a queue; the queue itself counts them all."""
    slots = {"window_messages": 100}
    async with managed_broker(tmp_path / "data", slots=slots) as broker, client_of(broker) as channel:
        await channel.declare_queue("work", durable=True)
        bodies = [b"12345678"] * LISTED_EXACTLY_MAX + [b"1"] * 500
        count = len(bodies)
        publish = channel.default_exchange.publish
        await asyncio.gather(*(publish(aio_pika.Message(body, delivery_mode=2), "work") for body in bodies))
        [listed] = await get(broker, "queues")
        shown = await get(broker, "queues/%2F/work")
        assert (listed["messages"], listed["message_bytes"]) == (count, 8 * count)
        assert (shown["messages"], shown["message_bytes"]) == (count, 8 * LISTED_EXACTLY_MAX + 500)
        for row in (listed, shown):
            assert (row["messages_persistent"], row["messages_ready_ram"], row["slots"] > 10) == (count, count, True)
            assert row["message_bytes_persistent"] == row["message_bytes_ready"] == row["message_bytes_ram"]


async def test_lists_by_other_names(broker: BrokerServer, channel: Any) -> None:
    """The connections of one user, and queues with details, which RabbitMQ 4 lists on their own."""
    await channel.declare_queue("work")
    assert [row["user"] for row in await get(broker, "connections/username/guest")] == ["guest"]
    assert await get(broker, "connections/username/nobody") == []
    assert [row["name"] for row in await get(broker, "queues/detailed")] == ["work"]
    page = await get(broker, "connections?page=1&name=GUEST")
    assert page["filtered_count"] == 1


async def test_bindings_of_every_kind_have_a_key(broker: BrokerServer) -> None:
    """The properties key of a binding finds it: quoted once, quoted twice, and with arguments."""
    vhost = broker.vhosts["/"]
    vhost.queues.declare("q")
    vhost.exchanges.declare("h", "headers")
    made: list[tuple[str, dict[str, Any]]] = [
        ("", {}), ("a.#", {}), ("a%2E", {}), ("~", {}), ("a b/c", {}), ("", {"x": 1}), ("", {"x": 2}),
        ("~", {"x": 1}),
    ]  # fmt: skip
    for key, arguments in made:
        vhost.bindings.bind("q", "h", key, arguments)
    rows = await get(broker, "bindings/%2F/e/h/q/q")
    assert len({row["properties_key"] for row in rows}) == len(made)
    for row in rows:
        key = row["properties_key"]
        twice = key.replace("%", "%25")
        assert await get(broker, f"bindings/%2F/e/h/q/q/{twice}") == row
        if "%7E" not in key:  # which the path turns into the mark of something else
            assert await get(broker, f"bindings/%2F/e/h/q/q/{key}") == row
    assert len(await get(broker, "exchanges/%2F/h/bindings/source")) == len(made)
    assert len(await get(broker, "queues/%2F/q/bindings")) == len(made) + 1
    page = await get(broker, "bindings?page=2&page_size=3")
    assert (page["total_count"], page["item_count"]) == (len(made) + 1, 3)
    assert (await ask(broker, "GET", "/api/bindings/%2F/e/h/q/q/none")).status == 404


async def test_this_node_is_found_by_rabbitmqs_name_for_it(broker: BrokerServer) -> None:
    """Monitoring plugins ask for `rabbit@` and the machine's host name, short or with a domain."""
    host = socket.gethostname().partition(".")[0]
    own = (await get(broker, "nodes"))[0]["name"]
    for name in (own, f"rabbit@{host}", f"rabbit@{host.upper()}.example.org"):
        assert (await get(broker, f"nodes/{name}"))["name"] == own
        assert "memory" in await get(broker, f"nodes/{name}/memory")
        assert (await ask(broker, "GET", f"/api/healthchecks/node/{name}")).status == 200
    for name in ("rabbit@other", f"other@{host}", "rabbit"):
        assert (await ask(broker, "GET", f"/api/nodes/{name}")).status == 404


async def test_what_is_in_force_of_two_policies_is_shown(broker: BrokerServer, channel: Any) -> None:
    """The least of two numbers counts, as in the queue itself; a limit of deliveries of -1 is none."""
    policy = {"max-length": 5, "expires": 50_000, "overflow": "reject-publish", "delivery-limit": -1}
    operator = {"max-length": 9, "expires": 40_000, "delivery-limit": 7}
    for kind, definition in (("policies", policy), ("operator-policies", operator)):
        body = {"pattern": "^q$", "definition": definition, "apply-to": "queues"}
        assert (await ask(broker, "PUT", f"/api/{kind}/%2F/p", body)).status == 201
    await channel.declare_queue("q", durable=True, arguments={"x-queue-type": "quorum"})
    queue = queue_of(broker, "q")
    row = await get(broker, "queues/%2F/q")
    assert row["effective_policy_definition"] == {
        "max-length": 5, "expires": 40_000, "overflow": "reject-publish", "delivery-limit": 7,
    }  # fmt: skip
    assert (queue.rules.max_length, queue.rules.expires_ms, queue.rules.delivery_limit) == (5, 40_000, 7)


async def test_the_age_of_the_next_message_is_shown(broker: BrokerServer, channel: Any) -> None:
    """It is the number that the publisher gave, whatever its unit."""
    queue = await channel.declare_queue("q")
    assert (await get(broker, "queues/%2F/q"))["head_message_timestamp"] is None
    for stamp in (1_796_000_000, 1_796_000_001, None):
        message = aio_pika.Message(b"x", timestamp=stamp)
        await channel.default_exchange.publish(message, "q")
    assert (await get(broker, "queues/%2F/q"))["head_message_timestamp"] == 1_796_000_000
    await queue.get(no_ack=True)
    assert (await get(broker, "queues/%2F/q"))["head_message_timestamp"] == 1_796_000_001
    await queue.get(no_ack=True)
    assert (await get(broker, "queues/%2F/q"))["head_message_timestamp"] is None


@pytest.mark.parametrize("tag", ["management", "monitoring", ""])
async def test_the_overview_counts_what_its_reader_sees(tmp_path: Path, tag: str) -> None:
    """A user without the tag monitoring has totals of the own vhosts and connections; without a tag none."""
    async with managed_broker(tmp_path / "data") as broker, client_of(broker):

        def edit(draft: Draft) -> None:
            for name in ("own", "foreign"):
                draft.add_vhost(name, {})
            draft.users.add("reader", "an own password", [tag] if tag else [])
            draft.permissions.set("reader", "own", "", "", "")

        await broker.administration.change(edit)
        for vhost in broker.vhosts.values():
            vhost.queues.declare("q")
        reader = ("reader", "an own password")
        if not tag:
            said = await ask(broker, "GET", "/api/overview", user=reader)
            assert said.refusal == (401, "not_authorised", "Not management user")
            return
        overview = await get(broker, "overview", user=reader)
        totals = overview["object_totals"]
        assert (totals["queues"], totals["connections"]) == ((3, 1) if tag == "monitoring" else (1, 0))
        assert ("node" in overview) is (tag == "monitoring")
