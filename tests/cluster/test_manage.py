"""Changes over the HTTP API of one node reach every node."""

from __future__ import annotations

from pathlib import Path

from tests.deadline import wait_until_async
from tests.in_process import client_of, running_broker
from tests.manage.api_talk import HTTP, Api
from tests.manage.page.test_topology_screens import CLUSTER

TAKE = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}


async def test_what_one_node_changes_over_http_another_has(tmp_path: Path, postgres_url: str, schema: str) -> None:
    """A queue, its messages and a policy go through the node that was asked."""
    cluster = {"url": postgres_url, "schema_name": schema}
    async with (
        running_broker(tmp_path / "a", None, http=HTTP, cluster={**cluster, "node": "a"}) as first,
        running_broker(tmp_path / "b", None, http=HTTP, cluster={**cluster, "node": "b"}) as second,
    ):
        a, b = Api(first), Api(second)
        await a.expect(201, "PUT", "queues/%2F/q", {"durable": True})
        await b.expect(204, "PUT", "queues/%2F/q", {"durable": True})
        await b.expect(400, "PUT", "queues/%2F/q", {"durable": True, "arguments": {"x-max-length": 1}})
        message = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
        assert await a.expect(200, "POST", "exchanges/%2F/amq.default/publish", message) == {"routed": True}
        [row] = await b.expect(200, "POST", "queues/%2F/q/get", TAKE)
        assert row["payload"] == "x"
        await b.expect(201, "PUT", "policies/%2F/p", {"pattern": "q", "definition": {"max-length": 9}})
        assert first.vhosts["/"].queues["q"].policy == "p"
        await b.expect(200, "POST", "exchanges/%2F/amq.default/publish", message)
        [row] = await a.expect(200, "GET", "queues/%2F/q/peek")
        assert (row["payload"], row["redelivered"]) == ("x", False)
        moved = await a.expect(200, "POST", "queues/%2F/q/move", {"to": "exchange:amq.topic"})
        assert (moved["unroutable"], moved["left"]) == (1, 1)
        kept = await b.expect(200, "POST", "queues/%2F/q/requeue-dead-letters", {})
        assert (kept["unwanted"], kept["left"]) == (1, 1)
        async with client_of(first) as channel:
            held = await (await channel.declare_queue("q", durable=True)).get()
            rows = [(await one.expect(200, "GET", "queues/%2F/q/unacked?truncate=9"))[0] for one in (a, b)]
            assert [row.get("node") for row in rows] == [None, "a"]
            assert [(row["payload"], row["delivery_tag"], row["user"]) for row in rows] == [("x", 1, "guest")] * 2
            assert rows[0]["connection"] == rows[1]["connection"]
            await held.ack()
        dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
        await a.expect(201, "PUT", "queues/%2F/work", {"durable": True, "arguments": dying})
        for _ in range(3):
            await a.expect(200, "POST", "exchanges/%2F/amq.default/publish", message)
        [row] = [row for row in await b.expect(200, "GET", "slotmq/dead-letters") if row["name"]]
        assert (row["name"], row["messages_ready"], row["sources"]) == ("q", 3, ["work"])
        await b.expect(204, "DELETE", "queues/%2F/q")

        async def gone() -> bool:
            return (await a.ask("GET", "queues/%2F/q")).status == 404

        await wait_until_async(gone, "the queue is deleted on both")
        for health in ("node-is-quorum-critical", "protocol-listener/clustering", "alarms"):
            assert (await a.expect(200, "GET", f"health/checks/{health}"))["status"] == "ok"
        told = await a.expect(200, "GET", "slotmq/cluster")
        assert CLUSTER.keys() <= told.keys()  # what the page's own test shows
        assert all(CLUSTER["nodes"][0].keys() <= node.keys() for node in told["nodes"])
        a.close()
        b.close()
