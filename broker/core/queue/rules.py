"""The rules of one queue, which result from its arguments and the policies that match its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.message.delay import DueHeader, due_headers

DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"
QUORUM: Final = "quorum"
POISONED_SUFFIX: Final = ".poisoned"
POISONED_ARGUMENTS: Final[dict[str, Any]] = {"x-queue-type": QUORUM, "x-delivery-limit": -1}
"""The arguments of a queue for poisoned messages: such a queue persists transient messages, too."""
QUORUM_DELIVERY_LIMIT: Final = 20  # RabbitMQ 4's default for quorum queues
RETRY_ALL: Final = "all"
RETRY_FAILED: Final = "failed"
RETRY_RETURNED: Final = "returned"
RETRY_TYPES: Final = (RETRY_ALL, RETRY_FAILED, RETRY_RETURNED)


def queue_type(arguments: Mapping[str, Any]) -> str:
    """Return the declared type of a queue."""
    return str(arguments.get("x-queue-type", "classic"))


def poisoned_name(queue: str) -> str:
    """Return the name of the queue that gets the poisoned messages of a queue."""
    return queue + POISONED_SUFFIX


def can_keep_poisoned(queue: str) -> bool:
    """Return whether the name of a queue is short enough for `poisoned_name`."""
    return len(queue.encode()) + len(POISONED_SUFFIX) <= SHORT_STRING_MAX_BYTES


def is_poisoned_name(queue: str) -> bool:
    """Return whether a name is that of a queue for poisoned messages."""
    return queue.endswith(POISONED_SUFFIX)


@dataclass(frozen=True, slots=True)
class DelayedRetry:
    """The rule that delays the redelivery of returned messages. Shapes: `type` is one of RETRY_TYPES.

    Source: RabbitMQ 4.3, rabbit_fifo.
    """

    type: str
    min_ms: int
    max_ms: int

    def holds(self, *, failed: bool) -> bool:
        """Return whether a returned message is delayed; `failed` states whether its delivery has failed."""
        return self.type == RETRY_ALL or (self.type == RETRY_FAILED) is failed

    def wait_ms(self, failures: int) -> int:
        """Return the delay after a number of failed deliveries."""
        return min(self.min_ms * max(1, failures), self.max_ms)


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The rules of one queue. A limit of None means no limit.

    Units: ``ttl_ms`` is how long a message may wait, ``expires_ms`` how long the queue may be unused. ``max_length``
        limits the number of waiting messages, ``max_bytes`` the total size of their bodies. A message whose delivery
        has failed more than ``delivery_limit`` times is poisoned. ``keep_poisoned`` states whether poisoned messages
        are moved to another queue if there is no dead letter exchange; if it is None, the broker's setting decides.
        ``max_priority`` is 0 for a queue without priorities. A message may be unacked for ``consumer_timeout_ms``. If
        the queue ``counts_deliveries``, a header of a redelivery states how often the message was returned. ``retry``
        delays the redelivery of returned messages. A message with a time in one of the ``due_headers`` is held until
        then. A queue that ``deduplicates`` drops a message whose deduplication header equals that of a message in it.
    """

    ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    max_priority: int = 0
    single_active: bool = False
    counts_deliveries: bool = False
    keep_poisoned: bool | None = None
    retry: DelayedRetry | None = None
    due_headers: tuple[DueHeader, ...] = ()
    deduplicates: bool = False

    @property
    def limited(self) -> bool:
        """Whether the queue has a length limit."""
        return self.max_length is not None or self.max_bytes is not None

    def exceeded(self, messages: int, size_bytes: int) -> bool:
        """Return whether a number of messages, or their total size, exceeds a limit."""
        if self.max_length is not None and messages > self.max_length:
            return True
        return self.max_bytes is not None and size_bytes > self.max_bytes


PLAIN: Final = QueueRules()
NUMBER_MAX: Final = 1 << 62  # as good as unlimited; its sum with a time or a count fits into 64 bits
_KEYS_OF_RETRY: Final = frozenset({"x-delayed-retry-type", "delayed-retry-type"})
_NOTHING: Final[Mapping[str, Any]] = {}


