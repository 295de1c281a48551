"""The screens of users, vhosts, policies and definitions in a headless browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import client_of
from tests.manage.page.conftest import Tab, eventually, logged_in
from tests.manage.page.test_safety import EVIL

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_life_of_a_user(tab: Tab, shown: BrokerServer) -> None:
    """A user is added with tags, gets rights, a restriction of topics and a limit, and is deleted."""
    await tab.show("users")
    await tab.page.click("text=Add user…")
    for name, text in (("name", "t-ann"), ("password", "secret"), ("again", "other")):
        await tab.page.fill(f"dialog [name={name}]", text)
    await tab.page.click("dialog .primary")
    await tab.sees("The two passwords differ.", "dialog")
    await tab.page.fill("dialog [name=again]", "secret")
    await tab.page.check("dialog [name=monitoring]")
    await tab.page.click("dialog .primary")
    await tab.page.click("tbody >> text=t-ann")
    await tab.sees("No access to any vhost")
    users: Any = shown.administration.users
    assert set(users.get("t-ann").tags) == {"management", "monitoring"}
    await tab.page.click("text=Set permissions…")
    await tab.page.fill("dialog [name=configure]", "^ann")
    await tab.page.click("dialog .primary")
    await tab.sees("^ann", "tbody")
    await tab.page.click("text=Restrict topics…")
    await tab.page.click("dialog .primary")
    await tab.sees("amq.topic", "tbody")
    await tab.page.fill("[aria-label=Connections]", "3")
    await tab.page.press("[aria-label=Connections]", "Enter")
    await tab.sees("at most 3", ".toasts")
    assert users.get("t-ann").limits.to_json() == {"max-connections": 3}
    rights = (await ask(shown, "GET", "/api/permissions/%2F/t-ann")).json
    assert (rights["configure"], rights["write"]) == ("^ann", ".*")
    await tab.page.click("text=Tags and password…")
    await tab.page.uncheck("dialog [name=monitoring]")
    await tab.page.click("dialog .primary")
    await eventually(lambda: set(users.get("t-ann").tags) == {"management"})
    assert (await ask(shown, "GET", "/api/whoami", user=("t-ann", "secret"))).status == 200  # the same password
    await tab.page.locator(".content > .row >> text=Delete…").click()
    await tab.page.click("dialog .danger")
    await eventually(lambda: users.get("t-ann") is None)
    await tab.page.wait_for_selector(".content[data-shown='#/users']")


async def test_life_of_a_vhost(tab: Tab, shown: BrokerServer) -> None:
    """A vhost is added, chosen for the lists, limited, and deleted by its name."""
    await tab.show("vhosts")
    await tab.page.click("text=Add vhost…")
    for name, text in (("name", "t-shop"), ("description", "The shop"), ("tags", "eu, live")):
        await tab.page.fill(f"dialog [name={name}]", text)
    await tab.page.click("dialog .primary")
    await tab.page.click("tbody >> text=t-shop")
    await tab.sees("The shop", "dl")
    await tab.page.fill("[aria-label=Queues]", "7")
    await tab.page.press("[aria-label=Queues]", "Enter")
    await tab.sees("at most 7", ".toasts")
    assert shown.administration.vhost_limits("t-shop") == {"max-queues": 7}
    await tab.page.select_option(".head select", "t-shop")
    await tab.show("queues")
    await tab.sees("0 queues")
    await tab.page.select_option(".head select", "")
    await tab.show("vhosts", "t-shop")
    await tab.page.locator(".content > .row >> text=Delete…").click()
    await tab.page.fill("dialog [name=name]", "shop")
    await tab.page.click("dialog .danger")
    await tab.sees("That is not its name.", "dialog")
    await tab.page.fill("dialog [name=name]", "t-shop")
    await tab.page.click("dialog .danger")
    await eventually(lambda: "t-shop" not in shown.vhosts)
    await tab.page.wait_for_selector(".content[data-shown='#/vhosts']")


async def test_policies_say_what_they_match(tab: Tab, shown: BrokerServer) -> None:
    """The form counts the queues that match while the pattern is typed; the policy applies, changes and goes."""
    async with client_of(shown) as channel:
        for name in ("t.pol.a", "t.pol.b"):
            await channel.declare_queue(name)
        tab.expected_statuses = {400}
        await tab.show("policies")
        await tab.page.click("text=Add policy…")
        await tab.page.fill("dialog [name=pattern]", "^t\\.pol\\.")
        await tab.sees("Matches 2 of", "dialog .hint")
        await tab.page.fill("dialog [name=name]", "t-limits")
        await tab.page.fill("dialog [name=definition]", '{"max-length-bytes": "1 GB of it"}')
        await tab.page.click("dialog .dialog-foot .primary")
        await tab.sees("'max-length-bytes' should be a number of bytes, or a size such as", "dialog .error-text")
        await tab.page.fill("dialog [name=definition]", '{"max-lenght": 1}')
        await tab.page.click("dialog .dialog-foot .primary")
        await tab.sees("a policy has no key 'max-lenght'; did you mean max-length?", "dialog .error-text")
        await tab.page.fill("dialog [name=definition]", "")
        await tab.page.click("dialog >> text=max-length-bytes")
        await tab.page.click("dialog .dialog-foot .primary")
        await tab.sees("max-length-bytes: 1073741824", "tbody")
        queue = shown.vhosts["/"].queues["t.pol.a"]
        await eventually(lambda: queue.rules.max_bytes == 1 << 30)
        await tab.page.locator("tbody .menu button").click()
        await tab.page.click("text=Change…")
        await tab.page.fill("dialog [name=definition]", '{"max-length": 5}')
        await tab.page.click("dialog .dialog-foot .primary")
        await tab.sees("max-length: 5", "tbody")
        await tab.page.click("text=Operator policies")
        await tab.sees("No operator policies")
        await tab.page.click(".segments >> text=Policies >> nth=0")
        await tab.page.locator("tbody .menu button").click()
        await tab.page.click("text=Delete…")
        await tab.page.click("dialog .danger")
        await tab.sees("No policies")
        await eventually(lambda: queue.rules.max_length is None)
        for name in ("t.pol.a", "t.pol.b"):
            await channel.queue_delete(name)


async def test_definitions_leave_and_return(tab: Tab, shown: BrokerServer, tmp_path: Path) -> None:
    """The export is a file; importing it again says that all of it exists; a broken one is refused in words."""
    async with client_of(shown) as channel:
        await channel.declare_queue("t.defined", durable=True)
    await tab.show("definitions")
    async with tab.page.expect_download() as saved:
        await tab.page.click("text=Export >> nth=1")
    file = tmp_path / "definitions.json"
    await (await saved.value).save_as(file)
    document: Any = json.loads(file.read_text())
    assert "t.defined" in {queue["name"] for queue in document["queues"]}
    document["queues"].append({"name": "t.new", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}})
    file.write_text(json.dumps(document))
    await tab.page.set_input_files("input[type=file]", file)
    await tab.sees("queues", "dialog .counts")
    await tab.page.click("dialog .primary")
    await tab.sees("1 queues", ".facts")
    assert "t.new" in shown.vhosts["/"].queues
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    await tab.page.set_input_files("input[type=file]", broken)
    await tab.sees("broken.json cannot be imported")
    async with client_of(shown) as channel:
        for name in ("t.defined", "t.new"):
            await channel.queue_delete(name)


async def test_screens_by_tag(stranger: Tab, shown: BrokerServer) -> None:
    """A user sees the screens that its tags allow, and no buttons that would be refused."""
    assert (await ask(shown, "PUT", "/api/users/t-eve", {"password": "pw", "tags": "management"})).status == 201
    rights = {"configure": "", "write": "", "read": ".*"}
    assert (await ask(shown, "PUT", "/api/permissions/%2F/t-eve", rights)).status == 201
    tab = await logged_in(stranger, shown, "t-eve", "pw")
    await tab.show("policies")
    await tab.sees("No policies")
    links = (await tab.text(".nav")).split("\n")
    assert {"Queues", "Bindings", "Dead letters", "Pipeline", "Vhosts", "Policies"} <= set(links)
    assert not {"Users", "Definitions", "Cluster", "Overlay"} & set(links)
    assert await tab.page.locator("text=Add policy…").count() == 0
    await tab.page.goto(f"{tab.base}/#/users")
    await tab.sees("There is no such screen")
    for screen in ("bindings", "dead-letters", "pipeline", "vhosts"):
        await tab.show(screen)
        await tab.page.wait_for_selector(".table tbody tr, .empty")
        assert await tab.page.locator(".notice.bad:visible").count() == 0, screen
    assert (await ask(shown, "DELETE", "/api/users/t-eve")).status == 204


async def test_hostile_names_on_their_own_screens(tab: Tab, shown: BrokerServer) -> None:
    """The screens of one user, vhost and queue of dead letters show markup in names as text."""
    name = quote(EVIL, safe="")
    for path, body in (
        (f"vhosts/{name}", {"description": EVIL, "tags": EVIL.replace(",", "")}),
        (f"users/{name}", {"password": EVIL, "tags": "management"}),
        (f"permissions/{name}/{name}", {"configure": "<i>", "write": "<i>", "read": "<i>"}),
        (f"permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        (f"topic-permissions/{name}/{name}", {"exchange": EVIL, "write": "<i>", "read": "<i>"}),
        (f"exchanges/{name}/{name}", {"type": "topic"}),
        (f"queues/{name}/{name}", {"arguments": {"x-dead-letter-exchange": EVIL}}),
        (f"slotmq/pipeline/taps/{name}/evil", {"exchange": EVIL, "pattern": "<i>.#", "cursors": ["<i>"]}),
    ):
        said = await ask(shown, "PUT", f"/api/{path}", body)
        assert said.status in (201, 204), (path, said)
    death = {"queue": EVIL, "exchange": EVIL, "reason": EVIL, "routing-keys": [EVIL], "count": 2, "time": EVIL}
    message = {"properties": {"headers": {"x-death": [death, 5, EVIL]}}, "routing_key": EVIL, "payload": EVIL}
    said = await ask(
        shown,
        "POST",
        f"/api/exchanges/{name}/amq.default/publish",
        {**message, "routing_key": EVIL, "payload_encoding": "string"},
    )
    assert said.json == {"routed": True}
    for address in (f"users/{name}", f"vhosts/{name}", f"dead-letters/{name}/{name}", "pipeline", "dead-letters"):
        await tab.open(f"#/{address}")
        assert EVIL in await tab.page.evaluate("document.body.textContent"), address
        assert await tab.page.evaluate("window.pwned") is None, address
        assert await tab.page.locator("main img, main i:not([class]):not([style])").count() == 0, address
    assert (await ask(shown, "DELETE", f"/api/vhosts/{name}")).status == 204
    assert (await ask(shown, "DELETE", f"/api/users/{name}")).status == 204


async def test_forms_offer_what_the_broker_takes(tab: Tab, shown: BrokerServer) -> None:
    """Each type, default and rule that a form offers is accepted."""
    page = tab.page

    async def choices(name: str) -> list[str]:
        options = page.locator(f"dialog [name={name}] option")
        values: list[str] = await options.evaluate_all("all => all.map(option => option.value)")
        return values

    async def offered(screen: str, press: str) -> list[str]:
        await tab.press("Escape")
        await tab.show(screen)
        await page.click(f"text={press}")
        return await choices("type")

    async def accepted(path: str, body: dict[str, Any]) -> None:
        said = await ask(shown, "PUT", f"/api/{path}", body)
        assert said.status in (201, 204), (path, body, said.body)
        assert (await ask(shown, "DELETE", f"/api/{path}")).status == 204

    exchange_types = await offered("exchanges", "Add exchange")
    assert {"topic", "x-delayed-message"} <= set(exchange_types)
    for kind in exchange_types:
        await page.select_option("dialog [name=type]", kind)
        arguments = json.loads(await page.input_value("dialog [name=arguments]") or "{}")
        await accepted("exchanges/%2F/t.offer", {"type": kind, "arguments": arguments})
    queue_types = await offered("queues", "Add queue")
    assert len(queue_types) > 1
    for kind in queue_types:
        await accepted("queues/%2F/t.offer", {"durable": True, "arguments": {"x-queue-type": kind}})
    for kind in await offered("vhosts", "Add vhost…"):
        await accepted("vhosts/t-offer", {"default_queue_type": kind} if kind else {})
    for query, noun in (("", "policies"), ("?kind=operator", "operator-policies")):
        await tab.press("Escape")
        await tab.show("policies", query=query)
        await page.click("text=Add policy…")
        for rule in await page.locator("dialog .suggested button").all():
            await page.fill("dialog [name=definition]", "")
            await rule.click()
            await page.fill("dialog [name=name]", "t.offer")
            await page.fill("dialog [name=pattern]", "^t$")
            await page.click("dialog .dialog-foot .primary")
            await page.locator("dialog").wait_for(state="detached")  # it was accepted
            assert (await ask(shown, "DELETE", f"/api/{noun}/%2F/t.offer")).status == 204
            await page.click("text=Add policy…")
        for scope in await choices("apply_to"):
            body = {"pattern": "^t$", "definition": {"max-length": 1}, "apply-to": scope}
            await accepted(f"{noun}/%2F/t.offer", body)
        await tab.press("Escape")
