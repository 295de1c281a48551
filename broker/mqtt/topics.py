"""Topic names and filters, and the corresponding routing and binding keys of a topic exchange.

In AMQP's dialect (`swaps`), `/` and `.` are swapped in both directions, and `+` in a filter becomes `*`. So a topic
without dots has the same key as in RabbitMQ, and every topic has its own key. In MQTT's dialect nothing is swapped.
Source: MQTT 5.0, section 4.7; RabbitMQ, rabbit_mqtt_util.
"""

from __future__ import annotations

from typing import Final

from broker.mqtt.errors import PacketError
from broker.mqtt.reason_codes import FILTER_INVALID, MALFORMED, TOPIC_INVALID
from broker.mqtt.wire import check_text

KEY_MAX_BYTES: Final = 255  # the longest routing key in AMQP
_SWAPPED: Final = str.maketrans("/.", "./")
SHARED: Final = "$share/"
SYSTEM: Final = "$SYS/"


def routing_key(topic: bytes, levels_max: int, swaps: bool = True) -> str:
    """Return the routing key of a topic name.

    Raises: PacketError 0x81 for octets that are not an MQTT string, 0x90 for a topic that clients may not publish to.
    """
    name = check_text(topic)
    if not name:
        raise PacketError(TOPIC_INVALID, "an empty topic")
    if "+" in name or "#" in name:
        raise PacketError(TOPIC_INVALID, f"topic '{name[:100]}' has a wildcard")
    if name.startswith("$"):
        raise PacketError(TOPIC_INVALID, f"topic '{name[:100]}' begins with $: only the broker publishes there")
    if len(topic) > KEY_MAX_BYTES:
        raise PacketError(TOPIC_INVALID, f"a topic of {len(topic)} bytes, at most {KEY_MAX_BYTES} are allowed")
    if name.count("/") >= levels_max:
        raise PacketError(TOPIC_INVALID, f"a topic of {name.count('/') + 1} levels, at most {levels_max} are allowed")
    return name.translate(_SWAPPED) if swaps else name


def swapped(text: str) -> str:
    """Swap `/` and `.`, to convert a topic name to a routing key, or back."""
    return text.translate(_SWAPPED)


def topic_of(key: str, swaps: bool = True) -> bytes | None:
    """Return the topic name of a routing key, or None if MQTT clients must not receive it."""
    if not key or key.startswith("$") or "+" in key or "#" in key or "\0" in key:
        return None
    return (key.translate(_SWAPPED) if swaps else key).encode()


def binding_key(topic_filter: str, levels_max: int, swaps: bool = True) -> str:
    """Return the binding key of a topic filter. A filter of the broker's own topics ($SYS) is always swapped.

    Raises: PacketError 0x8F for a filter that is malformed or not supported.
    """
    shown = f"filter '{topic_filter[:100]}'"
    if not topic_filter:
        raise PacketError(FILTER_INVALID, "an empty filter")
    if topic_filter.startswith("$") and not topic_filter.startswith(SYSTEM):
        raise PacketError(FILTER_INVALID, f"{shown} begins with $: the broker has no such topics")
    levels = topic_filter.split("/")
    if len(levels) > levels_max:
        raise PacketError(FILTER_INVALID, f"{shown} has {len(levels)} levels, at most {levels_max} are allowed")
    if len(topic_filter.encode()) > KEY_MAX_BYTES:
        raise PacketError(FILTER_INVALID, f"{shown} is longer than {KEY_MAX_BYTES} bytes")
    for index, level in enumerate(levels):
        if ("+" in level and level != "+") or ("#" in level and level != "#"):
            raise PacketError(FILTER_INVALID, f"{shown} has a wildcard within a level")
        if level == "#" and index < len(levels) - 1:
            raise PacketError(FILTER_INVALID, f"{shown} has a # before its last level")
        if level == "*" and swaps:
            raise PacketError(FILTER_INVALID, f"{shown} has a level *, which is a wildcard of AMQP")
    if not swaps and not topic_filter.startswith(SYSTEM):
        return topic_filter
    return topic_filter.translate(_SWAPPED).replace("+", "*")


def split_shared(topic_filter: str) -> tuple[str, str]:
    """Return the share name and the filter of a shared subscription; the name of an unshared one is empty.

    Raises: PacketError 0x8F for a filter that cannot be shared.
    """
    if not topic_filter.startswith(SHARED):
        return "", topic_filter
    name, slash, rest = topic_filter[len(SHARED) :].partition("/")
    if not name or "+" in name or "#" in name or not slash or rest.startswith("$"):
        raise PacketError(FILTER_INVALID, f"filter '{topic_filter[:100]}' cannot be shared")
    return name, rest


def filter_of(octets: bytes) -> str:
    """Decode a topic filter. Raises: PacketError 0x81 for octets that are empty, or not an MQTT string."""
    if not octets:
        raise PacketError(MALFORMED, "an empty topic filter")
    return check_text(octets)
