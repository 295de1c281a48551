"""A tab that notes which fields the page reads that the API's answers do not have."""

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
      setTimeout(() => { window.asking -= 1; }, 30); // what waits for the answer asks for more at once
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
    "original-expiration": "a dead letter may have had one",
    "x-priority": "a consumer may have one",
    "timestamp": "of a publisher that sets it",
    "gone": "of a queue that is deleted",
    "idle_since": "of what nothing happens to",
    "overlay[].passing": "of an inner broker",
    "unacked[].node": "of a message that another node's client holds",
}
"""Fields that some answers lack by right: the page reads each with what stands for it."""
OF_OTHERS = ("/api/exchanges", ("exclusive", "operator_policy")), ("/api/queues", ("internal",))
"""What is asked of queues and exchanges alike, to show their features."""


async def watch_fields(tab: Tab) -> None:
    """Record what is read from the next page load on."""
    await tab.page.add_init_script(WATCH)


async def page_has(tab: Tab, condition: str) -> None:
    """Wait until a condition holds in the page, whose policy lets no text be evaluated there."""
    for _ in range(WAIT_MS // LOOK_MS):
        if await tab.page.evaluate(condition):
            return
        await asyncio.sleep(LOOK_MS / 1000)
    raise AssertionError(f"it did not happen: {condition}")


async def lacking_fields(tab: Tab) -> set[str]:
    """Return the fields that were read from answers without them, once nothing is asked for any more."""
    await page_has(tab, "window.asking === 0")
    fields: list[str] = await tab.page.evaluate("[...window.lacking]")
    others = {(start, name) for start, names in OF_OTHERS for name in names}
    return {
        field
        for field in fields
        if not field.endswith(tuple(f"{separator}{name}" for name in SOMETIMES for separator in "./"))
        and not any(field.startswith(start) and field.endswith(f".{name}") for start, name in others)
    }
