"""Check the arguments of a queue that is about to be created, in RabbitMQ 4.3's order and mostly with its texts.

Unknown arguments are stored and have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from broker.amqp.errors import ChannelError
from broker.amqp.header_facts import EXPIRATION_MAX_MS
from broker.amqp.wire import INT_64_MAX, SHORT_STRING_MAX_BYTES
from broker.core.arguments import amqp_type, named_exchange, text
from broker.core.names import Resource, is_short_text
from broker.core.queue.rules import DROP_HEAD, QUORUM, REJECT_PUBLISH, REJECT_PUBLISH_DLX, queue_type

CLASSIC: Final = "classic"
STREAM: Final = "stream"
QUEUE_TYPES: Final = (CLASSIC, QUORUM, STREAM)
PRIORITY_MAX: Final = 255
DEFAULT_TYPE_FACT: Final = "default_queue_type"
NO_TYPE: Final = "undefined"  # RabbitMQ exports this for a vhost without a default type
TYPES: Final = {CLASSIC: CLASSIC, QUORUM: QUORUM, "rabbit_classic_queue": CLASSIC, "rabbit_quorum_queue": QUORUM}

Check = Callable[[Any, Mapping[str, Any]], str | None]
"""A function that returns the error text for an invalid value, else None, given the value and all arguments."""


def default_type(facts: Mapping[str, Any]) -> str | None:
    """Return the default queue type among the facts of a vhost, or None if it is missing or not supported."""
    stated = _stated_type(facts)
    return TYPES.get(stated) if isinstance(stated, str) else None


def ignored_default_type(facts: Mapping[str, Any]) -> str | None:
    """Return why the default queue type of a vhost has no effect, or None if it has an effect or is missing."""
    stated = _stated_type(facts)
    if stated is None or default_type(facts) is not None:
        return None
    return f"{DEFAULT_TYPE_FACT} {stated!r} has no effect: {_reason(stated)}"


def check_default_type(name: str | None) -> str | None:
    """Return the default queue type with a name, or None for no default. Raises: ValueError for an unsupported one."""
    if name is None or name == NO_TYPE:
        return None
    if name not in TYPES:
        raise ValueError(f"{DEFAULT_TYPE_FACT} cannot be {name!r}: {_reason(name)}")
    return TYPES[name]


def with_default_type(
    arguments: Mapping[str, Any], default: str | None, *, durable: bool, exclusive: bool, auto_delete: bool
) -> Mapping[str, Any]:
    """Return the arguments of a declare, with the default queue type unless they state a type.

    A default of quorum does not apply to a queue that cannot be a quorum queue.
    """
    if default is None or "x-queue-type" in arguments:
        return arguments
    if default == QUORUM and (not durable or exclusive or auto_delete):
        return arguments
    return {**arguments, "x-queue-type": default}


def _stated_type(facts: Mapping[str, Any]) -> Any:
    """Return the default type that the facts state: RabbitMQ writes it next to the name and in the metadata."""
    metadata = facts.get("metadata")
    for found in (facts, metadata if isinstance(metadata, Mapping) else {}):
        stated = found.get(DEFAULT_TYPE_FACT)
        if stated is not None and stated != NO_TYPE:
            return stated
    return None


def _reason(stated: Any) -> str:
    return "streams are not supported" if stated == STREAM else f"it is {CLASSIC} or {QUORUM}"


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """The properties with which a queue is created.

    ``number`` identifies its messages in the log, and is never reused. ``exclusive_owner`` is the connection of an
    exclusive queue. ``recovered`` means that the client's declaration was lost.
    """

    name: str
    number: int
    durable: bool = field(default=True, kw_only=True)
    exclusive_owner: object | None = field(default=None, kw_only=True)
    auto_delete: bool = field(default=False, kw_only=True)
    arguments: dict[str, Any] = field(default_factory=dict, kw_only=True)
    recovered: bool = field(default=False, kw_only=True)


def _choice(reason: str, choices: tuple[str, ...], value: Any, _arguments: Mapping[str, Any]) -> str | None:
    if amqp_type(value) != "longstr":
        return f"{{unacceptable_type,{amqp_type(value)}}}"
    return None if value in choices else reason.format(text(value))


def _anything(_value: Any, _arguments: Mapping[str, Any]) -> None:
    """Accept any value."""


def _text(value: Any, _arguments: Mapping[str, Any]) -> str | None:
    return None if amqp_type(value) == "longstr" else f"{{unacceptable_type,{amqp_type(value)}}}"


def _boolean(value: Any, _arguments: Mapping[str, Any]) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{amqp_type(value)}}}"


def _integer(value: Any, _arguments: Mapping[str, Any]) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f'"expected integer, got {amqp_type(value)}"'
    return None


def _natural(
    maximum: int, value: Any, arguments: Mapping[str, Any], *, excess: str = "max_value_exceeded"
) -> str | None:
    reason = _integer(value, arguments)
    if reason is None and value < 0:
        reason = f"{{value_negative,{value}}}"
    elif reason is None and value > maximum:
        reason = f"{{{excess},{value}}}"
    return reason


_time = partial(_natural, EXPIRATION_MAX_MS, excess="value_too_large")
_count = partial(_natural, INT_64_MAX)


def _positive(check: Check, value: Any, arguments: Mapping[str, Any]) -> str | None:
    reason = check(value, arguments)
    return "{value_zero,0}" if reason is None and value == 0 else reason


def _dead_letter_key(value: Any, arguments: Mapping[str, Any]) -> str | None:
    """Refuse a key without a dead letter exchange, as RabbitMQ does, and a key that is not a short string, which
    RabbitMQ accepts although it then cannot deliver the dead letters.
    """
    reason = _text(value, arguments)
    if reason is None and not is_short_text(value):
        reason = f'"expected UTF-8 of at most {SHORT_STRING_MAX_BYTES} bytes"'
    return "routing_key_but_no_dlx_defined" if reason is None and "x-dead-letter-exchange" not in arguments else reason


def _version(value: Any, arguments: Mapping[str, Any]) -> str | None:
    reason = _natural(INT_64_MAX, value, arguments)
    return f"\"unsupported queue version '{value}'\"" if reason is None and value not in (1, 2) else reason


SUPPORTED_TYPES: Final = (CLASSIC, QUORUM)
_overflow = partial(_choice, "invalid_overflow", (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX))
_type = partial(_choice, "\"unsupported queue type '{}'\"", QUEUE_TYPES)
_strategy = partial(_choice, "invalid_dlx_strategy", ("at-most-once", "at-least-once"))
_locator = partial(_choice, "invalid_queue_locator_arg", ("client-local", "random", "least-leaders", "balanced"))

# For each argument: the queue types that have it, and its check; in the order of RabbitMQ's checks and comparisons.
_ARGUMENTS: Final[dict[str, tuple[tuple[str, ...], Check]]] = {
    "x-expires": (SUPPORTED_TYPES, partial(_positive, _time)),
    "x-message-ttl": (SUPPORTED_TYPES, _time),
    "x-dead-letter-exchange": (SUPPORTED_TYPES, _text),
    "x-dead-letter-routing-key": (SUPPORTED_TYPES, _dead_letter_key),
    "x-dead-letter-strategy": ((QUORUM,), _strategy),
    "x-max-length": (SUPPORTED_TYPES, _count),
    "x-max-length-bytes": (SUPPORTED_TYPES, _count),
    "x-max-in-memory-length": ((QUORUM,), _count),
    "x-max-in-memory-bytes": ((QUORUM,), _count),
    "x-max-priority": ((CLASSIC,), partial(_natural, PRIORITY_MAX)),
    "x-overflow": (SUPPORTED_TYPES, _overflow),
    "x-queue-mode": ((CLASSIC,), _anything),  # RabbitMQ 4 has one mode, and accepts any value
    "x-queue-version": ((CLASSIC,), _version),
    "x-single-active-consumer": (SUPPORTED_TYPES, _boolean),
    "x-queue-type": (SUPPORTED_TYPES, _type),
    "x-quorum-initial-group-size": ((QUORUM,), partial(_positive, _count)),
    "x-max-age": ((), _text),
    "x-stream-max-segment-size-bytes": ((), _count),
    "x-initial-cluster-size": ((), _count),
    "x-queue-leader-locator": ((QUORUM,), _locator),
    "x-delivery-limit": ((QUORUM,), _integer),  # RabbitMQ accepts anything; in RabbitMQ 4, -1 means no limit
    "x-queue-master-locator": ((CLASSIC,), _text),
    "x-consumer-timeout": (SUPPORTED_TYPES, _count),  # RabbitMQ refuses it for classic queues
    "x-consumer-disconnected-timeout": ((QUORUM,), _count),
    "x-member-placement-tag": ((QUORUM,), _text),
    # RabbitMQ has the next three for quorum queues only, and does not check them.
    "x-delayed-retry-type": (SUPPORTED_TYPES, _anything),
    "x-delayed-retry-min": (SUPPORTED_TYPES, _anything),
    "x-delayed-retry-max": (SUPPORTED_TYPES, _anything),
    "x-message-deduplication": (SUPPORTED_TYPES, _boolean),  # a plugin of RabbitMQ has it for classic queues
}


def compared_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments of a queue that must be equal in another declare of the queue."""
    kind = queue_type(arguments)
    return [name for name, (types, _) in _ARGUMENTS.items() if kind in types]


