"""The routes that RabbitMQ does not have: running parts, dead letters, pipeline, cluster, overlay, ØMQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import client_of, running_broker
from tests.manage.api_talk import HTTP


async def told(broker: BrokerServer, path: str, method: str = "GET", body: Any = None) -> Any:
    """Send a request and return the JSON of its answer, or the status if that has none."""
    said = await ask(broker, method, f"/api/slotmq{path}", body)
    return said.json if said.body else said.status


async def refusal(broker: BrokerServer, path: str, method: str = "GET", body: Any = None) -> tuple[int, str]:
    """Send a request that is refused, and return status and reason."""
    status, _error, reason = (await ask(broker, method, f"/api/slotmq{path}", body)).refusal
    return status, reason


async def test_parts_that_do_not_run(broker: BrokerServer) -> None:
    """A broker by itself says so, and its routes for other parts are not found."""
    parts = await told(broker, "")
    assert "topic" in parts.pop("choices")["exchange_types"]
    assert parts == {"cluster": False, "mqtt": False, "overlay": False, "zmq": False}
    assert await refusal(broker, "/cluster") == (
        404,
        "this broker is standalone, not a node of a cluster: it runs without --cluster",
    )
    for path in ("/overlay", "/overlay/explain?key=a", "/zmq"):
        status, reason = await refusal(broker, path)
        assert (status, "its settings have no [[" in reason) == (404, True), path
    for path in ("/cluster/nodes/n1", "/overlay/leaves/l1"):
        assert (await refusal(broker, path, "DELETE"))[0] == 404


async def test_where_dead_letters_go(broker: BrokerServer) -> None:
    """Queues that keep dead letters are listed with the queues they come from, and places where they are lost."""
    async with client_of(broker) as channel:
        await channel.declare_exchange("dlx", "fanout")
        await channel.declare_exchange("empty", "topic")
        onward = await channel.declare_exchange("onward", "fanout")
        await onward.bind("dlx")
        for name in ("dead", "by-name"):
            await channel.declare_queue(name)
        await (await channel.get_queue("dead")).bind("onward")
        for name, exchange, key in (
            ("a", "dlx", None),
            ("b", "dlx", "k"),
            ("c", "", "by-name"),
            ("d", "empty", None),
            ("e", "missing", None),
            ("f", "", None),
        ):
            arguments = {"x-dead-letter-exchange": exchange} | ({"x-dead-letter-routing-key": key} if key else {})
            await channel.declare_queue(name, arguments=arguments)
        queue = await channel.get_queue("a")
        await channel.default_exchange.publish(aio_pika.Message(b"x"), "a")
        await (await queue.get()).reject(requeue=False)
        await channel.declare_queue("dead", passive=True)  # the rejection was carried out before this
        rows = await told(broker, "/dead-letters")
    kept = {row["name"]: row for row in rows if row["name"] is not None}
    assert {name: row["sources"] for name, row in kept.items()} == {"dead": ["a", "b"], "by-name": ["c"]}
    assert (kept["dead"]["messages"], kept["dead"]["messages_ready"], kept["dead"]["source_count"]) == (1, 1, 2)
    lost = {row["sources"][0]: (row["exchange"], row["lost"], row["reason"]) for row in rows if row["name"] is None}
    assert lost == {
        "d": ("empty", True, "nothing is bound there: dead letters are dropped"),
        "e": ("missing", True, "the exchange does not exist: dead letters are dropped"),
        "f": ("", False, "each goes to the queue that its routing key names"),
    }
    assert await told(broker, "/dead-letters/%2F") == rows
    assert (await refusal(broker, "/dead-letters/none"))[0] == 404


async def test_life_of_a_tap(broker: BrokerServer) -> None:
    """A tap with a cursor: added, filled, sealed, its lag read, the cursor moved, everything removed."""
    tap = "/pipeline/taps/%2F/orders"
    asked = {"exchange": "amq.topic", "pattern": "eu.#", "cursors": ["archive", "slow"], "max_bytes": 1 << 20}
    assert await told(broker, tap, "PUT", asked) == 201
    async with client_of(broker) as channel:
        exchange = await channel.get_exchange("amq.topic")
        for _ in range(3):
            await exchange.publish(aio_pika.Message(b"x"), "eu.1", mandatory=False)
    [row] = (await told(broker, "/pipeline"))["taps"]
    assert (row["name"], row["waiting"], row["messages"], row["max_bytes"]) == ("orders", 3, 0, 1 << 20)
    sealed = await told(broker, f"{tap}/seal", "POST")
    [row] = (await told(broker, "/pipeline"))["taps"]
    cursor, _slow = row["cursors"]
    assert (row["waiting"], row["slots"], row["last_seal"]) == (0, 1, sealed["last_seal"])
    assert (cursor["name"], cursor["lag_slots"], cursor["lag_messages"]) == ("archive", 1, 3)
    assert await told(broker, f"{tap}/cursors/archive", "PUT", {"seal": sealed["last_seal"]}) == 204
    [row] = (await told(broker, "/pipeline"))["taps"]
    assert [cursor["lag_slots"] for cursor in row["cursors"]] == [0, 1]  # the other reader keeps the file
    for body, lag in (({"seal": 0}, 0), ({"seal": 0, "reset": True}, 1)):  # it moves back only when told to
        assert await told(broker, f"{tap}/cursors/archive", "PUT", body) == 204
        [row] = (await told(broker, "/pipeline"))["taps"]
        assert [cursor["lag_slots"] for cursor in row["cursors"]] == [lag, 1]
    assert (await refusal(broker, f"{tap}/cursors/archive", "PUT", {}))[1] == "'seal' is missing"
    assert await told(broker, f"{tap}/cursors/archive", "DELETE") == 204
    assert (await refusal(broker, f"{tap}/cursors/archive", "DELETE"))[0] == 404
    assert (await refusal(broker, f"{tap}?drop=perhaps", "DELETE"))[0] == 400
    assert await told(broker, f"{tap}?drop=true", "DELETE") == {"messages": 3, "slots": 1, "bytes": row["bytes"]}
    assert (await refusal(broker, tap, "DELETE"))[0] == 404
    assert (await refusal(broker, "/pipeline/taps/none/orders", "PUT", asked))[0] == 404
    assert (await refusal(broker, tap, "PUT", {"exchange": "none", "pattern": "#"}))[0] == 400


async def test_slashes_at_the_end(broker: BrokerServer) -> None:
    """Under /api a slash at the end counts for nothing."""
    assert await told(broker, "/") == await told(broker, "")
    assert await told(broker, "/dead-letters/") == await told(broker, "/dead-letters/%2F")
    assert (await ask(broker, "GET", "/api/slotmq/dead-letters//")).status == 404
    assert (await ask(broker, "GET", "/v1/taps/")).status == 404


async def test_the_overlay_of_this_process(tmp_path: Path) -> None:
    """Links, interest and streams of each broker, where a key goes, and a leaf that is given up."""
    far = {"node": "middle", "broker": "m", "url": "amqp://guest:guest@127.0.0.1:9"}  # nobody listens there
    node = {"broker": "l", "node": "site-l", "leaf": True, "neighbours": [far]}
    async with running_broker(tmp_path, http=HTTP, overlay={"exchanges": ["x*"], "node": [node]}) as broker:
        assert (await told(broker, ""))["overlay"] is True
        async with client_of(broker) as channel:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            await (await channel.declare_queue("here", durable=True)).bind(exchange, "h.#")
            [row] = await told(broker, "/overlay")
            assert (row["broker"], row["leaf"]) == ("l", True)
            assert [(link["peer"], link["state"]) for link in row["links"]] == [("m", "down")]
            for key, goes in (("h.1", True), ("a.1", False)):
                rows = await told(broker, f"/overlay/explain?key={key}&exchange=x")
                assert [one["goes"] for one in rows if one["to"] == "here"] == [goes]
            assert (await refusal(broker, "/overlay/leaves/nobody", "DELETE"))[0] == 400


async def test_zmq_bridges(tmp_path: Path) -> None:
    """A row for each endpoint."""
    pytest.importorskip("zmq")
    endpoint = {"endpoint": "tcp://127.0.0.1:*", "exchange": "amq.topic"}
    async with running_broker(tmp_path, http=HTTP, zmq={"publish": [endpoint]}) as broker:
        [row] = await told(broker, "/zmq")
        assert (row["kind"], row["exchange"], row["messages"]) == ("publish", "amq.topic", 0)
        assert (await told(broker, ""))["zmq"] is True
