"""Taps, cursors and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.net.control_request import LARGEST, ControlRefused, Request, Verb
from broker.taps.tap_listing import cursor_rows

if TYPE_CHECKING:
    from broker.taps.taps import Taps

__all__ = ["tap_verbs"]

CAP_MIN: Final = 1


def tap_verbs(taps: Taps) -> dict[str, Verb]:
    """Return the verbs."""

    async def tap_add(request: Request) -> dict[str, Any]:
        return await taps.add(
            request.text("vhost", "/"),
            request.text("exchange"),
            request.text("pattern"),
            name=request.optional("name"),
            cursors=request.texts("cursors"),
            max_bytes=cap(request, "max_bytes"),
            max_age_ms=cap(request, "max_age_ms"),
        )

    async def tap_remove(request: Request) -> dict[str, int]:
        return await taps.remove(request.text("vhost", "/"), request.text("name"), drop=request.flag("drop"))

    def listing(request: Request) -> list[dict[str, Any]]:
        return taps.listing(request.optional("vhost"))

    async def seal(request: Request) -> dict[str, int]:
        return {"last_seal": await taps.seal(request.optional("vhost"), request.optional("tap"))}

    def tap_read(request: Request) -> None:
        for tap in request.texts("taps"):
            taps.note_read(request.text("vhost", "/"), tap)

    async def snapshot(request: Request) -> dict[str, Any]:
        return await taps.snapshots.take(request.text("vhost", "/"), request.text("queue"), request.text("maker", ""))

    async def snapshot_drop(request: Request) -> None:
        await taps.snapshots.drop(request.text("id"))

    async def cursor_set(request: Request) -> None:
        if not request.has("seal"):
            raise ControlRefused("'seal' should be an integer")
        await taps.cursors.set(
            request.text("name"),
            request.text("vhost", "/"),
            request.text("tap"),
            request.integer("seal", 0),
            incarnation=request.optional("incarnation"),
            reset=request.flag("reset"),
            maker=request.text("maker", ""),
            user=request.optional("user"),
        )

    async def cursor_remove(request: Request) -> None:
        await taps.cursors.remove(request.text("name"), request.text("vhost", "/"), request.text("tap"))

    def cursors(request: Request) -> list[dict[str, Any]]:
        return cursor_rows(taps.listing(request.optional("vhost")))

    return {
        "tap_add": tap_add,
        "tap_remove": tap_remove,
        "taps": listing,
        "seal": seal,
        "tap_read": tap_read,
        "snapshot": snapshot,
        "snapshot_drop": snapshot_drop,
        "cursor_set": cursor_set,
        "cursor_remove": cursor_remove,
        "cursors": cursors,
    }


def cap(request: Request, name: str) -> int | None:
    """Return a cap, None when it was left out. Raises: ControlRefused."""
    return request.integer(name, CAP_MIN, CAP_MIN, LARGEST) if request.has(name) else None
