"""`zmq`: the ØMQ bridges of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.net.control_request import ControlRefused, Request, Verb

__all__ = ["zmq_verbs"]

NO_BRIDGE = "this broker meets no ØMQ programs: its settings have no [[zmq.publish]] or [[zmq.subscribe]]"


def zmq_verbs(rows: Callable[[], list[dict[str, Any]]]) -> dict[str, Verb]:
    """Return the verb, which a broker without bridges refuses."""

    def facts(_request: Request) -> list[dict[str, Any]]:
        found = rows()
        if not found:
            raise ControlRefused(NO_BRIDGE)
        return found

    return {"zmq": facts}
