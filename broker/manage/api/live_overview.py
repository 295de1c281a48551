"""The broker's totals as the live stream tells them: a value for each sample that is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker import __version__
from broker.core.statistics.message_counts import NO_MESSAGES
from broker.manage.api.visible import visible_sessions, visible_vhosts
from broker.manage.counts import message_numbers
from broker.manage.lengths import lengths_of
from broker.manage.message_stats import MESSAGE_STATS
from broker.manage.needs import Needs
from broker.manage.totals import TOTAL_NUMBERS
from broker.net.alarm_watch import watermarks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.manage.call import Call

__all__ = ["LiveOverview", "rates_between"]

RATED: Final = len(MESSAGE_STATS)
OWN_NUMBERS: Final = (*MESSAGE_STATS, "messages", "messages_ready", "messages_unacknowledged", "queues", "consumers")


class LiveOverview:
    """Reads the totals for one stream: those of the broker, or of the vhosts that the caller sees."""

    __slots__ = ("_before", "_before_ms", "_began_ms", "_call")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._before: Sequence[int] | None = None
        self._before_ms = 0
        self._began_ms = call.broker.samples.now_ms - int(call.broker.facts()["uptime_s"] * 1000)

    async def read(self) -> dict[str, Any] | None:
        """Return the totals of the newest sample, None if they were told. Cost for other users: O(their queues)."""
        call, samples = self._call, self._call.broker.samples
        if not len(samples.totals):
            samples.tick()  # the broker has just started; the next look finds a sample
            return None
        at_ms, numbers = samples.totals.last(1)[-1]
        if at_ms == self._before_ms:
            return None
        monitoring = call.may(Needs.MONITORING)
        names: Sequence[str] = TOTAL_NUMBERS
        before, before_ms = self._before, self._before_ms
        if not monitoring:
            names, numbers = OWN_NUMBERS, await self._own()
        elif before is None and len(earlier := samples.totals.last(2)) == 2:
            before_ms, before = earlier[0]
        self._before, self._before_ms = numbers, at_ms
        value: dict[str, Any] = dict(zip(names[RATED:], numbers[RATED:], strict=True))
        value |= rates_between(MESSAGE_STATS, before, numbers, at_ms - before_ms)
        return {"at": at_ms, **value, **self._facts(at_ms, whole=monitoring)}

    async def _own(self) -> list[int]:
        vhosts = visible_vhosts(self._call)
        counts = NO_MESSAGES
        for vhost in vhosts:
            counts = counts.plus(self._call.broker.statistics.vhost(vhost.name))
        lengths = await lengths_of(vhosts)
        return [*message_numbers(counts), *lengths.numbers, lengths.queues, lengths.consumers]

    def _facts(self, at_ms: int, *, whole: bool) -> dict[str, Any]:
        call, broker = self._call, self._call.broker
        sessions = visible_sessions(call)
        alarms = broker.facts()["alarms"] if broker.unready() else []
        told: dict[str, Any] = {
            "node": broker.node_name,
            "version": __version__,
            "uptime_ms": at_ms - self._began_ms,
            "connections": len(sessions),
            "channels": sum([len(session.connection.channels) for session in sessions]),
            "exchanges": sum([len(vhost.exchanges) for vhost in visible_vhosts(call)]),
            "alarms": alarms if whole else [{"kind": alarm["kind"]} for alarm in alarms],
        }
        if whole:
            settings = broker.settings()
            limits = {one.kind: one.limit_bytes for one in watermarks(settings)}
            told |= {
                "mem_limit": limits["memory"],
                "disk_free_limit": limits["disk"],
                "connections_max": settings.server.connections_max,
                "blocked": len(broker.listener.blocked_sessions()),
            }
        return told


def rates_between(
    names: Sequence[str], before: Sequence[int] | None, after: Sequence[int], window_ms: int
) -> dict[str, float | None]:
    """Return the rates of counters between two readings, None without a first one. Units: per second."""
    if before is None or window_ms <= 0:
        return dict.fromkeys(names)
    return {
        name: round(max(0, count - earlier) * 1000 / window_ms, 1)
        for name, earlier, count in zip(names, before, after, strict=False)
    }
