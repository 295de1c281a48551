"""Operations on taps, cursors and snapshots."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Final

from broker.core.auth.users import User
from broker.core.names import Resource
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import MONITORING, Operation
from broker.operations.request import Asker, OfQueue, OfVhosts, OperationRefused, Range, parameters
from broker.operations.rights import check_cursor, check_new_tap, check_seal, check_tap, of_queue
from broker.taps.tap_listing import cursor_rows


@parameters
class AddTap:
    """A new tap of an exchange; if `max_bytes` or `max_age_ms` is None, the limit in the settings applies."""

    vhost: str = "/"
    exchange: str
    pattern: str
    name: str | None = None
    cursors: list[str] = field(default_factory=list)
    max_bytes: Annotated[int | None, Range(1)] = None
    max_age_ms: Annotated[int | None, Range(1)] = None


@parameters
class RemoveTap:
    """The tap to remove; `drop` removes its slot files and cursors, too."""

    name: str
    vhost: str = "/"
    drop: bool = False


@parameters
class Seal(OfVhosts):
    """The taps to seal, by vhost and name; None stands for any."""

    tap: str | None = None


@parameters
class ReadTaps:
    """Taps that a reader has read."""

    vhost: str = "/"
    taps: list[str] = field(default_factory=list)


@parameters
class DropSnapshot:
    """The snapshot to remove."""

    id: str


@parameters
class Cursor:
    """A cursor of a tap."""

    name: str
    vhost: str = "/"
    tap: str


@parameters
class SetCursor(Cursor):
    """The new position of a cursor; `user`, unless None, becomes its owner."""

    seal: Annotated[int | None, Range()] = None
    incarnation: str | None = None
    reset: bool = False
    user: str | None = None


async def tap_add(broker: OperatedBroker, asked: AddTap, _asker: Asker) -> dict[str, Any]:
    """Add a tap, unless an equal one exists."""
    retention: dict[str, Any] = {"cursors": asked.cursors, "max_bytes": asked.max_bytes, "max_age_ms": asked.max_age_ms}
    return await broker.taps.add(asked.vhost, asked.exchange, asked.pattern, name=asked.name, **retention)


async def tap_remove(broker: OperatedBroker, asked: RemoveTap, _asker: Asker) -> dict[str, int]:
    """Remove a tap."""
    return await broker.taps.remove(asked.vhost, asked.name, drop=asked.drop)


def taps(broker: OperatedBroker, asked: OfVhosts, _asker: Asker) -> list[dict[str, Any]]:
    """Return the taps."""
    return broker.taps.listing(asked.vhost)


async def seal(broker: OperatedBroker, asked: Seal, _asker: Asker) -> dict[str, int]:
    """Write the waiting messages of taps into slot files, and return the last seal."""
    return {"last_seal": await broker.taps.seal(asked.vhost, asked.tap)}


def tap_read(broker: OperatedBroker, asked: ReadTaps, _asker: Asker) -> None:
    """Record that taps were read."""
    for tap in asked.taps:
        broker.taps.note_read(asked.vhost, tap)


async def snapshot(broker: OperatedBroker, asked: OfQueue, asker: Asker) -> dict[str, Any]:
    """Copy the messages of a queue into slot files that exist for `taps.snapshot_ms`, or until they are removed."""
    return await broker.taps.snapshots.take(asked.vhost, asked.queue, asker.user_name)


def _may_drop(broker: OperatedBroker, user: User, asked: DropSnapshot) -> None:
    found = broker.taps.snapshots.get(asked.id)
    if found is not None:
        broker.permissions.check(user, Resource("queue", found.vhost, found.queue), "read")


async def snapshot_drop(broker: OperatedBroker, asked: DropSnapshot, _asker: Asker) -> None:
    """Remove a snapshot."""
    await broker.taps.snapshots.drop(asked.id)


def _may_set(broker: OperatedBroker, user: User, asked: SetCursor) -> None:
    check_cursor(broker, user, asked.name, asked.vhost, asked.tap)
    if asked.user is not None:
        check_tap(broker, user, asked.vhost, asked.tap, "configure")


async def cursor_set(broker: OperatedBroker, asked: SetCursor, asker: Asker) -> None:
    """Create or move a cursor."""
    if asked.seal is None:
        raise OperationRefused("'seal' should be an integer")
    moved: dict[str, Any] = {name: getattr(asked, name) for name in ("incarnation", "reset", "user")}
    await broker.taps.cursors.set(asked.name, asked.vhost, asked.tap, asked.seal, maker=asker.user_name, **moved)


async def cursor_remove(broker: OperatedBroker, asked: Cursor, _asker: Asker) -> None:
    """Remove a cursor."""
    await broker.taps.cursors.remove(asked.name, asked.vhost, asked.tap)


def cursors(broker: OperatedBroker, asked: OfVhosts, _asker: Asker) -> list[dict[str, Any]]:
    """Return the cursors of taps."""
    return cursor_rows(broker.taps.listing(asked.vhost))


def _may_add(broker: OperatedBroker, user: User, asked: AddTap) -> None:
    name = asked.name or asked.exchange or "default"
    check_new_tap(broker, user, broker.vhost(asked.vhost), name, asked.exchange, asked.pattern)


def _may_read(broker: OperatedBroker, user: User, asked: ReadTaps) -> None:
    for tap in asked.taps:
        check_tap(broker, user, asked.vhost, tap)


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "tap_add": Operation(tap_add, AddTap, _may_add),
    "tap_remove": Operation(
        tap_remove, RemoveTap, lambda broker, user, asked: check_tap(broker, user, asked.vhost, asked.name, "configure")
    ),
    "taps": Operation(taps, OfVhosts, tag=MONITORING),
    "seal": Operation(seal, Seal, lambda broker, user, asked: check_seal(broker, user, asked.vhost, asked.tap)),
    "tap_read": Operation(tap_read, ReadTaps, _may_read),
    "snapshot": Operation(snapshot, OfQueue, of_queue("read")),
    "snapshot_drop": Operation(snapshot_drop, DropSnapshot, _may_drop),
    "cursor_set": Operation(cursor_set, SetCursor, _may_set),
    "cursor_remove": Operation(
        cursor_remove,
        Cursor,
        lambda broker, user, asked: check_cursor(broker, user, asked.name, asked.vhost, asked.tap),
    ),
    "cursors": Operation(cursors, OfVhosts, tag=MONITORING),
}
