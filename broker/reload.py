"""Reload settings: apply the changes that a running broker can apply, and report those that need a restart."""

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
    """The source of a process's settings: `load` reads them, and `log` configures the process's log with them.

    Raises: ValueError from `load`, with one line for the operator.
    """

    load: Callable[[], Settings]
    log: Callable[[Settings], None]


class Reload:
    """Apply changed settings, one reload at a time."""

    def __init__(self, source: SettingsSource | None, apply: Callable[[Settings], Awaitable[None]]) -> None:
        """`apply` applies new settings as a whole, or raises BrokerError.

        Without a source, as in an embedded broker, only the certificates are reloaded.
        """
        self._source = source
        self._apply = apply
        self._lock = asyncio.Lock()

    async def run(self, current: Callable[[], Settings]) -> dict[str, list[dict[str, Any]]]:
        """Reload settings and certificates, and return the changed keys and those that need a restart.

        Raises: NotReloaded; then nothing was changed, and the reason was logged.
        """
        async with self._lock:
            running = current()
            source = self._source
            try:
                wanted = running if source is None else await asyncio.to_thread(source.load)
                found = changes(running, wanted)
                applied = [change for change in found if not change.needs_restart]
                settings = merged(running, wanted, applied)
                await self._apply(settings)
            except (ValueError, BrokerError) as error:
                _log.error("settings.not_reloaded", reason=str(error))
                raise NotReloaded(str(error)) from None
            if source is not None and settings.log != running.log:
                source.log(settings)
            outcome = {
                "changed": [change.row() for change in applied],
                "needs_restart": [change.row() for change in found if change.needs_restart],
            }
            _log.info("settings.reloaded", **outcome)
            return outcome
