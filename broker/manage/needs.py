"""The login or tag that a route requires of its caller."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Final

__all__ = ["Needs", "tags_suffice"]


class Needs(Enum):
    """The requirement of a route: NOTHING takes no login, LOGIN any user; each other one takes a tag."""

    NOTHING = "nothing"
    LOGIN = "login"
    MANAGEMENT = "management"
    POLICYMAKER = "policymaker"
    MONITORING = "monitoring"
    ADMINISTRATOR = "administrator"


SUFFICIENT: Final = {
    Needs.MANAGEMENT: {"management", "policymaker", "monitoring", "administrator"},
    Needs.POLICYMAKER: {"policymaker", "administrator"},
    Needs.MONITORING: {"monitoring", "administrator"},
    Needs.ADMINISTRATOR: {"administrator"},
}
"""The tags of which any one meets the requirement. Source: RabbitMQ's table of management permissions."""


def tags_suffice(tags: Collection[str], needs: Needs) -> bool:
    """Return whether a user with these tags meets the requirement."""
    sufficient = SUFFICIENT.get(needs)
    return sufficient is None or not sufficient.isdisjoint(tags)
