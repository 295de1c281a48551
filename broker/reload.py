"""Reloading of settings: the changes, those that the running broker applies, and those that need a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from broker.amqp.errors import BrokerError
from broker.event_log import get_logger
from broker.settings import Settings
from broker.settings.change import changes, merged

_log = get_logger()


class NotReloaded(ValueError):
    """Nothing was reloaded; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """The source of a process' settings: `load` reads them again, `log` configures its log by them.

    Raises: ValueError from `load`, with one line for the operator.
    """

    load: Callable[[], Settings]
    log: Callable[[Settings], None]


class Reload:
    """Apply changed settings, one reload after the other."""

    def __init__(self, source: SettingsSource | None, take: Callable[[Settings], Awaitable[None]]) -> None:
        """Take the callback that applies new settings; it raises BrokerError when it applied none.

        Without a source, as in an embedded broker, only the certificates are read again.
        """
        self._source = source
        self._take = take
        self._lock = asyncio.Lock()

    async def run(self, current: Callable[[], Settings]) -> dict[str, list[dict[str, Any]]]:
        """Read everything again and return the changed keys and those that need a restart.

        Raises: NotReloaded, after logging the reason; nothing was changed.
        """
        async with self._lock:
            running = current()
            source = self._source
            try:
                wanted = running if source is None else await asyncio.to_thread(source.load)
                found = changes(running, wanted)
                taken = [change for change in found if not change.needs_restart]
                settings = merged(running, wanted, taken)
                await self._take(settings)
            except (ValueError, BrokerError) as error:
                _log.error("settings.not_reloaded", reason=str(error))
                raise NotReloaded(str(error)) from None
            if source is not None and settings.log != running.log:
                source.log(settings)
            outcome = {
                "changed": [change.row() for change in taken],
                "needs_restart": [change.row() for change in found if change.needs_restart],
            }
            _log.info("settings.reloaded", **outcome)
            return outcome
