"""Records the fields that the page reads although the API's answers lack them."""

from __future__ import annotations

import asyncio

from tests.manage.page.conftest import LOOK_MS, WAIT_MS, Tab

__all__ = ["lacking_fields", "page_has", "watch_fields"]

WATCH = """
(() => {
  const [parse, text, fetched] = [JSON.parse, Response.prototype.text, window.fetch];
  const senders = new Map();
  window.lacking = new Set();
  window.streamed = 0;
  window.asking = 0;
  const watched = (value, path) => value === null || typeof value !== "object" ? value : new Proxy(value, {
    get(target, name) {
      if (typeof name === "symbol" || ["then", "toJSON"].includes(name)) return target[name];
      if (!(name in target)) window.lacking.add(`${path}.${name}`);
      return watched(target[name], Array.isArray(target) ? `${path}[]` : `${path}.${name}`);
    },
  });
  window.fetch = async (...given) => {
    window.asking += 1;
    try {
      return await fetched(...given);
    } finally {
      setTimeout(() => { window.asking -= 1; }, 30); // code that awaited the answer may send the next request
    }
  };
  Response.prototype.text = async function () {
    const answer = await text.call(this);
    senders.set(answer, new URL(this.url).pathname);
    return answer;
  };
  JSON.parse = (answer, ...rest) => {
    window.streamed += senders.has(answer) ? 0 : 1;
    return watched(parse(answer, ...rest), senders.get(answer) ?? "live");
  };
})();
"""
SOMETIMES = {
    "connection_name": "a client may name its connection",
    "user_provided_name": "a client may name its connection",
    "original-expiration": "only some dead letters had one",
    "x-priority": "a consumer may have one",
    "timestamp": "only some publishers set it",
    "gone": "only deleted queues have it",
    "idle_since": "only idle objects have it",
    "overlay[].passing": "only inner brokers have it",
    "unacked[].node": "only messages unacked by another node's client have it",
}
"""Fields that some answers may lack, with the reason; the page handles their absence."""
OF_OTHERS = ("/api/exchanges", ("exclusive", "operator_policy")), ("/api/queues", ("internal",))
"""Fields of either queues or exchanges that shared code reads from both, to show their features."""


async def watch_fields(tab: Tab) -> None:
    """Start to record with the next page load."""
    await tab.page.add_init_script(WATCH)


async def page_has(tab: Tab, condition: str) -> None:
    """Wait until a condition holds in the page. Its policy forbids eval, so Playwright's own wait cannot be used."""
    for _ in range(WAIT_MS // LOOK_MS):
        if await tab.page.evaluate(condition):
            return
        await asyncio.sleep(LOOK_MS / 1000)
    raise AssertionError(f"not within {WAIT_MS} ms: {condition}")


async def lacking_fields(tab: Tab) -> set[str]:
    """Wait until no request is open, and return the fields that were read but missing."""
    await page_has(tab, "window.asking === 0")
    fields: list[str] = await tab.page.evaluate("[...window.lacking]")
    others = {(start, name) for start, names in OF_OTHERS for name in names}
    return {
        field
        for field in fields
        if not field.endswith(tuple(f"{separator}{name}" for name in SOMETIMES for separator in "./"))
        and not any(field.startswith(start) and field.endswith(f".{name}") for start, name in others)
    }