def check_queue_arguments(
    resource: Resource, arguments: Mapping[str, Any], *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Check the arguments of a queue that is about to be created.

    Raises: ChannelError 406 for an invalid value, for an argument or property that a queue of this type cannot have,
        and for a stream.
    """
    named_exchange(resource, arguments, "x-dead-letter-exchange")
    if "x-queue-type" in arguments:
        _check(resource, arguments, "x-queue-type")
    kind = queue_type(arguments)
    if kind == STREAM:
        raise ChannelError(
            406,
            f"invalid arg 'x-queue-type' for {resource}: \"streams are not supported; a durable queue of type 'quorum' "
            'keeps its messages until they are acknowledged"',
        )
    for name, (types, _) in _ARGUMENTS.items():
        if name in arguments and kind not in types:
            raise ChannelError(406, f"invalid arg '{name}' for {resource} of queue type rabbit_{kind}_queue")
    for name in _ARGUMENTS:
        if name in arguments:
            _check(resource, arguments, name)
    if kind == QUORUM:
        for wrong, word in ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable")):
            if wrong:
                raise ChannelError(406, f"invalid property '{word}' for {resource}")


def _check(resource: Resource, arguments: Mapping[str, Any], name: str) -> None:
    reason = _ARGUMENTS[name][1](arguments[name], arguments)
    if reason is not None:
        raise ChannelError(406, f"invalid arg '{name}' for {resource}: {reason}")
