"""The page reads no field that the API's answers lack, and shows what is missing as unknown."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest

from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import client_of, queue_of
from tests.manage.page.conftest import Tab, eventually
from tests.manage.page.test_safety import ignore
from tests.manage.page.watched_fields import lacking_fields, page_has, watch_fields

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_page_reads_what_the_answers_have(tab: Tab, shown: BrokerServer) -> None:
    """Every screen and tab, with a queue, consumer, dead letter, connection, policy and tap to show."""
    policy = {"pattern": "^f\\.work$", "definition": {"max-length": 9}}
    for method, path, body in (
        ("PUT", "policies/%2F/f", policy),
        ("PUT", "operator-policies/%2F/f.top", {**policy, "apply-to": "queues"}),
        ("PUT", "slotmq/pipeline/taps/%2F/f", {"exchange": "amq.topic", "pattern": "#", "cursors": ["f"]}),
    ):
        assert (await ask(shown, method, f"/api/{path}", body)).status < 300
    async with client_of(shown) as channel:
        dead = await channel.declare_queue("f.dead")
        dying: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "f.dead"}
        work = await channel.declare_queue("f.work", durable=True, arguments=dying)
        for _ in range(3):
            message = aio_pika.Message(b"{}", headers={"a": 1}, delivery_mode=2)
            await channel.default_exchange.publish(message, "f.work")
        await (await work.get()).reject(requeue=False)
        await eventually(lambda: queue_of(shown, "f.dead").ready == 1)
        await channel.set_qos(1)
        await work.consume(ignore, consumer_tag="f")
        retained = aio_pika.Message(b"{}", headers={"x-mqtt-retain": True}, expiration=60)
        await (await channel.get_exchange("amq.topic")).publish(retained, "f.kept", mandatory=False)
        [name] = {row["name"] for row in (await ask(shown, "GET", "/api/connections")).json}
        await watch_fields(tab)
        await tab.show()
        addresses = await tab.page.eval_on_selector_all(".nav a", "links => links.map(link => link.hash)")
        parts = ("", "unacked", "consumers", "bindings", "details")
        addresses += [f"#/queues/%2F/f.work?tab={part}" for part in parts]
        addresses += ["#/exchanges/%2F/amq.topic", "#/users/guest", "#/vhosts/%2F", "#/dead-letters/%2F/f.dead"]
        addresses.append(f"#/connections/{quote(name)}")
        lacking = set[str]()
        for address in addresses:
            streamed = await tab.page.evaluate("window.streamed")
            await tab.open(address)
            lacking |= await lacking_fields(tab)
            if address in ("#/", "#/queues/%2F/f.work?tab="):  # live figures have their own fields
                await page_has(tab, f"window.streamed > {streamed + 1}")
                lacking |= await lacking_fields(tab)
        assert lacking == set()

        await tab.show("queues", "/", "f.work", query="?tab=details")
        await tab.sees("Operator policy", "[role=tabpanel]")
        facts = " ".join((await tab.text("[role=tabpanel]")).split())
        assert "Policy f Operator policy f.top" in facts and "Persistent messages 2" in facts
        assert "Messages in memory 2" in facts and "max-length 9" in facts
        await tab.show()  # away from the queue, which the page would ask for again
        await dead.delete(if_empty=False)
        await work.delete(if_unused=False, if_empty=False)
    for path in ("policies/%2F/f", "operator-policies/%2F/f.top", "slotmq/pipeline/taps/%2F/f?drop=true"):
        assert (await ask(shown, "DELETE", f"/api/{path}")).status < 300


async def test_what_is_missing_is_unknown(tab: Tab, shown: BrokerServer) -> None:
    """An answer without most of its fields: the page shows "?", and neither none nor zero."""
    async with client_of(shown) as channel:
        await channel.declare_queue("f.bare")
        row = {"vhost": "/", "name": "f.bare", "arguments": {}, "effective_policy_definition": {}}

        async def answer(route: Any) -> None:
            await route.fulfill(body=json.dumps(row), content_type="application/json")

        await tab.page.route("**/api/queues/%2F/f.bare?columns=*", answer)
        await tab.show("queues", "/", "f.bare", query="?tab=details")
        await tab.sees("Operator policy", "[role=tabpanel]")
        facts = (await tab.text("[role=tabpanel] .facts >> nth=0")).split("\n")
        facts += (await tab.text("[role=tabpanel] .facts >> nth=1")).split("\n")
        told = dict(zip(facts[::2], facts[1::2], strict=True))
        assert told.pop("Vhost") == "/"
        assert set(told.values()) == {"?"} and {"Policy", "Durable", "Messages in memory"} <= told.keys()
