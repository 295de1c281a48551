"""`overlay`: what the overlay's brokers of this process know. `overlay_explain`, `overlay_forget`."""

from __future__ import annotations

from typing import Any, Protocol

from broker.net.control_request import ControlRefused, Request, Verb

__all__ = ["OverlayView", "overlay_verbs"]

NO_OVERLAY = "this broker takes no part in an overlay: its settings have no [[overlay.node]]"


class OverlayView(Protocol):
    """The overlay's brokers of this process, if there are any."""

    @property
    def is_on(self) -> bool:
        """Whether this process takes part in an overlay."""

    def facts(self) -> list[dict[str, Any]]:
        """Return a row for each broker, as JSON."""

    def flows(self) -> list[dict[str, Any]]:
        """Return for each broker its links, and for a leaf its streams: what `facts` has without a walk of patterns."""

    def explain(self, vhost: str, exchange: str | None, key: str) -> list[dict[str, Any]]:
        """Return where a message would go, and why, as JSON."""

    def forget(self, leaf: str) -> None:
        """Give up a leaf that is away for good. Raises: ValueError."""


def overlay_verbs(overlay: OverlayView) -> dict[str, Verb]:
    """Return the verbs, which a broker without an overlay refuses."""

    def view() -> OverlayView:
        if not overlay.is_on:
            raise ControlRefused(NO_OVERLAY)
        return overlay

    def facts(_request: Request) -> list[dict[str, Any]]:
        return view().facts()

    def explain(request: Request) -> list[dict[str, Any]]:
        return view().explain(request.text("vhost", "/"), request.optional("exchange"), request.text("key"))

    def forget(request: Request) -> None:
        try:
            view().forget(request.text("leaf"))
        except ValueError as error:
            raise ControlRefused(str(error)) from error

    return {"overlay": facts, "overlay_explain": explain, "overlay_forget": forget}
