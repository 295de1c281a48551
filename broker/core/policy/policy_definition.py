"""The definition of a policy: its keys and their valid values. Texts: RabbitMQ, rabbit_policies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from broker.core.message.delay import DUE_FORMATS, due_headers
from broker.core.names import is_short_text
from broker.core.queue.rules import DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX, RETRY_TYPES
from broker.quantities import duration_ms, size_bytes

UNITS: Final = {
    "message-ttl": "ms",
    "expires": "ms",
    "delayed-retry-min": "ms",
    "delayed-retry-max": "ms",
    "max-length-bytes": "bytes",
    "max-in-memory-bytes": "bytes",
}
"""The keys whose values an operator may write as sizes or times, with the unit of a plain number."""
WITH_UNIT: Final = {
    "ms": "a number of milliseconds, or a time such as 30s or 7d",
    "bytes": "a number of bytes, or a size such as 512MiB or 10GB",
}
Check = Callable[[Any], bool]


def plain_definition(definition: Mapping[str, Any], *, operator: bool) -> dict[str, Any]:
    """Return a definition with its sizes and times converted to numbers, as RabbitMQ requires.

    Raises: ValueError for an empty definition, or for the first key that is unknown or has an invalid value.
    """
    kind = "an operator policy" if operator else "a policy"
    if not definition:
        raise ValueError(f"{kind} needs at least one key, such as max-length")
    known = OPERATOR_KEYS if operator else KEYS
    found = {}
    for key, value in definition.items():
        if key not in known:
            from difflib import get_close_matches  # noqa: PLC0415 - a mistake is rare

            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys_in_effect(operator=operator))}"
            raise ValueError(f"{kind} has no key '{key}'; {hint}")
        found[key], unit = value, UNITS.get(key, "")
        if unit and isinstance(value, str):
            with suppress(ValueError):
                found[key] = size_bytes(value) if unit == "bytes" else duration_ms(value)
        if not _KEYS[key][0](found[key]):
            expected = WITH_UNIT.get(unit, known[key])
            shown = f"'{value}'" if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            raise ValueError(f"'{key}' should be {expected}, not {shown}")
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _is_natural(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_due_header(value: Any) -> bool:
    try:
        return isinstance(value, str) and due_headers(value) != ()
    except ValueError:
        return False


def _one_of(*choices: Any) -> Check:
    return lambda value: not isinstance(value, bool) and value in choices


def _is_age(value: Any) -> bool:
    return isinstance(value, str) and value[:-1].isdigit() and int(value[:-1]) > 0 and value[-1] in "YMDhms"


DISABLED: Final = "disabled"
_CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "overflow": (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX),
    "dead-letter-strategy": ("at-most-once", "at-least-once"),
    "queue-mode": ("default", "lazy"),
    "queue-version": (1, 2),
    "queue-leader-locator": ("client-local", "random", "least-leaders", "balanced"),
    "delayed-retry-type": (*RETRY_TYPES, DISABLED),
}
# For each key: the check of its value, and RabbitMQ's text for an invalid one.
_LIMITS: Final[dict[str, tuple[Check, str]]] = {
    "message-ttl": (_is_natural, "message TTL"),
    "expires": (_is_positive, "queue expiry"),
    "max-length": (_is_natural, "maximum length"),
    "max-length-bytes": (_is_natural, "maximum length in bytes"),
    "max-in-memory-length": (_is_natural, "maximum memory in bytes"),
    "max-in-memory-bytes": (_is_natural, "maximum memory in bytes"),
    "delivery-limit": (_is_integer, "delivery limit"),  # RabbitMQ 4: -1 is no limit
    "overflow": (_one_of(*_CHOICES["overflow"]), "overflow value"),  # RabbitMQ 4: in operator policies too
    "target-group-size": (_is_natural, "target group size"),
    "delayed-retry-type": (
        _one_of(*_CHOICES["delayed-retry-type"]),
        f"delayed retry type. Must be one of: {', '.join(_CHOICES['delayed-retry-type'])}",
    ),
    "delayed-retry-min": (_is_positive, "delayed retry minimum delay. Must be a positive integer"),
    "delayed-retry-max": (_is_positive, "delayed retry maximum delay. Must be a positive integer"),
}
_KEYS: Final[dict[str, tuple[Check, str]]] = {
    **_LIMITS,
    "alternate-exchange": (_is_text, "alternate exchange name"),
    "dead-letter-exchange": (_is_text, "dead letter exchange name"),
    "dead-letter-routing-key": (is_short_text, "dead letter routing key"),
    "dead-letter-strategy": (_one_of(*_CHOICES["dead-letter-strategy"]), "dead letter strategy"),
    "consumer-timeout": (_is_positive, "consumer timeout"),
    "keep-poisoned": (_is_boolean, "keep-poisoned value"),  # this and the next: SlotMQ only
    "hold-until-header": (
        _is_due_header,
        f"hold-until-header. Must be NAME or NAME:FORMAT, with one of the formats: {', '.join(DUE_FORMATS)}",
    ),
    # Keys of RabbitMQ and its plugins that are stored and have no effect here.
    "queue-mode": (_one_of(*_CHOICES["queue-mode"]), "queue-mode value"),
    "queue-version": (_one_of(*_CHOICES["queue-version"]), "queue-version value"),
    "queue-leader-locator": (_one_of(*_CHOICES["queue-leader-locator"]), "queue leader locator value"),
    "initial-cluster-size": (_is_natural, "cluster size"),
    "max-age": (_is_age, "max age"),
    "stream-max-segment-size-bytes": (_is_natural, "segment size"),
    "stream-filter-size-bytes": (_is_natural, "filter size"),
    "max-segment-size": (_is_natural, "segment size"),
    "consumer-disconnected-timeout": (_is_natural, "consumer disconnected timeout"),
    "member-placement-tag": (_is_text, "member placement tag"),
    **dict.fromkeys(
        "queue-master-locator ha-mode ha-params ha-sync-mode ha-sync-batch-size ha-promote-on-shutdown "
        "ha-promote-on-failure federation-upstream federation-upstream-set federation-upstream-pattern shards-per-node "
        "routing-key remote-dc-replicate".split(),
        (lambda _value: True, ""),
    ),
}
_IN_EFFECT: Final = frozenset(
    "message-ttl expires max-length max-length-bytes delivery-limit overflow alternate-exchange dead-letter-exchange "
    "dead-letter-routing-key keep-poisoned consumer-timeout delayed-retry-type delayed-retry-min delayed-retry-max "
    "hold-until-header dead-letter-strategy".split()  # dead letters are at-least-once whatever the strategy
)
# RabbitMQ ignores a whole policy when a queue's type does not support one of its keys (unsupported_policies).
UNSUPPORTED: Final[dict[str, frozenset[str]]] = {
    "exchange": frozenset(),
    "classic": frozenset(
        "delivery-limit dead-letter-strategy max-age stream-max-segment-size-bytes queue-leader-locator "
        "initial-cluster-size".split()
    ),
    "quorum": frozenset(
        "queue-mode queue-master-locator ha-mode ha-params ha-sync-mode ha-promote-on-shutdown ha-promote-on-failure "
        "max-age stream-max-segment-size-bytes initial-cluster-size".split()
    ),
}


def check_definition(definition: Any, *, operator: bool) -> None:
    """Check a definition as RabbitMQ does. Raises: ValueError with RabbitMQ's text."""
    if not isinstance(definition, Mapping):
        raise ValueError(f"definition must be a dictionary: {erlang_term(definition)}")  # noqa: TRY004
    if not definition:
        raise ValueError("no policy provided")
    known = _LIMITS if operator else _KEYS
    for key, value in definition.items():
        if key in known and not known[key][0](value):
            raise ValueError(f"{erlang_term(value)} is not a valid {known[key][1]}")
    if any(key.startswith("delayed-retry-") for key in definition):
        _check_retry(definition)
    unknown = {key: definition[key] for key in sorted(definition) if key not in known}
    if unknown:
        pairs = ",".join(f"{{{erlang_term(key)},{erlang_term(value)}}}" for key, value in unknown.items())
        raise ValueError(f"[{pairs}] are not recognised policy settings")


