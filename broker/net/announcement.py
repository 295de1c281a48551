"""The server properties of connection.start, by which the broker introduces itself to clients."""

from __future__ import annotations

import platform
from typing import Any, Final, Literal

from broker import __version__

__all__ = ["server_properties"]

# A release of 3.x and the Erlang that it ran on. kombu does not ask RabbitMQ 4 for the prefetch of a whole channel,
# which Celery's countdown needs.
RABBITMQ: Final = {"version": "3.10.8", "platform": "Erlang/OTP 25.2.3"}
NUMBERS: Final = 3


def server_properties(product: Literal["SlotMQ", "RabbitMQ"]) -> dict[str, Any]:
    """Return the properties with the product name of the settings.

    Shapes: a version is three numbers, because some clients cannot parse more.
    """
    version = ".".join(__version__.split(".")[:NUMBERS])
    ours = {"version": version, "platform": f"Python {platform.python_version()}"}
    chosen = RABBITMQ if product == "RabbitMQ" else ours
    return {"product": product, **chosen, "copyright": "", "information": "AMQP 0-9-1 topic broker"}
