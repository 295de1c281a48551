"""The rules for names that a client may declare, delete and bind. Texts: RabbitMQ 4.3."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from broker.amqp.errors import ChannelError
from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.routing.exchange_types import EXCHANGE_TYPES

RESERVED: Final = "amq."
TRACE: Final = "amq.rabbitmq.trace"
INTEREST: Final = "amq.slotmq.interest"  # declared in a vhost with an overlay
_STRIPPED: Final = str.maketrans("", "", "\r\n")  # RabbitMQ removes these from declared names


class Resource(NamedTuple):
    """The name of an exchange or a queue in a vhost, whether it exists or not."""

    kind: Literal["exchange", "queue"]
    vhost: str
    name: str

    def __str__(self) -> str:
        """Return RabbitMQ's wording, for which people search logs, such as: queue 'q' in vhost '/'."""
        return f"{self.kind} '{self.name}' in vhost '{self.vhost}'"


def strip_name(name: str) -> str:
    """Return a declared name without line ends, as RabbitMQ stores it."""
    return name.translate(_STRIPPED) if "\n" in name or "\r" in name else name


def is_short_text(value: Any) -> bool:
    """Return whether a value is text that fits in a short string, as names and routing keys must."""
    try:
        return isinstance(value, str) and len(value.encode()) <= SHORT_STRING_MAX_BYTES
    except UnicodeEncodeError:  # a lone surrogate, which JSON can encode
        return False


def is_predeclared(name: str) -> bool:
    """Return whether only the broker itself may declare an exchange of that name."""
    return not name or name.startswith(RESERVED)


def check_exchange_type(type: str) -> None:
    """Refuse an exchange type that does not exist.

    Raises: 406.
    """
    if type not in EXCHANGE_TYPES:
        raise ChannelError(406, f"{'unknown' if type else 'invalid'} exchange type '{type}'")


def refuse_default(resource: Resource) -> None:
    """Refuse to declare, delete or bind the default exchange.

    Raises: 403.
    """
    if resource.kind == "exchange" and not resource.name:
        raise ChannelError(403, "operation not permitted on the default exchange")


def refuse_reserved(kind: str, name: str) -> None:
    """Refuse to declare a name that is reserved for the broker.

    Raises: 403.
    Source: AMQP 0-9-1, exchange.declare and queue.declare, rule reserved names.
    """
    if name.startswith(RESERVED):
        raise ChannelError(403, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def refuse_system_deletion(resource: Resource) -> None:
    """Refuse to delete one of the broker's own exchanges.

    Raises: 403.
    """
    if resource.name.startswith(RESERVED):
        raise ChannelError(403, f"deletion of system {resource} not allowed")