def _check_retry(definition: Mapping[str, Any]) -> None:
    """Check the keys that a delayed retry needs. Source: RabbitMQ 4.3, rabbit_quorum_queue. Raises: ValueError."""
    kind, min_ms = definition.get("delayed-retry-type", DISABLED), definition.get("delayed-retry-min")
    max_ms = definition.get("delayed-retry-max")
    if kind != DISABLED and min_ms is None:
        raise ValueError(f"delayed-retry-min is required when delayed-retry-type is {kind}")
    if min_ms is not None and max_ms is not None and max_ms < min_ms:
        raise ValueError(f"delayed-retry-max ({max_ms}) must not be smaller than delayed-retry-min ({min_ms})")


def _meaning(key: str, check: Check) -> str:
    """Return a short description of the values of a key."""
    if key in _CHOICES:
        return " or ".join(map(str, _CHOICES[key]))
    for one, meaning in _MEANINGS:
        if check is one:
            return meaning
    return "anything"


_MEANINGS: Final[tuple[tuple[Check, str], ...]] = (
    (_is_natural, "a whole number from 0"),
    (_is_positive, "a whole number from 1"),
    (_is_integer, "a whole number"),
    (_is_text, "text"),
    (_is_boolean, "true or false"),
    (is_short_text, "text of at most 255 bytes"),
    (_is_due_header, f"the name of a header, alone or with a format: NAME:{'|'.join(DUE_FORMATS)}"),
    (_is_age, "an age such as 7D or 12h"),
)
KEYS: Final = {key: _meaning(key, check) for key, (check, _words) in _KEYS.items()}
OPERATOR_KEYS: Final = {key: KEYS[key] for key in _LIMITS}
"""The keys of policies and of operator policies, with a short description of their values."""


def keys_in_effect(*, operator: bool) -> list[str]:
    """Return the keys that have an effect in a policy, or in an operator policy."""
    return [key for key in (_LIMITS if operator else _KEYS) if key in _IN_EFFECT]


def keys_without_effect(definition: Mapping[str, Any]) -> list[str]:
    """Return the keys of a definition that are accepted but have no effect."""
    return sorted(set(definition) - _IN_EFFECT)


def erlang_term(value: Any) -> str:
    """Return a JSON value as RabbitMQ prints it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return f'<<"{value}">>'
    if isinstance(value, list):
        return f"[{','.join(erlang_term(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"#{{{','.join(f'{erlang_term(key)} => {erlang_term(item)}' for key, item in value.items())}}}"
    return str(value)
