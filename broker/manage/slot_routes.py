"""The routes under /v1 for remote readers: slot files of taps, seals, cursors, and snapshots of queues.

Invariant: only users who may read a queue may read its snapshot.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from broker import __version__
from broker.core.names import Resource
from broker.manage.answers import PieceResponse, Response, json_answer
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.file_reads import FileReads
from broker.manage.refusal import HttpRefused, bad_request, not_found
from broker.manage.request_target import integer
from broker.operations.request import ROWS_AT_ONCE
from broker.operations.rights import check_cursor, check_seal, check_tap, may_read_tap
from broker.slot_files.slot_file import FORMAT
from broker.taps.slot_snapshots import Snapshot, is_private

ONE_RANGE: Final = re.compile(r"bytes=[ \t]*(\d{0,19})-(\d{0,19})[ \t]*")
BYTES: Final = "application/octet-stream"
LIMIT_MAX: Final = 10_000
SNAPSHOTS_MAX: Final = 64  # at a time, because each is a copy of a queue on disk


async def file_answer(reads: FileReads, path: Path, headers: Mapping[str, str], crc: int) -> Response | None:
    """Return the answer to a GET of a file with this checksum, or None if neither the broker nor the client has it.

    Raises: HttpRefused (416); StoreFailed.
    """
    etag = f'"{crc:08x}"'
    tags = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, immutable"}
    if is_known(headers, etag):
        return Response(status_code=304, headers=tags, media_type=BYTES)
    found = await reads.open(path)
    if found is None:
        return None
    file, size_bytes = found
    try:
        asked = asked_bytes(headers, size_bytes, etag)
    except BaseException:
        file.close()
        raise
    first, end = asked or (0, size_bytes)
    tags["Content-Length"] = str(end - first)
    if asked is not None:
        tags["Content-Range"] = f"bytes {first}-{end - 1}/{size_bytes}"
    status = 200 if asked is None else 206
    return PieceResponse(reads.pieces(file, first, end), status, tags, BYTES, ended=file.close)


def asked_bytes(headers: Mapping[str, str], size_bytes: int, etag: str) -> tuple[int, int] | None:
    """Return the offset of the first requested byte and the offset after the last, or None for the whole file.

    The whole file is also returned for a header that RFC 9110 allows a server to ignore.
    Raises: HttpRefused (416) for a range without any byte of the file.
    """
    found = ONE_RANGE.fullmatch(headers.get("range", ""))
    if found is None or headers.get("if-range", etag) != etag:
        return None
    first, last = found[1], found[2]
    if not first and not last:
        return None
    if not first:
        begin, end = max(0, size_bytes - int(last)), size_bytes
    else:
        begin, end = int(first), min(size_bytes, int(last) + 1) if last else size_bytes
        if last and int(last) < begin:  # not a range
            return None
    if begin >= size_bytes:
        unsatisfied = (("Content-Range", f"bytes */{size_bytes}"),)
        raise HttpRefused(416, f"the file has {size_bytes} bytes", headers=unsatisfied)
    return begin, end


def is_known(headers: Mapping[str, str], etag: str) -> bool:
    """Return whether the client already has this content."""
    tags = [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
    return etag in tags or tags == ["*"]


async def store(call: Call) -> Response:
    """Answer with the identity of the store, its last seal and its format."""
    view = call.broker.taps.view
    return json_answer(
        {
            "store": view.store,
            "incarnation": call.broker.incarnation,
            "last_seal": view.last_seal,
            "format": FORMAT,
            "version": __version__,
        }
    )


async def seals(call: Call) -> Response:
    """List the slot files after a seal, and the gaps among them, for the taps that the user may read.

    "partial" means that there are taps that the user may not read.
    Invariant: with "more": false, every seal of these taps up to "last_seal" is in the answer, as a file or as removed.
    """
    after = integer("after", call.query.get("after", "0"))
    limit = integer("limit", call.query.get("limit", "1000"), LIMIT_MAX)
    visible = _visible(call)
    view = call.broker.taps.view
    starts = view.starts.rows()
    last = view.last_seal  # read first, because slots sealed in the meantime may not be listed
    rows: list[dict[str, Any]] = []
    at, more, complete = after, False, False
    while not (complete or more):
        batch = view.after(at, limit=ROWS_AT_ONCE)
        complete = len(batch) < ROWS_AT_ONCE
        for seal in batch:
            at = seal.seal
            if visible(seal.vhost, seal.queue):
                more = len(rows) == limit
                if more:
                    break
                rows.append(seal.to_json())
        await asyncio.sleep(0)
    return json_answer(
        {
            "store": view.store,
            "last_seal": last,
            "incarnations": starts,
            "more": more,
            "partial": not all(may_read_tap(call.broker, call.user, of, tap) for of, tap in view.taps),
            "seals": rows,
            "gaps": [gap.to_json() for gap in view.lost(after) if visible(gap.vhost, gap.queue)],
            "released": [one.to_json() for one in list(view.released.values()) if visible(one.vhost, one.queue)],
            "cursors": [one.to_json() for one in view.cursors if visible(one.vhost, one.tap)],
        }
    )


def _visible(call: Call) -> Callable[[str, str], bool]:
    """Return a function that checks whether a tap is requested and readable. Raises: ChannelError (403)."""
    vhost, tap = call.query.get("vhost"), call.query.get("tap")
    if vhost is not None and tap is not None:
        check_tap(call.broker, call.user, vhost, tap)

    @cache
    def visible(of_vhost: str, of_tap: str) -> bool:
        requested = vhost in (None, of_vhost) and tap in (None, of_tap)
        return requested and may_read_tap(call.broker, call.user, of_vhost, of_tap)

    return visible


async def slot(call: Call) -> Response:
    """Answer with a slot file, or a part of it."""
    number = integer("seal", call.words["seal"])
    seal = call.broker.taps.view.seal(number)
    if seal is None:
        raise _missing(call, number)
    check_tap(call.broker, call.user, seal.vhost, seal.queue)
    call.broker.taps.note_read(seal.vhost, seal.queue)
    answer = await file_answer(call.broker.reads, call.broker.taps.slot_path(number), call.request.headers, seal.crc)
    if answer is None:
        raise _missing(call, number)
    return answer


def _missing(call: Call, number: int) -> HttpRefused:
    known = number <= call.broker.taps.view.last_seal
    return not_found(f"slot {number} was released" if known else f"no slot {number} was sealed yet")


async def listing(call: Call) -> Response:
    """List the taps that the user may read."""
    vhost = call.query.get("vhost")
    rows = call.broker.taps.listing(vhost) if vhost is None or vhost in call.broker.administration.vhosts else []
    visible = [row for row in rows if may_read_tap(call.broker, call.user, row["vhost"], row["name"])]
    return json_answer({"taps": visible})


async def seal(call: Call) -> Response:
    """Write the messages that taps hold into slot files, and answer with the last seal."""
    fields = await call.fields(("vhost", "tap"))
    vhost, tap = fields.optional("vhost"), fields.optional("tap")
    if tap is not None and vhost is None:
        vhost = "/"
    check_seal(call.broker, call.user, vhost, tap)
    if tap is not None and vhost is not None:
        tap_row(call, vhost, tap)  # after the check of rights, so that a 404 reveals no names
    return json_answer({"last_seal": await call.broker.taps.seal(vhost, tap)})


async def set_cursor(call: Call) -> None:
    """Create or advance a cursor; `reset` also moves it back."""
    fields = await call.fields(("vhost", "tap", "seal", "incarnation", "reset"))
    vhost, tap = fields.text("vhost", "/"), fields.text("tap")
    if not fields.has("seal"):
        raise bad_request("'seal' is missing")
    seal, reset = fields.integer("seal", 0), fields.flag("reset")
    name, incarnation = call.words["name"], fields.optional("incarnation")
    check_cursor(call.broker, call.user, name, vhost, tap)
    tap_row(call, vhost, tap)
    await call.broker.taps.cursors.set(
        name, vhost, tap, seal, incarnation=incarnation, reset=reset, maker=call.user.name
    )


async def remove_cursor(call: Call) -> None:
    """Remove a cursor; slot files are no longer kept for it."""
    query = call.query
    if "tap" not in query:
        raise bad_request("the parameter 'tap' is missing")
    vhost, tap, name = query.get("vhost", "/"), query["tap"], call.words["name"]
    check_cursor(call.broker, call.user, name, vhost, tap)
    if call.broker.taps.view.cursor(name, vhost, tap) is None:
        raise not_found(f"no cursor '{name}' of tap '{tap}' in vhost '{vhost}'")
    await call.broker.taps.cursors.remove(name, vhost, tap)


def tap_row(call: Call, vhost: str, tap: str) -> dict[str, Any]:
    """Return the row of a tap, or of a removed one that still has slot files. Raises: HttpRefused."""
    rows = call.broker.taps.listing(vhost) if vhost in call.broker.administration.vhosts else []
    for row in rows:
        if row["name"] == tap:
            return row
    raise not_found(f"no tap '{tap}' in vhost '{vhost}'")


# -- snapshots: copies of a queue's messages in slot files, until they expire or are removed --------------------------


async def take(call: Call) -> Response:
    """Take a snapshot of a queue and list its files."""
    fields = await call.fields(("vhost", "queue"))
    vhost, queue = fields.text("vhost", "/"), fields.text("queue")
    _check_queue(call, vhost, queue)
    known = call.broker.administration.vhosts.get(vhost)
    found = None if known is None else known.queues.get(queue)
    if found is None:
        raise not_found(f"no queue '{queue}' in vhost '{vhost}'")
    _check_queue(call, vhost, queue, private=is_private(found))
    if len(call.broker.taps.snapshots) + call.broker.taps.snapshots.under_way >= SNAPSHOTS_MAX:
        raise HttpRefused(503, f"there are {SNAPSHOTS_MAX} snapshots already: delete some, or try again later")
    return json_answer(await call.broker.taps.snapshots.take(vhost, queue, call.user.name), 201)


async def snapshot_file(call: Call) -> Response:
    """Answer with one file of a snapshot, or a part of it."""
    snapshot, n = _snapshot(call), integer("n", call.words["n"])
    crc = next((file.crc for file in snapshot.files if file.n == n), None)
    answer = None
    if crc is not None:
        path = call.broker.taps.snapshots.path(snapshot.id, n)
        answer = await file_answer(call.broker.reads, path, call.request.headers, crc)
    if answer is None:
        raise not_found(f"no file {n} of snapshot {snapshot.id}")
    return answer


async def drop(call: Call) -> None:
    """Remove a snapshot."""
    await call.broker.taps.snapshots.drop(_snapshot(call).id)


def _snapshot(call: Call) -> Snapshot:
    snapshot = call.broker.taps.snapshots.get(call.words["id"])
    if snapshot is None:
        raise not_found(f"no snapshot {call.words['id'][:64]}")
    _check_queue(call, snapshot.vhost, snapshot.queue, private=snapshot.private)
    return snapshot


def _check_queue(call: Call, vhost: str, queue: str, *, private: bool = False) -> None:
    """Check that the caller may read a queue; a private one (see `is_private`) also requires Needs.MONITORING.

    Raises: ChannelError (403), HttpRefused.
    """
    resource = Resource("queue", vhost, queue)
    call.broker.permissions.check(call.user, resource, "read")
    if private and not call.may(Needs.MONITORING):
        raise HttpRefused(403, f"access to {resource} refused for user '{call.user.name}': it is not for clients")


ROUTES: Final = (
    ApiRoute("GET", "/v1/store", Needs.LOGIN, store, ()),
    ApiRoute("GET", "/v1/seals", Needs.LOGIN, seals, ("after", "limit", "vhost", "tap")),
    ApiRoute("GET", "/v1/slots/{seal}", Needs.LOGIN, slot, ()),
    ApiRoute("GET", "/v1/taps", Needs.LOGIN, listing, ("vhost",)),
    ApiRoute("POST", "/v1/seal", Needs.LOGIN, seal, ()),
    ApiRoute("PUT", "/v1/cursors/{name}", Needs.LOGIN, set_cursor, ()),
    ApiRoute("DELETE", "/v1/cursors/{name}", Needs.LOGIN, remove_cursor, ("vhost", "tap")),
    ApiRoute("POST", "/v1/snapshots", Needs.LOGIN, take, ()),
    ApiRoute("GET", "/v1/snapshots/{id}/{n}", Needs.LOGIN, snapshot_file, ()),
    ApiRoute("DELETE", "/v1/snapshots/{id}", Needs.LOGIN, drop, ()),
)
