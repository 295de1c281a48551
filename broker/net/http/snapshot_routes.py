"""Snapshots: the present messages of an ordinary queue, as slot files that are kept for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.core.resource import Resource
from broker.net.http.answer import Answer, json_answer
from broker.net.http.file_answer import file_answer
from broker.net.http.refusal import HttpRefused, not_found
from broker.net.http.request import integer
from broker.net.http.routes import Call, HttpRoute

if TYPE_CHECKING:
    from broker.core.vhost import Vhost
    from broker.net.http.file_reads import FileReads
    from broker.net.http.rights import HttpRights
    from broker.taps.slot_snapshots import Snapshot
    from broker.taps.taps import Taps

__all__ = ["snapshot_routes"]

SNAPSHOTS_MAX: Final = 64  # at a time: each is a copy of a queue on disk


def snapshot_routes(taps: Taps, vhosts: Mapping[str, Vhost], rights: HttpRights, reads: FileReads) -> list[HttpRoute]:
    """Return the routes."""
    answers = SnapshotAnswers(taps, vhosts, rights, reads)
    return [
        HttpRoute("POST", "/v1/snapshots", answers.take),
        HttpRoute("GET", "/v1/snapshots/{id}/{n}", answers.file),
        HttpRoute("DELETE", "/v1/snapshots/{id}", answers.drop),
    ]


@dataclass(frozen=True, slots=True)
class SnapshotAnswers:
    """Takes snapshots and sends their files. Invariant: only users who may read the queue may read its snapshot."""

    taps: Taps
    vhosts: Mapping[str, Vhost]
    rights: HttpRights
    reads: FileReads

    async def take(self, call: Call) -> Answer:
        """Take a snapshot and list its files."""
        fields = call.request.fields(("vhost", "queue"))
        vhost, queue = fields.text("vhost", "/"), fields.text("queue")
        self.rights.check_read(call.user, vhost, queue)
        held = self.vhosts.get(vhost)
        found = None if held is None else held.queues.get(queue)
        if found is None:
            raise not_found(f"no queue '{queue}' in vhost '{vhost}'")
        private = found.exclusive_owner is not None or (found.kept and not found.is_tap)
        if private:  # over AMQP no other connection can read it either
            self.rights.check_looks_after(call.user, str(Resource("queue", vhost, queue)))
        if len(self.taps.snapshots) + self.taps.snapshots.under_way >= SNAPSHOTS_MAX:
            raise HttpRefused(503, f"there are {SNAPSHOTS_MAX} snapshots already: delete some, or try again later")
        return json_answer(await self.taps.snapshots.take(vhost, queue), 201)

    async def file(self, call: Call) -> Answer:
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

    async def drop(self, call: Call) -> Answer:
        """Remove a snapshot."""
        await self.taps.snapshots.drop(self._find(call).id)
        return Answer(204)

    def _find(self, call: Call) -> Snapshot:
        snapshot = self.taps.snapshots.get(call.words["id"])
        if snapshot is None:
            raise not_found(f"no snapshot {call.words['id'][:64]}")
        self.rights.check_read(call.user, snapshot.vhost, snapshot.queue)
        return snapshot
