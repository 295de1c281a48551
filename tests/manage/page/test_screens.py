"""The web page in a headless browser: each screen shows what the broker has, and does what its buttons say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
import pytest_asyncio

from broker.core.auth.logins import ONLY_LOCALHOST
from broker.core.queue.consumer import Consumer
from broker.manage.refusal import HttpRefused
from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import client_of, queue_of
from tests.manage.page.conftest import Tab, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY = b'{"flight": 1545, "from": "EWR", "stops": []}'


@pytest_asyncio.fixture(loop_scope="session")
async def amqp(shown: BrokerServer) -> AsyncIterator[Any]:
    """Provide a channel of a client with a name of its own; all queues are deleted before and after."""
    await empty(shown)
    properties: Any = {"connection_name": "flights"}
    connection: Any = await aio_pika.connect(
        f"amqp://guest:guest@127.0.0.1:{shown.listener.port}/", client_properties=properties
    )
    yield await connection.channel()
    if not connection.is_closed:
        await connection.close()
    await empty(shown)


async def empty(shown: BrokerServer) -> None:
    """Delete what tests, also those of other files, left in the vhost: the broker's own queues, too."""
    assert (await ask(shown, "DELETE", "/api/vhosts/%2F")).status == 204
    assert (await ask(shown, "PUT", "/api/vhosts/%2F")).status == 201
    permission = {"configure": ".*", "write": ".*", "read": ".*"}
    assert (await ask(shown, "PUT", "/api/permissions/%2F/guest", permission)).status in (201, 204)


async def filled(amqp: Any, name: str, messages: int) -> Any:
    """Return a new queue with messages."""
    queue = await amqp.declare_queue(name, durable=True)
    for number in range(messages):
        headers: Any = {"number": number}
        message = aio_pika.Message(BODY, content_type="application/json", headers=headers, delivery_mode=2)
        await amqp.default_exchange.publish(message, name)
    return queue


async def ignore(_message: Any) -> None:
    """Take a message and keep it."""


async def test_login_and_logout(stranger: Tab) -> None:
    """The page asks for a login of its own, says when it is wrong, and forgets it at the logout."""
    page = stranger.page
    stranger.expected_statuses = {401}
    await page.goto(stranger.base)
    await page.fill("[name=username]", "guest")
    await page.fill("[name=password]", "wrong")
    await page.click("text=Log in")
    await stranger.sees("password is wrong", ".login")
    await page.fill("[name=password]", "guest")
    await page.press("[name=password]", "Enter")
    await stranger.sees("Overview", ".crumbs")
    assert await page.evaluate("document.cookie") == ""  # scripts cannot read the session
    await page.click("[aria-label^=User]")
    await page.click("text=Log out")
    await page.wait_for_selector("[name=username]")


async def test_the_login_says_why(stranger: Tab, shown: BrokerServer) -> None:
    """A password that is right is not called wrong: the user has no tag, or may come from the broker's machine only."""
    shown.administration.users.add("client", "right", [])
    page = stranger.page
    stranger.expected_statuses = {401}
    await page.goto(stranger.base)
    await page.fill("[name=username]", "client")
    await page.fill("[name=password]", "right")
    await page.click("text=Log in")
    await stranger.sees("no tag for this page", ".login")
    elsewhere = HttpRefused(401, "", shown=ONLY_LOCALHOST).fields(rabbitmq=True)
    await page.route("**/api/session", lambda route: route.fulfill(status=401, json=elsewhere))
    await page.click("text=Log in")
    await stranger.sees("only on the machine of the broker itself", ".login")
    shown.administration.users.delete("client")


