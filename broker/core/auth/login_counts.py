"""Counts of logins that succeeded and failed, by protocol and by network."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

__all__ = ["LoginCount", "LoginCounts"]

SOURCES_MAX: Final = 4096


@dataclass(slots=True)
class LoginCount:
    """Logins since the start, or since the counts were cleared."""

    succeeded: int = 0
    failed: int = 0

    def note(self, *, refused: bool) -> None:
        """Count a login."""
        if refused:
            self.failed += 1
        else:
            self.succeeded += 1


class LoginCounts:
    """Counts logins.

    Shapes: `by_source` has network and protocol. Cost: bounded; the networks that logged in longest ago are forgotten.
    """

    __slots__ = ("by_protocol", "by_source")

    def __init__(self) -> None:
        self.by_protocol: dict[str, LoginCount] = {}
        self.by_source: OrderedDict[tuple[str, str], LoginCount] = OrderedDict()

    def note(self, protocol: str, network: str, *, refused: bool) -> None:
        """Count the verdict on a login."""
        total = self.by_protocol.get(protocol)
        if total is None:
            total = self.by_protocol[protocol] = LoginCount()
        total.note(refused=refused)
        source = (network, protocol)
        count = self.by_source.get(source)
        if count is None:
            count = self.by_source[source] = LoginCount()
            if len(self.by_source) > SOURCES_MAX:
                self.by_source.popitem(last=False)
        else:
            self.by_source.move_to_end(source)
        count.note(refused=refused)

    def clear(self) -> None:
        """Begin to count from zero."""
        self.by_protocol.clear()
        self.by_source.clear()
