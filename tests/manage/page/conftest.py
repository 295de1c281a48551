"""A headless browser and a broker, which the tests share, and a new tab with the broker's page for each test."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from broker.manage.api import live
from broker.server import BrokerServer
from tests.http_talk import ask
from tests.in_process import running_broker

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions", "--no-first-run"]
HTTP = {"enabled": True, "port": 0, "sample_interval_ms": 500, "connections_max": 1000}
WAIT_MS = 10_000
LOOK_MS = 20


@pytest.fixture(scope="session")
def chromium() -> str:
    """Provide the browser's path."""
    pytest.importorskip("playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    return CHROMIUM


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Any]:
    """Provide a running browser."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shown(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerServer]:
    """Provide the broker whose page is shown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "POLL_S", 0.1)
        folder = tmp_path_factory.mktemp("page") / "data"
        async with running_broker(folder, http=HTTP, mqtt={"enabled": True, "port": 0}) as broker:
            yield broker


class Tab:
    """A tab. `faults` lists the page's errors, violations of its policy and requests to other hosts."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.faults: list[str] = []
        self.expected_statuses: set[int] = set()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", self._console)
        page.on("request", lambda request: self._request(request.url))

    def _console(self, message: Any) -> None:
        if message.type != "error" or any(f"status of {one}" in message.text for one in self.expected_statuses):
            return
        self.faults.append(f"console: {message.text}")

    def _request(self, url: str) -> None:
        if not url.startswith((self.base, "data:", "blob:")):
            self.faults.append(f"request to another host: {url}")

    async def show(self, *words: str, query: str = "") -> None:
        """Open a screen and wait until it is complete."""
        path = "/".join(quote(word, safe="") for word in words)
        await self.open(f"#/{path}{query}")

    async def open(self, address: str) -> None:
        """Open an address and wait until its screen is complete."""
        await self.page.goto(f"{self.base}/{address}")
        await self.page.wait_for_selector(f'.content[data-shown="{address}"]')

    async def text(self, selector: str = "main") -> str:
        """Return the text of an element."""
        return str(await self.page.inner_text(selector))

    async def sees(self, text: str, selector: str = "main") -> None:
        """Wait until an element shows a text; hidden text does not count."""
        from playwright.async_api import expect

        element = self.page.locator(selector, has_text=text).first
        await element.wait_for()
        await expect(element).to_contain_text(text, use_inner_text=True, timeout=WAIT_MS)

    async def press(self, *keys: str) -> None:
        """Press keys in order."""
        for key in keys:
            await self.page.keyboard.press(key)


@pytest_asyncio.fixture(loop_scope="session")
async def stranger(browser: Any, shown: BrokerServer) -> AsyncIterator[Tab]:
    """Provide a tab without a login."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    page = await context.new_page()
    tab = Tab(page, f"http://127.0.0.1:{shown.manage.port()}")
    yield tab
    await context.close()
    assert tab.faults == []


@pytest_asyncio.fixture(loop_scope="session")
async def tab(stranger: Tab, shown: BrokerServer) -> Tab:
    """Provide a tab in which guest is logged in."""
    return await logged_in(stranger, shown, "guest", "guest")


async def logged_in(tab: Tab, broker: BrokerServer, user: str, password: str) -> Tab:
    """Log in over the API, and store the session cookie in the tab."""
    headers = {"X_Requested_With": "slotmq", "Origin": tab.base}
    body = {"username": user, "password": password}
    said = await ask(broker, "POST", "/api/session", body, user=None, **headers)
    assert said.status == 200, said
    name, _, token = said.headers["set-cookie"].split(";")[0].partition("=")
    await tab.page.context.add_cookies([{"name": name, "value": token, "url": tab.base}])
    return tab


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    for _ in range(WAIT_MS // LOOK_MS):
        if condition():
            return
        await asyncio.sleep(LOOK_MS / 1000)
    raise AssertionError(f"not within {WAIT_MS} ms")
