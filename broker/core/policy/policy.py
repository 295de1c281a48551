"""Policies: an operator's rules for all queues and exchanges whose names match a pattern. Texts: RabbitMQ.

If several policies match, the one with the highest priority applies. An operator policy applies in addition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.core.bounded_pattern import BoundedPattern
from broker.core.policy.policy_definition import UNSUPPORTED, check_definition, erlang_term
from broker.core.queue.queue import Queue
from broker.core.queue.rules import QueueRules, queue_rules, queue_type
from broker.routing.exchange import Exchange

OPERATOR_POLICY: Final = "operator_policy"  # operator policies are runtime parameters of this component
EXCHANGE: Final = "exchange"
APPLY_TO: Final[dict[str, tuple[str, ...]]] = {
    "all": (EXCHANGE, "classic", "quorum"),
    "exchanges": (EXCHANGE,),
    "queues": ("classic", "quorum"),
    "classic_queues": ("classic",),  # this and the next two: RabbitMQ 3.12
    "quorum_queues": ("quorum",),
    "streams": (),
}
"""The kinds to which a policy applies, by the value of apply-to: exchanges, and queues of a type."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy, as an operator wrote it, unchecked."""

    name: str
    pattern: str
    apply_to: str
    definition: Mapping[str, Any]
    priority: float = 0

    @classmethod
    def of(cls, name: str, row: Mapping[str, Any]) -> Policy:
        """Return the policy for an entry of RabbitMQ's definitions."""
        return cls(name, row["pattern"], row.get("apply-to", "all"), row["definition"], row.get("priority", 0))

    def row(self, vhost: str) -> dict[str, Any]:
        """Return the policy as an entry of RabbitMQ's definitions."""
        return {
            "vhost": vhost,
            "name": self.name,
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }


def operator_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return an operator policy as RabbitMQ's runtime parameter."""
    return {"vhost": row.pop("vhost"), "component": OPERATOR_POLICY, "name": row.pop("name"), "value": row}


class _Rule:
    """A policy that was checked, with its compiled pattern."""

    def __init__(self, policy: Policy, *, operator: bool) -> None:
        """Check the fields. Raises: ValueError with RabbitMQ's text for an invalid field."""
        self.policy = policy
        self._operator = operator
        text: object = policy.pattern
        if not isinstance(text, str):
            reason = f"pattern should be a binary but was {erlang_term(text)}"
            raise ValueError(reason)  # noqa: TRY004 - the request is wrong, not the caller
        try:
            self.pattern = BoundedPattern(text)
        except ValueError as error:
            raise ValueError(f"pattern should be regular expression but is invalid: {error}") from None
        priority: object = policy.priority
        if isinstance(priority, bool) or not isinstance(priority, int | float):
            reason = f"priority should be a number, actually was {erlang_term(priority)}"
            raise ValueError(reason)  # noqa: TRY004 - the request is wrong, not the caller
        if policy.apply_to not in APPLY_TO:
            choices = "', '".join(APPLY_TO)
            raise ValueError(f"apply-to '{policy.apply_to}' unrecognised; should be one of '{choices}'")
        self._kinds = APPLY_TO[policy.apply_to]
        self.rank = -policy.priority, policy.name  # the sort key: of the policies that match, the first applies
        check_definition(policy.definition, operator=operator)

    def matches(self, name: str, kind: str) -> bool:
        """Return whether the policy matches a name of a kind. An operator policy also does if its search is undecided,
        so that no name escapes an operator's limits.
        """
        if kind not in self._kinds or not UNSUPPORTED[kind].isdisjoint(self.policy.definition):
            return False
        found = self.pattern.try_search(name)
        return self._operator if found is None else found


