"""What a caller needs at least to use a route."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Final

__all__ = ["Needs", "tags_suffice"]


class Needs(Enum):
    """The least that a caller needs. NOTHING is not even a login, LOGIN no tag; the others are a user's tags."""

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
"""The tags each of which is enough. Source: RabbitMQ's table of management permissions."""


def tags_suffice(tags: Collection[str], needs: Needs) -> bool:
    """Return whether a user with these tags has what is needed."""
    sufficient = SUFFICIENT.get(needs)
    return sufficient is None or not sufficient.isdisjoint(tags)
