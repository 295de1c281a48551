"""Which exchanges take part in the overlay."""

from __future__ import annotations

import re
from collections.abc import Iterable

from broker.core.names import INTEREST, TRACE

__all__ = ["Participation"]


class Participation:
    """Tells by the settings whether an exchange takes part.

    A name may hold `*` for any characters. In front of it stands a vhost and a colon, unless it is in the default
    vhost and holds no colon itself. The default exchange and those on which the broker reports take no part.
    """

    def __init__(self, names: Iterable[str], default_vhost: str) -> None:
        places = (name.rpartition(":") if name.count(":") < 2 else name.partition(":") for name in names)
        self._patterns = [
            (_expression(vhost) if colon else re.compile(re.escape(default_vhost)), _expression(exchange))
            for vhost, colon, exchange in places
        ]

    def takes_part(self, vhost: str, exchange: str) -> bool:
        """Return whether an exchange of that name takes part."""
        return exchange not in ("", TRACE, INTEREST) and any(
            of_vhost.fullmatch(vhost) and of_exchange.fullmatch(exchange) for of_vhost, of_exchange in self._patterns
        )


def _expression(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
