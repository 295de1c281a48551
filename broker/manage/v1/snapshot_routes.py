"""Snapshots: the present messages of an ordinary queue, as slot files that are kept for a while.

Invariant: only users who may read the queue may read its snapshot.
"""

from __future__ import annotations

from typing import Final

from broker.core.names import Resource
from broker.manage.answers import Response, json_answer, no_content
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import HttpRefused, not_found
from broker.manage.request_target import integer
from broker.manage.v1.slot_routes import file_answer
from broker.taps.slot_snapshots import Snapshot, is_private

SNAPSHOTS_MAX: Final = 64  # at a time: each is a copy of a queue on disk


async def take(call: Call) -> Response:
    """Take a snapshot and list its files."""
    fields = await call.fields(("vhost", "queue"))
    vhost, queue = fields.text("vhost", "/"), fields.text("queue")
    _check(call, vhost, queue)
    held = call.broker.administration.vhosts.get(vhost)
    found = None if held is None else held.queues.get(queue)
    if found is None:
        raise not_found(f"no queue '{queue}' in vhost '{vhost}'")
    _check(call, vhost, queue, private=is_private(found))
    if len(call.broker.taps.snapshots) + call.broker.taps.snapshots.under_way >= SNAPSHOTS_MAX:
        raise HttpRefused(503, f"there are {SNAPSHOTS_MAX} snapshots already: delete some, or try again later")
    return json_answer(await call.broker.taps.snapshots.take(vhost, queue, call.user.name), 201)


async def file(call: Call) -> Response:
    """Send one file of a snapshot, or a part of it."""
    snapshot, n = _find(call), integer("n", call.words["n"])
    crc = next((file.crc for file in snapshot.files if file.n == n), None)
    answer = None
    if crc is not None:
        path = call.broker.taps.snapshots.path(snapshot.id, n)
        answer = await file_answer(call.broker.reads, path, call.request.headers, crc)
    if answer is None:
        raise not_found(f"no file {n} of snapshot {snapshot.id}")
    return answer


async def drop(call: Call) -> Response:
    """Remove a snapshot."""
    await call.broker.taps.snapshots.drop(_find(call).id)
    return no_content()


def _find(call: Call) -> Snapshot:
    snapshot = call.broker.taps.snapshots.get(call.words["id"])
    if snapshot is None:
        raise not_found(f"no snapshot {call.words['id'][:64]}")
    _check(call, snapshot.vhost, snapshot.queue, private=snapshot.private)
    return snapshot


def _check(call: Call, vhost: str, queue: str, *, private: bool = False) -> None:
    """Let the caller read a queue. A queue that no other connection can read over AMQP also needs a tag.

    Raises: ChannelError (403), HttpRefused.
    """
    resource = Resource("queue", vhost, queue)
    call.broker.permissions.check(call.user, resource, "read")
    if private and not call.may(Needs.MONITORING):
        raise HttpRefused(403, f"access to {resource} refused for user '{call.user.name}': it is not for clients")


ROUTES: Final = (
    ApiRoute("POST", "/v1/snapshots", Needs.LOGIN, take, ()),
    ApiRoute("GET", "/v1/snapshots/{id}/{n}", Needs.LOGIN, file, ()),
    ApiRoute("DELETE", "/v1/snapshots/{id}", Needs.LOGIN, drop, ()),
)