def merged_definitions(policy: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition that results from a policy and an operator policy.

    Source: RabbitMQ, rabbit_policy: of two numbers the smaller applies, where -1 means no limit; for delayed-retry-min
        the larger. Other values are the operator's.
    """
    merged = {**policy, **operator}
    for name in policy.keys() & operator.keys():
        both = policy[name], operator[name]
        if all(isinstance(one, int) and not isinstance(one, bool) for one in both):
            merged[name] = max(both) if min(both) < 0 or name == "delayed-retry-min" else min(both)
    return merged


def queue_rules(
    arguments: Mapping[str, Any], policy: Mapping[str, Any] = _NOTHING, operator: Mapping[str, Any] = _NOTHING
) -> QueueRules:
    """Return the rules of a queue, given its arguments and the definitions of its policy and its operator policy.

    Numbers are capped at NUMBER_MAX: clients and operators may send any 63-bit number, as in RabbitMQ.
    Source: RabbitMQ, rabbit_queue_type and rabbit_policy: the smallest number applies; of other values the operator
        policy's, else the argument's, else the policy's.
    """
    if not arguments and not policy and not operator:
        return PLAIN

    given = (arguments, policy, operator)
    quorum = queue_type(arguments) == QUORUM
    limit = min(_numbers(given, "delivery-limit"), default=None)
    if limit is None and quorum:
        limit = QUORUM_DELIVERY_LIMIT
    if limit is not None and limit < 0:
        largest = max(_numbers(given, "delivery-limit"))  # RabbitMQ 4: -1 means no limit, and any limit overrides it
        limit = None if largest < 0 else largest
    exchange = _chosen(given, "dead-letter-exchange")
    return QueueRules(
        ttl_ms=min(_numbers(given, "message-ttl"), default=None),
        expires_ms=min(_numbers(given, "expires"), default=None),
        max_length=min(_numbers(given, "max-length"), default=None),
        max_bytes=min(_numbers(given, "max-length-bytes"), default=None),
        overflow=_chosen(given, "overflow") or DROP_HEAD,
        dead_letter_exchange=exchange,
        dead_letter_key=None if exchange is None else _chosen(given, "dead-letter-routing-key"),
        delivery_limit=limit,
        consumer_timeout_ms=min(filter(None, _numbers(given, "consumer-timeout")), default=None),
        max_priority=int(arguments.get("x-max-priority", 0)),
        single_active=arguments.get("x-single-active-consumer") is True,
        counts_deliveries=quorum,
        keep_poisoned=policy.get("keep-poisoned"),
        retry=_retry(arguments, policy, operator) if any(map(_KEYS_OF_RETRY.intersection, given)) else None,
        due_headers=due_headers(policy["hold-until-header"]) if "hold-until-header" in policy else (),
        deduplicates=arguments.get("x-message-deduplication") is True,
    )


def _retry(arguments: Mapping[str, Any], policy: Mapping[str, Any], operator: Mapping[str, Any]) -> DelayedRetry | None:
    """Return the delayed retry of a queue, or None if there is none.

    Source: RabbitMQ 4.3, rabbit_quorum_queue: the policy's type overrides the argument, and the smaller of two numbers
        applies. The arguments are not checked at the declaration; invalid ones are ignored.
    """
    merged = merged_definitions(policy, operator)
    kind = merged.get("delayed-retry-type", arguments.get("x-delayed-retry-type"))
    min_ms = _positive(arguments.get("x-delayed-retry-min"), merged.get("delayed-retry-min"))
    if kind not in RETRY_TYPES or min_ms is None:
        return None
    max_ms = _positive(arguments.get("x-delayed-retry-max"), merged.get("delayed-retry-max"))
    return DelayedRetry(str(kind), min_ms, min_ms if max_ms is None else max_ms)


def _positive(*values: Any) -> int | None:
    """Return the smallest positive number among the values, at most NUMBER_MAX, or None if there is none."""
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return min(*numbers, NUMBER_MAX) if numbers else None


_Given = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""The arguments, policy and operator policy of a queue: passed as a parameter, because compiled nested functions that
captured them would leave a reference cycle for each queue."""


def _numbers(given: _Given, name: str) -> list[int]:
    arguments, policy, operator = given
    values = (arguments.get(f"x-{name}"), policy.get(name), operator.get(name))
    return [min(int(value), NUMBER_MAX) for value in values if value is not None]


def _chosen(given: _Given, name: str) -> str | None:
    arguments, policy, operator = given
    for value in (operator.get(name), arguments.get(f"x-{name}"), policy.get(name)):
        if value is not None:
            return str(value)
    return None
