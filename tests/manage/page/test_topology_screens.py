"""The screens of bindings, dead letters and taps in a headless browser."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
import pytest_asyncio

from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import client_of, queue_of
from tests.manage.page.conftest import Tab, eventually
from tests.manage.page.test_safety import EVIL
from tests.manage.page.watched_fields import lacking_fields, watch_fields

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def amqp(shown: BrokerServer) -> AsyncIterator[Any]:
    """Provide a channel of a client."""
    async with client_of(shown) as channel:
        yield channel


async def test_a_route_is_tried_while_it_is_typed(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """The form names queues, bindings and indexes, follows exchanges, and says when nothing matches."""
    orders = await amqp.declare_exchange("t.orders", "topic")
    copies = await amqp.declare_exchange("t.copies", "headers")
    await copies.bind(orders, "eu.#")
    for name, exchange, key, arguments in (
        ("t.one", orders, "eu.*.paid", {}),
        ("t.two", orders, "us.#", {}),
        ("t.all", copies, "", {"kind": "order", "x-match": "any"}),
    ):
        await (await amqp.declare_queue(name)).bind(exchange, key, arguments=arguments)
    await tab.show("bindings", query="?exchange=t.orders&key=eu.1.paid")
    await tab.sees("Reaches 1 queue", ".route-queues")
    await tab.sees("eu.*.paid", ".card table")
    await tab.sees("topic, tiered", ".card table")
    await tab.page.fill("[name=headers]", '{"kind": "order"}')
    await tab.sees("Reaches 2 queues", ".route-queues")
    assert await tab.page.locator(".route-queues a").all_inner_texts() == ["t.one", "t.all"]
    await tab.page.fill("[name=routing_key]", "asia.1")
    await tab.sees("No queue: the message would be dropped")
    await tab.page.fill("[name=headers]", "{")
    await tab.sees("Headers: ")
    tab.expected_statuses = {404}
    await tab.page.fill("[name=headers]", "")
    await tab.page.fill("[name=exchange]", "t.none")
    await tab.sees("There is no exchange t.none")
    assert all(queue_of(shown, name).ready == 0 for name in ("t.one", "t.two", "t.all"))  # nothing was published


async def test_bindings_are_filtered_tried_and_removed(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """A row's key goes into the form, and a binding is removed where it is listed."""
    topic = await amqp.get_exchange("amq.topic")
    await (await amqp.declare_queue("t.bound")).bind(topic, "a.*.c")
    await tab.show("bindings", query="?bname=a.*.c")
    row = tab.page.locator("tbody tr[tabindex]", has_text="t.bound")
    await row.locator(".menu button").click()
    await tab.page.click("text=Try this key")
    await tab.sees("Reaches 1 queue", ".route-queues")
    assert await tab.page.input_value("[name=routing_key]") == "a.word.c"
    await row.locator(".menu button").click()
    await tab.page.click("text=Unbind…")
    await tab.page.click("dialog .danger")
    await row.wait_for(state="detached")
    assert not [one for one in shown.vhosts["/"].exchanges["amq.topic"].bindings if one.key == "a.*.c"]


