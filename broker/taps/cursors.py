"""Cursors: the last seal that each named reader of a tap has passed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.names import is_short_text
from broker.core.vhost import Vhost
from broker.slot_files.seal_log import TAP_PREFIX, Cursor
from broker.taps.slot_writer import SlotWriter
from broker.vhosts.vhosts import Vhosts

IN_CLUSTER = "taps, cursors and snapshots are not available in a cluster: they need a broker with its own log"
CURSORS_MAX: Final = 1000


class TapRefused(ValueError):
    """The request cannot be carried out; the text is one line for the client or operator."""


def vhost_named(vhosts: Mapping[str, Vhost], name: str) -> Vhost:
    """Return a vhost. Raises: TapRefused."""
    vhost = vhosts.get(name)
    if vhost is None:
        raise TapRefused(f"no vhost '{name}'")
    return vhost


class Cursors:
    """The cursors of a broker. Raises: TapRefused; StoreFailed.

    Shapes: `moved` is called after each change, because slot files may have become removable.
    """

    def __init__(self, vhosts: Vhosts, writer: SlotWriter, moved: Callable[[], None]) -> None:
        self._vhosts = vhosts
        self._writer = writer
        self._folder, self._settings, self._clock = writer.folder, writer.settings, writer.clock
        self._moved = moved
        self._begun: list[str] = []  # the owners of cursors that are being created

    async def set(
        self,
        name: str,
        vhost: str,
        tap: str,
        seal: int,
        *,
        incarnation: str | None = None,
        reset: bool = False,
        maker: str = "",
        user: str | None = None,
    ) -> None:
        """Record that a reader has passed a seal, creating its cursor if necessary. Only `reset` moves a cursor back.
        Shapes: `user`, if given, becomes the cursor's owner; else a new cursor belongs to its `maker`. `incarnation`
            identifies the run of the broker that wrote the seal; a seal of another history is refused.
        """
        check_cursor_name(name)
        view = self._folder.view
        queue = vhost_named(self._vhosts, vhost).queues.taps.get(TAP_PREFIX + tap)
        if queue is None and not view.of_tap(vhost, tap):
            raise TapRefused(f"no tap '{tap}' in vhost '{vhost}'")
        if incarnation is not None and view.diverged(seal, incarnation):
            raise TapRefused(
                f"seal {seal} of incarnation '{incarnation}' is not in this history: "
                "a copy of the data folder was put back"
            )
        if not 0 <= seal <= view.last_seal:
            raise TapRefused(f"no slot {seal} was sealed yet: the last seal is {view.last_seal}")
        if queue is not None:
            self._writer.note_read(queue)
        known = view.cursor(name, vhost, tap)
        if known is None:
            await self._create(name, vhost, tap, seal, maker, maker if user is None else user)
            return
        moves = seal > known.seal or (reset and seal != known.seal)
        owner = known.user if user is None else user
        if moves or owner != known.user:
            await self._put(name, vhost, tap, seal if moves else known.seal, owner)

    async def _create(self, name: str, vhost: str, tap: str, seal: int, maker: str, user: str) -> None:
        """Create a cursor, unless its maker or the broker has too many. Raises: TapRefused."""
        users = [cursor.user for cursor in self._folder.view.cursors] + self._begun
        limit = self._settings().taps.cursors_user_max
        if maker and users.count(maker) >= limit:
            raise TapRefused(f"user '{maker}' has {limit} cursors already (taps.cursors_user_max): remove some")
        if len(users) >= CURSORS_MAX:
            raise TapRefused(f"there are {CURSORS_MAX} cursors already: remove some")
        self._begun.append(user)
        try:
            await self._put(name, vhost, tap, seal, user)
        finally:
            self._begun.remove(user)

    async def begin(self, name: str, vhost: str, tap: str) -> None:
        """Create a cursor that has passed no slot file of its tap yet, unless the cursor exists."""
        view = self._folder.view
        if view.cursor(name, vhost, tap) is None:
            seals = view.of_tap(vhost, tap)
            await self._put(name, vhost, tap, seals[0].seal - 1 if seals else view.last_seal, "")

    async def remove(self, name: str, vhost: str, tap: str) -> None:
        """Remove a cursor; slot files are no longer kept for it."""
        if self._folder.view.cursor(name, vhost, tap) is None:
            raise TapRefused(f"no cursor '{name}' of tap '{tap}' in vhost '{vhost}'")
        await self._writer.in_thread(partial(self._folder.log.remove_cursor, name, vhost, tap))
        self._moved()

    async def remove_all(self, vhost: str, tap: str | None = None) -> None:
        """Remove the cursors of a tap, or of all taps of a vhost."""
        for cursor in self._folder.view.cursors:
            if cursor.vhost == vhost and tap in (None, cursor.tap):
                await self.remove(cursor.name, vhost, cursor.tap)

    async def _put(self, name: str, vhost: str, tap: str, seal: int, user: str) -> None:
        cursor = Cursor(name, vhost, tap, seal, self._clock.now_ms - self._clock.ahead_ms, user)
        await self._writer.in_thread(partial(self._folder.log.append, cursor))
        self._moved()


def check_cursor_name(name: str) -> None:
    """Refuse a name that is empty, too long or not printable. Raises: TapRefused."""
    if not name or not name.isprintable() or not is_short_text(name):
        raise TapRefused(f"a cursor's name has 1 to {SHORT_STRING_MAX_BYTES} bytes, all of them printable")
