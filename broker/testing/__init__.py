"""A broker inside the test process: the real broker on a real socket, with in-memory files and a clock that the test
advances.

    async with Broker() as broker:
        connection = await aio_pika.connect(broker.url)
        ...
        await broker.idle()
        assert [message.body for message in broker.queue("orders").messages] == [b"1"]

The installed package provides the pytest fixtures `broker`, `broker_url` and `broker_process` (see `pytest_slotmq`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.testing.broker import Broker
    from broker.testing.clock import VirtualClock
    from broker.testing.views import MessageView, Published, QueueView

__all__ = ["Broker", "MessageView", "Published", "QueueView", "VirtualClock"]

if sys.platform == "win32":
    raise ImportError("SlotMQ does not run on Windows: use WSL 2 or a Linux container")

MODULES: Final = {
    "Broker": "broker",
    "MessageView": "views",
    "Published": "views",
    "QueueView": "views",
    "VirtualClock": "clock",
}


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a name on first use, so that tests with `broker_process` do not import the broker here."""
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