async def test_the_overview_runs_by_itself(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """A message that arrives changes the figures without a reload."""
    await tab.show()
    await tab.page.wait_for_selector(".live[data-state=live]")
    await filled(amqp, "overview", 0)
    before = await tab.text(".figures")
    await filled(amqp, "overview", 7)
    ready = tab.page.locator(".figure", has_text="Ready").locator(".value")
    queues = shown.engines["/"].vhost.queues.values()
    await ready.filter(has_text=re.compile(f"^{sum(queue.ready for queue in queues)}$")).wait_for()
    assert before != await tab.text(".figures")
    assert await tab.page.locator(".chart .line").count() >= 4
    await tab.sees("amqp", "table")


async def test_queues_are_paged_ordered_and_filtered(tab: Tab, amqp: Any) -> None:
    """The server pages, orders and filters; the address keeps all three; keys do it too."""
    for number in range(103):
        await amqp.declare_queue(f"many.{number:03}", durable=True)
    await filled(amqp, "many.077", 3)
    await tab.show("queues")
    rows = tab.page.locator("tbody tr")
    await eventually_rows(rows, 100)
    await tab.press("]")
    await eventually_rows(rows, 3)
    await tab.page.click("th >> text=Ready")
    await rows.first.locator("td", has_text="many.077").wait_for()
    await tab.press("/")
    await tab.page.keyboard.type("many.07")
    await tab.sees("10 of 103 queues", ".table-tools")
    await tab.press("Escape", "Escape")  # empties the filter, then leaves it
    await eventually_rows(rows, 100)
    await tab.show("queues", query="?name=many.10%5B01%5D&regex=1")
    await tab.sees("2 of 103 queues", ".table-tools")
    await tab.press("g", "o")
    await tab.sees("Overview", ".crumbs")
    await tab.press("g", "q")
    await eventually_rows(rows, 100)
    await tab.press("j", "j", "k", "Enter")
    await tab.sees("many.000", "h1")
    await tab.press("u", "?")
    await tab.sees("Keyboard", "dialog")
    await tab.press("Escape")


async def eventually_rows(rows: Any, count: int) -> None:
    """Wait until a table has this many rows."""
    await rows.nth(count - 1).wait_for()
    await rows.nth(count).wait_for(state="detached")


async def test_all_rows_are_chosen_and_purged(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """The box in the head chooses each row of the page, and none again; an action is for all that are chosen."""
    names = ["chosen.0", "chosen.1", "chosen.2"]
    for name in names:
        await filled(amqp, name, 2)
    await tab.show("queues", query="?name=chosen.")
    await eventually_rows(tab.page.locator("tbody tr"), 3)
    head = tab.page.locator("thead input")
    await head.check()
    await tab.sees("3 chosen", ".table-tools")
    assert await tab.page.locator("tbody input:checked").count() == 3
    await head.uncheck()
    assert await tab.page.locator("tbody input:checked").count() == 0
    await head.check()
    await tab.page.click(".table-tools >> text=Purge…")
    await tab.sees("6 messages", "dialog")
    await tab.page.click("dialog .danger")
    await tab.sees("6 messages dropped", ".toasts")
    assert [queue_of(shown, name).ready for name in names] == [0, 0, 0]


async def test_messages_are_looked_at_and_stay(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """A message shows its headers and its body as JSON, as it is and in hex; the queue keeps all of them."""
    queue = await filled(amqp, "looked", 3)
    await tab.show("queues", "/", "looked")
    await tab.page.wait_for_selector(".body-box .j-key")
    assert '"flight": 1545' in await tab.text(".body-box")
    await tab.page.click("text=Raw")
    assert await tab.text(".body-box") == BODY.decode()
    await tab.page.click("text=Hex")
    assert (await tab.text(".body-box")).startswith("000000  7b 22 66 6c")
    await tab.page.locator(".message-list button").nth(2).click()
    message = await tab.text(".message")
    assert "number\n2" in message and "application/json" in message
    await tab.sees("3 of 3 ready")
    found = queue_of(shown, "looked")
    assert (found.ready, found.unacked) == (3, 0)
    assert not (await queue.get()).redelivered


async def test_publish_purge_move_pause_delete(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """Each action of a queue does what it says, after a question."""
    await filled(amqp, "acted", 5)
    await amqp.declare_queue("other")
    await tab.show("queues", "/", "acted")
    page, found = tab.page, queue_of(shown, "acted")

    await page.click("text=Publish…")
    await page.fill("[name=payload]", "by hand")
    await page.fill("[name=headers]", '{"a": 1}')
    await page.click("dialog >> text=Publish >> nth=-1")
    await tab.sees("Published", ".toasts")
    assert found.ready == 6

    async def choose(label: str) -> None:
        await page.click("[aria-label=More]")
        await page.click(f".menu-list >> text={label}")

    await choose("Purge…")
    await page.fill("[name=limit]", "2")
    await page.click("dialog >> button[type=submit]")
    await tab.sees("2 messages dropped", ".toasts")
    await choose("Move messages…")
    tab.expected_statuses = {400, 404}
    await page.fill("[name=to]", "nowhere")
    await page.click("dialog >> button[type=submit]")
    await tab.sees("nowhere", "dialog .error-text")
    await page.fill("[name=to]", "other")
    await page.fill("[name=limit]", "1")
    await page.click("dialog >> button[type=submit]")
    await tab.sees("1 message moved", ".toasts")
    assert (found.ready, queue_of(shown, "other").ready) == (3, 1)

    await page.click("text=Pause…")
    await page.click("dialog >> button[type=submit]")
    await tab.sees("This queue is paused")
    assert found.paused
    await page.click("button:text-is('Continue')")
    await tab.sees("delivers again", ".toasts")
    assert not found.paused

    await choose("Delete…")
    await tab.sees("3 messages", "dialog")
    await page.click("dialog >> button[type=submit]")
    await tab.sees("Queues", ".crumbs")
    assert found.deleted


async def test_delayed_messages_are_shown_and_released(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """A queue that holds messages says until when, and delivers them now when asked to."""
    arguments = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 3_600_000}
    queue = await amqp.declare_queue("held", arguments=arguments)
    await amqp.default_exchange.publish(aio_pika.Message(b"m"), "held")
    await (await queue.get()).reject(requeue=True)
    await tab.show("queues", "/", "held")
    await tab.sees("1 message delayed")
    await tab.sees("The next one is delayed until")
    await tab.page.click("[aria-label=More]")
    await tab.page.click(".menu-list >> text=Release delayed messages…")
    await tab.page.click("dialog >> button[type=submit]")
    await tab.sees("1 message released", ".toasts")
    await eventually(lambda: queue_of(shown, "held").ready == 1)
    await tab.show("queues", "/", "held", query="?tab=details")
    await tab.sees("all (min: 3600000ms, max: 3600000ms)")


async def test_an_empty_queue_and_its_first_message(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """An empty slot is drawn empty; what the page publishes is in its list and in its slot at once."""
    await filled(amqp, "empty", 0)
    await tab.show("queues", "/", "empty")
    page = tab.page
    await tab.sees("No ready message")
    slot = page.locator(".strip rect.cell:not(.back)")
    assert await slot.evaluate_all("all => all.map(one => one.getAttribute('height'))") == ["0"]
    assert "without a message" in str(await page.locator(".strip title").first.text_content())
    await tab.press("p")  # no tick helps
    await page.click("text=Publish…")
    await page.fill("[name=payload]", "by hand")
    await page.click("dialog .primary")
    await tab.sees("by hand", ".message-list")
    await tab.sees("1 of 1 ready")
    await eventually_drawn(slot, "34")
    await page.click("[aria-label=More]")
    await page.click(".menu-list >> text=Purge…")
    await page.click("dialog .danger")
    await tab.sees("No ready message")
    await eventually_drawn(slot, "0")


async def eventually_drawn(slot: Any, height: str) -> None:
    """Wait until a slot is filled so high."""
    for _ in range(500):
        if await slot.first.get_attribute("height") == height:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(await slot.first.get_attribute("height"))


async def test_who_holds_messages(tab: Tab, amqp: Any) -> None:
    """Unacknowledged messages are listed with their age and consumer; so are consumers and bindings."""
    queue = await filled(amqp, "held", 2)
    exchange = await amqp.declare_exchange("held.in", "topic")
    await queue.bind(exchange, "a.*.#")
    await queue.consume(ignore, consumer_tag="slow-one")
    await tab.show("queues", "/", "held", query="?tab=unacked")
    await eventually_rows(tab.page.locator(".tabs + div tbody tr"), 2)
    table = await tab.text(".tabs + div table")
    assert "slow-one" in table and "held" in table
    await tab.press("3")
    await tab.sees("slow-one", ".tabs + div table")
    await tab.press("4")
    await tab.sees("a.*.#", ".tabs + div table")
    await tab.press("5")
    await tab.sees("Arguments and policies")


async def test_a_connection_is_closed(tab: Tab, amqp: Any) -> None:
    """The client is told the reason that was typed in."""
    await tab.show("connections")
    await tab.page.click("text=flights")
    await tab.sees("What the client says of itself")
    assert not await tab.page.is_visible("text=lost")
    full: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
    hasty = await amqp._connection.channel(publisher_confirms=False)
    await hasty.declare_queue("full.here", arguments=full)
    for _ in range(3):
        await hasty.default_exchange.publish(aio_pika.Message(b""), "full.here", mandatory=False)
    await tab.sees("2 messages lost")
    await tab.page.click("text=Close…")
    await tab.page.fill("[name=reason]", "moved house")
    closed: list[BaseException | None] = []
    amqp.close_callbacks.add(lambda _channel, reason: closed.append(reason))
    await tab.page.click("dialog >> button[type=submit]")
    await tab.sees("1 connection closed", ".toasts")
    await eventually(lambda: closed)
    assert "moved house" in str(closed[0])


async def test_clients_are_drained(tab: Tab, amqp: Any, shown: BrokerServer) -> None:
    """A queue's consumer, a connection, and all clients may settle what they hold; who cancels lets it continue."""
    queue = await amqp.declare_queue("drained")
    await amqp.set_qos(1)
    held: list[Any] = []
    for body in (b"1", b"2", b"3"):
        await amqp.default_exchange.publish(aio_pika.Message(body), "drained")

    async def take(message: Any) -> None:
        held.append(message)

    await queue.consume(take)
    await eventually(lambda: held)
    (consumer,) = queue_of(shown, "drained").consumers
    assert isinstance(consumer, Consumer)
    await tab.show("queues", "/", "drained")
    for end in ("Escape", ""):
        await tab.page.click("[aria-label=More]")
        await tab.page.click(".menu-list >> text=Drain consumers…")
        await tab.page.click("dialog >> button[type=submit]")
        await tab.sees("1 unacked message left", "dialog")
        if end:
            await tab.press(end)
            await eventually(lambda: consumer.output_window.writable)  # the drain has ended
            await held.pop().ack()
            await eventually(lambda: held)
    await held.pop().ack()
    await tab.sees("1 consumer cancelled", ".toasts")
    found = queue_of(shown, "drained")
    assert (found.ready, len(found.consumers)) == (1, 0)

    tab.expected_statuses = {400}
    await tab.show("connections")
    await tab.page.click("text=flights")
    await tab.page.click("text=Drain…")
    tab.expected_statuses = {400, 404}  # a tick may ask for the connection that this closes
    await tab.page.click("dialog >> button[type=submit]")
    await tab.sees("1 connection closed", ".toasts")
    await eventually(lambda: amqp.is_closed)
    await tab.page.click("text=Drain…")
    await tab.page.click("dialog >> button[type=submit]")
    await tab.sees("no connection", "dialog .error-text")
    await tab.press("Escape")
    async with client_of(shown) as channel:
        await tab.show("")
        await tab.page.click("text=Drain all clients…")
        await tab.page.click("dialog >> button[type=submit]")
        await tab.sees("1 connection closed", ".toasts")
        await eventually(lambda: channel.is_closed)


async def test_exchanges(tab: Tab, shown: BrokerServer) -> None:
    """An exchange is declared, published to without a queue that takes it, and deleted."""
    page = tab.page
    await tab.show("exchanges")
    await page.click("text=Add exchange")
    await page.fill("[name=name]", "made.here")
    await page.fill("[name=arguments]", "[1]")
    await page.click("dialog >> button[type=submit]")
    await tab.sees("should be a JSON object", "dialog .error-text")
    await page.fill("[name=arguments]", '{"alternate-exchange": "amq.fanout"}')
    await page.click("dialog >> button[type=submit]")
    await page.click("a:text-is('made.here')")
    await tab.sees("Nothing is bound")
    assert shown.engines["/"].vhost.exchanges["made.here"].alternate == "amq.fanout"
    await page.click("text=Publish…")
    await page.click("dialog >> button[type=submit]")
    await tab.sees("reached no queue", "dialog .error-text")
    await tab.press("Escape")
    await page.click("text=Delete…")
    await page.click("dialog >> button[type=submit]")
    await tab.sees("Exchanges", ".crumbs")
    assert "made.here" not in shown.engines["/"].vhost.exchanges
