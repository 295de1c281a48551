"""Snapshots: the present messages of an ordinary queue, as slot files that are kept for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.core.resource import Resource
from broker.manage.answers import json_answer, no_content
from broker.manage.api_route import ApiRoute
from broker.manage.call import Call, Needs
from broker.manage.refusal import HttpRefused, not_found
from broker.manage.request_target import integer
from broker.manage.v1.file_answer import file_answer
from broker.taps.slot_snapshots import is_private

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.core.vhost import Vhost
    from broker.manage.v1.file_reads import FileReads
    from broker.taps.slot_snapshots import Snapshot
    from broker.taps.taps import Taps

__all__ = ["snapshot_routes"]

SNAPSHOTS_MAX: Final = 64  # at a time: each is a copy of a queue on disk


def snapshot_routes(taps: Taps, vhosts: Mapping[str, Vhost], reads: FileReads) -> list[ApiRoute]:
    """Return the routes."""
    answers = SnapshotAnswers(taps, vhosts, reads)
    return [
        ApiRoute("POST", "/v1/snapshots", Needs.LOGIN, answers.take, ()),
        ApiRoute("GET", "/v1/snapshots/{id}/{n}", Needs.LOGIN, answers.file, ()),
        ApiRoute("DELETE", "/v1/snapshots/{id}", Needs.LOGIN, answers.drop, ()),
    ]


@dataclass(frozen=True, slots=True)
class SnapshotAnswers:
    """Takes snapshots and sends their files. Invariant: only users who may read the queue may read its snapshot."""

    taps: Taps
    vhosts: Mapping[str, Vhost]
    reads: FileReads

    async def take(self, call: Call) -> Response:
        """Take a snapshot and list its files."""
        fields = await call.fields(("vhost", "queue"))
        vhost, queue = fields.text("vhost", "/"), fields.text("queue")
        _check(call, vhost, queue)
        held = self.vhosts.get(vhost)
        found = None if held is None else held.queues.get(queue)
        if found is None:
            raise not_found(f"no queue '{queue}' in vhost '{vhost}'")
        _check(call, vhost, queue, private=is_private(found))
        if len(self.taps.snapshots) + self.taps.snapshots.under_way >= SNAPSHOTS_MAX:
            raise HttpRefused(503, f"there are {SNAPSHOTS_MAX} snapshots already: delete some, or try again later")
        return json_answer(await self.taps.snapshots.take(vhost, queue, call.user.name), 201)

    async def file(self, call: Call) -> Response:
        """Send one file of a snapshot, or a part of it."""
        snapshot, n = self._find(call), integer("n", call.words["n"])
        crc = next((file.crc for file in snapshot.files if file.n == n), None)
        answer = None
        if crc is not None:
            path = self.taps.snapshots.path(snapshot.id, n)
            answer = await file_answer(self.reads, path, call.request.headers, crc)
        if answer is None:
            raise not_found(f"no file {n} of snapshot {snapshot.id}")
        return answer

    async def drop(self, call: Call) -> Response:
        """Remove a snapshot."""
        await self.taps.snapshots.drop(self._find(call).id)
        return no_content()

    def _find(self, call: Call) -> Snapshot:
        snapshot = self.taps.snapshots.get(call.words["id"])
        if snapshot is None:
            raise not_found(f"no snapshot {call.words['id'][:64]}")
        _check(call, snapshot.vhost, snapshot.queue, private=snapshot.private)
        return snapshot


def _check(call: Call, vhost: str, queue: str, *, private: bool = False) -> None:
    """Let the caller read a queue. One that no other connection can read over AMQP either takes a tag as well.

    Raises: ChannelError (403), HttpRefused.
    """
    resource = Resource("queue", vhost, queue)
    call.broker.permissions.check(call.user, resource, "read")
    if private and not call.may(Needs.MONITORING):
        raise HttpRefused(403, f"access to {resource} refused for user '{call.user.name}': it is not for clients")