class Policies:
    """Store the policies and operator policies of one vhost, by name.

    Units: `count` includes the operator policies.
    Invariant: changes take effect together, when `changed` is called.
    Cost: for each name, one search per policy until one matches.
    """

    def __init__(self, apply: Callable[[], None] = lambda: None) -> None:
        """`apply` starts to apply the current policies to queues and exchanges."""
        self.apply = apply
        self.count = 0
        self._rules: dict[bool, dict[str, _Rule]] = {False: {}, True: {}}
        self._ranked: dict[bool, Sequence[_Rule]] = {False: (), True: ()}

    def copy(self) -> Policies:
        """Return an independent copy whose policies are applied to nothing."""
        copy = Policies()
        copy._rules = {operator: dict(by_name) for operator, by_name in self._rules.items()}
        return copy

    def end(self) -> None:
        """Stop applying policies, because the vhost has ended."""
        self.apply = lambda: None

    @property
    def timeouts(self) -> int:
        """The number of searches that exceeded their time limit. Cost: O(policies)."""
        return sum([rule.pattern.slow for ranked in self._ranked.values() for rule in ranked])

    def get(self, name: str, *, operator: bool = False) -> Policy | None:
        rule = self._rules[operator].get(name)
        return None if rule is None else rule.policy

    def list(self, *, operator: bool = False) -> Sequence[Policy]:
        """Return the policies, the highest rank first."""
        return [rule.policy for rule in sorted(self._rules[operator].values(), key=lambda rule: rule.rank)]

    def set(self, policy: Policy, *, operator: bool = False, later: bool = False) -> None:
        """Add or replace a policy. With `later`, the caller calls `changed` after further changes.

        Raises: ValueError with RabbitMQ's text for an invalid policy; then nothing has changed.
        """
        self._rules[operator][policy.name] = _Rule(policy, operator=operator)
        if not later:
            self.changed()

    def clear(self, name: str, *, operator: bool = False, later: bool = False) -> bool:
        """Remove a policy and return whether it existed. With `later`, the caller calls `changed` afterwards."""
        if self._rules[operator].pop(name, None) is None:
            return False
        if not later:
            self.changed()
        return True

    def of(self, name: str, kind: str = EXCHANGE, *, operator: bool = False) -> Policy | None:
        """Return the policy for the name of an exchange, or of a queue of a type, even if no such object exists."""
        return next((rule.policy for rule in self._ranked[operator] if rule.matches(name, kind)), None)

    def rules_for(self, name: str, arguments: Mapping[str, Any]) -> tuple[QueueRules, str | None, str | None]:
        """Return the rules of a queue of that name, and the names of its policy and its operator policy."""
        kind = queue_type(arguments)
        policy = self.of(name, kind)
        operator = self.of(name, kind, operator=True)
        rules = queue_rules(
            arguments, {} if policy is None else policy.definition, {} if operator is None else operator.definition
        )
        return rules, None if policy is None else policy.name, None if operator is None else operator.name

    def apply_to_queue(self, queue: Queue, *, enforce: bool = True) -> bool:
        """Set a queue's rules from its arguments and matching policies, unless it is internal or recovered; return
        whether they have changed. With `enforce`, enforce changed rules at once.
        """
        if queue.is_internal or queue.recovered:
            return False
        changed = queue.apply_rules(*self.rules_for(queue.name, queue.arguments))
        if changed and enforce:
            queue.enforce_rules()
        return changed

    def apply_to_exchange(self, exchange: Exchange) -> bool:
        """Set an exchange's alternate from its arguments, or else from its policy; return whether it has changed."""
        alternate = exchange.arguments.get("alternate-exchange")
        if alternate is None:
            policy = self.of(exchange.name)
            alternate = None if policy is None else policy.definition.get("alternate-exchange")
        return alternate != exchange.alternate and exchange.set_alternate(alternate)

    def changed(self) -> None:
        """Put changes into effect: rank the policies, and apply them."""
        for operator, by_name in self._rules.items():
            self._ranked[operator] = sorted(by_name.values(), key=lambda rule: rule.rank)
        self.count = sum(map(len, self._ranked.values()))
        self.apply()