async def test_dead_letters_tell_their_story_and_go_back(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """The list names sources and places where dead letters are lost; a message its story; chosen kinds go back."""
    await amqp.declare_exchange("t.dlx", "fanout")
    dead = await amqp.declare_queue("t.dead")
    await dead.bind("t.dlx")
    for name, exchange in (("t.work", "t.dlx"), ("t.more", "t.dlx"), ("t.lost", "t.nowhere")):
        await amqp.declare_queue(name, arguments={"x-dead-letter-exchange": exchange})
    for name, number in (("t.work", 3), ("t.more", 2)):
        queue = await amqp.get_queue(name)
        for _ in range(number):
            body = json.dumps({"of": name}).encode()
            await amqp.default_exchange.publish(aio_pika.Message(body, headers={"trace": "a1"}), name)
            await (await queue.get()).reject(requeue=False)
    await eventually(lambda: queue_of(shown, "t.dead").ready == 5)
    await tab.show("dead-letters")
    await tab.sees("Dead letters of t.lost are lost", ".notice")
    await tab.sees("t.nowhere", ".notice")
    row = tab.page.locator("tbody tr", has_text="t.dead")
    await row.locator("td", has_text="t.work, t.more").wait_for()
    await row.locator("td.name a").click()
    await tab.sees("Story", ".message")
    await tab.sees("Died in t.work: a consumer rejected it", ".story")
    await tab.sees("Kept in t.dead", ".story")
    assert await tab.page.locator(".message-list button").count() == 5
    await tab.page.click("text=rejected in t.more")
    await eventually_count(tab, ".message-list button", 2)
    await tab.press("r")
    await tab.page.fill("dialog [name=limit]", "1")
    await tab.page.click("dialog .primary")
    await tab.sees("1 dead letter requeued", ".toasts")
    await eventually(lambda: queue_of(shown, "t.more").ready == 1)
    await eventually_count(tab, ".message-list button", 1)
    await tab.page.click("text=Requeue…")
    await tab.page.select_option("dialog [name=kind]", "")
    await tab.page.click("dialog .primary")
    await tab.sees("No dead letter is ready here")
    assert [queue_of(shown, name).ready for name in ("t.work", "t.more", "t.dead")] == [3, 2, 0]


async def eventually_count(tab: Tab, selector: str, count: int) -> None:
    """Wait until there are this many elements."""
    await tab.page.locator(selector).nth(count - 1).wait_for()
    await tab.page.locator(selector).nth(count).wait_for(state="detached")


async def test_taps_are_added_sealed_and_read(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """A tap with a cursor: what waits, what is in files, how far behind the reader is; set and removed again."""
    await tab.show("pipeline")
    await tab.page.click("text=Add tap…")
    for name, text in (
        ("name", "t.tap"),
        ("exchange", "amq.direct"),
        ("pattern", "t.#"),
        ("cursor", "archive"),
        ("max_bytes", "10GB"),
        ("max_age", "7d"),
    ):
        await tab.page.fill(f"dialog [name={name}]", text)
    await tab.page.click("dialog .primary")
    card = tab.page.locator(".card", has=tab.page.locator("h2", has_text="t.tap"))
    await card.locator("text=up to date").wait_for()
    exchange = await amqp.get_exchange("amq.direct")
    for _ in range(4):
        await exchange.publish(aio_pika.Message(b"x"), "t.1", mandatory=False)
    await card.locator("text=Seal now").click()
    await card.locator(".cursor", has_text="1 slot, 4 messages").wait_for()
    await card.locator(".cursor .menu button").click()
    await tab.page.click("text=Set the position…")
    [row] = [row for row in shown.taps.listing() if row["name"] == "t.tap"]
    assert (row["max_bytes"], row["max_age_ms"]) == (10**10, 604_800_000)
    await tab.page.fill("dialog [name=seal]", str(row["last_seal"]))
    await tab.page.click("dialog .primary")
    await card.locator("text=up to date").wait_for()
    await card.locator(".card-head .menu button").click()
    await tab.page.click("text=Remove…")
    await tab.page.check("dialog [name=drop]")
    await tab.page.click("dialog .danger")
    await card.wait_for(state="detached")
    assert not [row for row in shown.taps.listing() if row["name"] == "t.tap"]


async def test_parts_that_do_not_run_have_no_screen(tab: Tab, shown: BrokerServer) -> None:
    """A broker by itself offers no screens of a cluster or an overlay."""
    told = (await ask(shown, "GET", "/api/slotmq")).json
    assert [name for name in ("cluster", "overlay", "zmq") if told[name]] == []
    await tab.show("queues")
    await tab.page.goto(f"{tab.base}/#/cluster")
    await tab.sees("There is no such screen")
    assert "Overlay" not in (await tab.text(".nav")).split("\n")


NODE = {"epoch": 7, "url": "amqp://n:5672", "topology": 12, "held": 40, "slots": 3, "clients": 2, "version": "1"}
REPORTED = {"lease_ms": 6000, "database_ms": 1}
CLUSTER: dict[str, Any] = {
    "node": EVIL, "epoch": 7, "state": "joined", "schema": EVIL, "database": EVIL, "database_ms": None,
    "beat_age_ms": 100, "lease_ms": 6000, "topology": 12, "reason": EVIL, "database_trouble": EVIL,
    "nodes": [
        {**NODE, **REPORTED, "node": EVIL, "state": "alive", "beat_age_ms": 100},
        {**NODE, **REPORTED, "node": "b", "state": "silent", "beat_age_ms": 5000, "topology": 10},
        {**NODE, **REPORTED, "node": "c", "state": "silent", "beat_age_ms": 6100},
    ],
}  # fmt: skip
SPACE = {"vhost": "/", "exchange": EVIL}
OVERLAY: list[dict[str, Any]] = [
    {
        "broker": EVIL, "node": "site", "leaf": True, "delivered": 5, "gaps": 0, "forced_out": 0,
        "links": [
            {"peer": EVIL, "node": EVIL, "state": "down", "sent_bytes": 1, "received_bytes": 2},
            {"peer": "m", "node": "middle", "state": "up", "sent_bytes": 1, "received_bytes": 2},
        ],
        "leaves": [{"leaf": f"{EVIL}{number}", "node": EVIL, "time": number, "durable": True} for number in range(20)],
        "patterns": [{**SPACE, "node": EVIL, "count": 1, "patterns": [EVIL], "vector": {EVIL: 3}}],
        "streams": [{**SPACE, "last": 9, "sent": 8, "acked": 6, "lag": 3, "vector": {EVIL: 3}}],
        "received": [{**SPACE, "leaf": EVIL, "position": 4, "reached": 6, "lag": 2, "repairs": 0}],
    }
]  # fmt: skip


async def test_cluster_and_overlay_as_a_node_would_tell(tab: Tab) -> None:
    """The screens of parts that do not run here, from answers with hostile names: shown, counted, never markup."""
    answers = {
        "/api/slotmq": {"cluster": True, "overlay": True, "zmq": True, "mqtt": False, "choices": {}},
        "/api/slotmq/cluster": CLUSTER,
        "/api/slotmq/overlay": OVERLAY,
        "/api/slotmq/zmq": [{"kind": "publish", "endpoint": EVIL, "exchange": EVIL, "state": "down", "problem": EVIL}],
    }

    async def answer(route: Any) -> None:
        told = answers[route.request.url.removeprefix(tab.base)]
        await route.fulfill(body=json.dumps(told), content_type="application/json")

    for path in answers:
        await tab.page.route(tab.base + path, answer)
    await watch_fields(tab)
    await tab.show("cluster")
    await tab.sees("This node does not reach the database", ".notice")
    await tab.sees("2 changes", "tbody")
    assert await tab.page.locator(".lease.bad").count() == 2
    assert await tab.page.locator(".lease").all_inner_texts() == ["5 s", "1 s", "expired"]
    await tab.show("overlay")
    await tab.sees("1 link down", ".notice")
    await tab.sees("8 more", ".graph")
    assert (await tab.text(".figures")).split("\n") == [
        "Links up", "1 of 2", "Leaves known", "20", "To be acknowledged", "3", "To be received", "2",
        "Delivered here", "5", "Gaps", "0",
    ]  # fmt: skip
    for number in "23456":  # the other tabs
        await tab.press(number)
        await tab.page.wait_for_selector("[role=tabpanel] td")
        assert await tab.page.evaluate("window.pwned") is None
    assert await lacking_fields(tab) == set()
    await tab.show("pipeline")
    await tab.sees(EVIL, "tbody")
    assert await tab.page.evaluate("window.pwned") is None
    assert await tab.page.locator("main img").count() == 0


async def test_retained_messages_are_found_shown_and_deleted(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """A filter of MQTT finds topics, a row shows its message and deletes it; a hostile topic is only text."""
    exchange = await amqp.get_exchange("amq.topic")
    for key, body in (("r.hall", b"19.5"), ("r.bin", b"\xff\xfe"), (f"r.{EVIL.replace('.', '')}", EVIL.encode())):
        message = aio_pika.Message(body, headers={"x-mqtt-retain": True}, delivery_mode=2)
        await exchange.publish(message, key, mandatory=False)
    await tab.show("retained")
    await tab.page.fill("[name=filter]", "r/+")
    await tab.page.press("[name=filter]", "Enter")
    await tab.sees("3 topics", ".table-tools")
    await tab.sees("19.5", "tbody")
    await tab.page.fill("[name=filter]", "r/hall")
    await tab.page.press("[name=filter]", "Enter")
    await tab.sees("1 topic", ".table-tools")
    await tab.page.click("tbody tr button")
    await tab.page.click("text=Show")
    await tab.sees("r.hall", "dialog")
    await tab.page.keyboard.press("Escape")
    await tab.page.click("tbody tr button")
    await tab.page.click("text=Delete…")
    await tab.page.click("dialog button.danger")
    await tab.sees("Nothing is retained here")
    answer = await ask(shown, "GET", "/api/slotmq/retained/%2F?filter=r/%23")
    assert len(answer.json["rows"]) == 2
    await ask(shown, "DELETE", "/api/slotmq/retained/%2F?filter=%23")
