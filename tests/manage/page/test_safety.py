"""The web page beside hostile names, ended sessions, small screens and users with few rights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest

from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import running_broker
from tests.manage.page.conftest import HTTP, Tab, eventually, logged_in

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVIL = "'\"><script>window.pwned=1</script><img src=x onerror=window.pwned=1><svg onload=pwned=1>`${window.pwned=1}`"


async def screens(tab: Tab) -> list[str]:
    """Return the addresses of all screens of the navigation."""
    await tab.show()
    links: list[str] = await tab.page.eval_on_selector_all(".nav a", "links => links.map(link => link.hash)")
    assert len(links) >= 5
    return links


async def ignore(_message: Any) -> None:
    """Take a message and keep it."""


async def test_names_are_text(tab: Tab, shown: BrokerServer) -> None:
    """Markup in a name of anything, in a header or in a body is shown as it is and never becomes an element."""
    properties: Any = {"connection_name": EVIL, "product": EVIL, "version": EVIL}
    connection: Any = await aio_pika.connect(
        f"amqp://guest:guest@127.0.0.1:{shown.listener.port}/", client_properties=properties
    )
    channel = await connection.channel()
    queue = await channel.declare_queue("evil", arguments={"x-dead-letter-exchange": EVIL})
    await channel.default_exchange.publish(aio_pika.Message(b"held"), "evil")
    await queue.consume(ignore, consumer_tag=EVIL)
    await shown.administration.change(lambda draft: draft.add_vhost(EVIL, {"description": EVIL}))
    name = quote(EVIL, safe="")
    death = {"queue": EVIL, "exchange": EVIL, "reason": EVIL, "routing-keys": [EVIL]}
    message = {
        "properties": {"headers": {EVIL: EVIL, "x-death": [death]}, "content_type": EVIL, "type": EVIL},
        "routing_key": EVIL,
        "payload": json.dumps({EVIL: EVIL}),
        "payload_encoding": "string",
    }
    for method, path, body in (
        ("PUT", f"exchanges/%2F/{name}", {"type": "topic"}),
        ("PUT", f"queues/%2F/{name}", {"arguments": {"x-dead-letter-exchange": EVIL}}),
        ("POST", f"bindings/%2F/e/{name}/q/{name}", {"routing_key": EVIL}),
        ("POST", f"exchanges/%2F/{name}/publish", message),
        ("PUT", f"policies/%2F/{name}", {"pattern": EVIL, "definition": {"max-length": 5}}),
        ("PUT", f"users/{name}", {"password": EVIL, "tags": "management"}),
    ):
        said = await ask(shown, method, f"/api/{path}", body)
        assert said.status < 300, (path, said)
    tab.expected_statuses = {401, 404}  # guest has no right in that vhost
    try:
        addresses = await screens(tab)
        addresses.append(f"#/exchanges/%2F/{name}")
        addresses += [f"#/queues/%2F/{name}?tab={part}" for part in ("", "bindings", "details")]
        addresses += [f"#/queues/%2F/evil?tab={part}" for part in ("unacked", "consumers")]
        rows = (await ask(shown, "GET", "/api/connections")).json
        addresses += [f"#/connections/{quote(one['name'])}" for one in rows if one["user_provided_name"] == EVIL]
        seen = 0
        for address in addresses:
            await tab.open(address)
            assert await tab.page.evaluate("window.pwned") is None, address
            assert await tab.page.locator("main img, main svg[onload]").count() == 0, address
            seen += EVIL in await tab.page.evaluate("document.body.textContent")
        assert seen >= len(addresses) // 2
    finally:
        await connection.close()
        await shown.administration.change(lambda draft: draft.drop_vhost(EVIL))
        for path in (
            f"queues/%2F/{name}",
            "queues/%2F/evil",
            f"exchanges/%2F/{name}",
            f"users/{name}",
            f"policies/%2F/{name}",
        ):
            await ask(shown, "DELETE", f"/api/{path}")


async def test_a_session_that_ends_shows_the_login(stranger: Tab, shown: BrokerServer) -> None:
    """A user whose password changes has to log in again; the stream of numbers ends with the session."""
    users = shown.administration.users
    users.add("brief", "one", ["administrator"])
    tab = await logged_in(stranger, shown, "brief", "one")
    await tab.show()
    await tab.page.wait_for_selector(".live[data-state=live]")
    tab.expected_statuses = {401}
    users.set_password("brief", "two")
    await tab.page.wait_for_selector("[name=username]")


async def test_a_user_sees_what_the_tags_allow(stranger: Tab, shown: BrokerServer) -> None:
    """A user with the tag management sees own vhosts, and neither the machine's numbers nor others' connections."""
    shown.administration.users.add("guestbook", "pass", ["management"])
    shown.administration.permissions.set("guestbook", "/", ".*", ".*", ".*")
    tab = await logged_in(stranger, shown, "guestbook", "pass")
    await tab.show()
    await tab.sees("Published", ".figures")
    await tab.page.wait_for_selector(".live[data-state=live]")
    assert "Disk space left" not in await tab.text()
    await tab.show("connections")
    await tab.sees("No client is connected")


async def test_phones(tab: Tab) -> None:
    """No screen is wider than a phone; the navigation is a drawer."""
    addresses = await screens(tab)
    await tab.page.set_viewport_size({"width": 390, "height": 844})
    for address in [*addresses, "#/exchanges/%2F/amq.topic"]:
        await tab.open(address)
        width = await tab.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, (address, width)
    await tab.page.click("[aria-label=Menu]")
    await tab.page.click(".nav >> text=Queues")
    await tab.sees("Queues", ".crumbs")
    await tab.page.wait_for_selector(".side", state="hidden")


async def test_the_theme_is_the_readers(tab: Tab) -> None:
    """The page follows the reader's system until the reader chooses; the choice survives a reload."""

    async def paper() -> str:
        return str(await tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    await tab.show()
    light = await paper()
    await tab.page.emulate_media(color_scheme="dark")
    dark = await paper()
    assert light != dark
    await tab.press("t")
    assert await paper() == light
    await tab.page.reload()
    await tab.page.wait_for_selector(".shell")
    assert await paper() == light
    await tab.press("t", "t")
    assert await paper() == dark


async def test_a_broker_that_is_gone_leaves_nothing_green(browser: Any, tmp_path: Path) -> None:
    """Known values are dimmed, with a line that says since when; a failed screen is shown once the broker returns."""
    context = await browser.new_context()
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        tab = Tab(await context.new_page(), f"http://127.0.0.1:{broker.manage.port()}")
        await logged_in(tab, broker, "guest", "guest")
        await tab.show("queues")
        await tab.page.wait_for_selector(".live[data-state=live]")
        assert await tab.page.locator(".gone").is_hidden()
    await tab.sees("The broker has not answered since 20", ".gone")
    opacity = "getComputedStyle(document.querySelector('.content')).opacity"
    assert await tab.page.evaluate(opacity) == "0.5"
    await tab.page.evaluate("location.hash = '#/exchanges'")
    await tab.sees("the broker does not answer")
    tab.expected_statuses = {401}
    async with running_broker(tmp_path / "data", http={**HTTP, "port": int(tab.base.rpartition(":")[2])}) as broker:
        await tab.page.wait_for_selector("[name=username]")  # sessions do not outlive the broker
        await logged_in(tab, broker, "guest", "guest")
        await tab.page.reload()
        await tab.sees("amq.topic", "tbody")
    assert [fault for fault in tab.faults if "net::ERR_" not in fault] == []
    await context.close()


async def test_a_broker_that_hangs_is_gone(tab: Tab) -> None:
    """A stream that says nothing for 20 s counts as lost; a byte of it ends that, and the failed screen is shown."""
    held: list[Any] = []

    async def hold(route: Any) -> None:
        held.append(route)

    await tab.page.clock.install()
    await tab.page.route("**/api/live*", hold)
    await tab.page.route("**/api/exchanges*", hold)
    await tab.page.goto(f"{tab.base}/#/queues")
    await eventually(lambda: held)
    await tab.page.wait_for_selector(".content[data-shown='#/queues']")
    assert await tab.page.locator(".gone").is_hidden()
    await tab.page.clock.run_for(21_000)
    await tab.sees("The broker has not answered since", ".gone")
    await tab.page.evaluate("location.hash = '#/exchanges'")
    await eventually(lambda: [one for one in held if "exchanges" in one.request.url])
    [asked] = [one for one in held if "exchanges" in one.request.url]
    await asked.abort()
    await tab.sees("the broker does not answer")
    await tab.page.unroute("**/api/exchanges*")
    await tab.page.unroute("**/api/live*")
    await tab.page.clock.run_for(4_000)
    await tab.sees("amq.topic", "tbody")
    assert await tab.page.locator(".gone").is_hidden()
    assert [fault for fault in tab.faults if "net::ERR_" not in fault] == []
    tab.faults.clear()


async def test_a_hidden_tab_costs_nothing(tab: Tab, shown: BrokerServer) -> None:
    """The stream ends while no one looks and begins again afterwards; so it does while the reader pauses it."""
    await tab.show()
    live = tab.page.locator(".live")
    await tab.page.wait_for_selector(".live[data-state=live]")
    hide = """hidden => {
        Object.defineProperty(document, "hidden", {get: () => hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    before = shown.manage.clients()
    await tab.page.evaluate(hide, True)
    assert await live.get_attribute("data-state") == "waiting"
    await eventually(lambda: shown.manage.clients() < before)
    await tab.page.evaluate(hide, False)
    await tab.page.wait_for_selector(".live[data-state=live]")
    await tab.press("p")
    assert await live.get_attribute("data-state") == "paused"
    await tab.press("p")
    await tab.page.wait_for_selector(".live[data-state=live]")
