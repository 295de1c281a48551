"""The shared database as one node sees it: calls of the schema's functions. `commit` and the methods that use `acting`
act as the current epoch, and raise Fenced when that has ended. `commit` repeats a call until its result is known; the
only Unreachable that it raises is StatementRefused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bitarray import bitarray

from broker.cluster.connections import Backend, Connections, Identity, Lane
from broker.cluster.database_rows import (
    ClusterMember,
    CommittedCall,
    Joined,
    LeasedRow,
    Pulse,
    RefusedShare,
    SharedCall,
    pack_rows,
)
from broker.cluster.errors import ClusterError, DatabaseFails, Fenced, StatementRefused, Unreachable, WentBack
from broker.cluster.hint import LOOK, Hint
from broker.cluster.link import FailingCalls, Link
from broker.cluster.server_address import ServerAddress
from broker.event_log import get_logger

_log = get_logger()

RETRY_PAUSE_S: Final = 0.05
RETRY_PAUSE_MAX_S: Final = 1.0
ANSWER_S: Final = 5.0  # a call without an answer for this long may be waiting for a lock or a standby
# No message depends on these calls, and their callers log errors.
HOUSEKEEPING: Final = frozenset({"advance_clock", "forget", "turn_ring"})
# NOTIFY blocks the NOTIFY of other nodes until its commit is done, so that commit does not wait for the disk.
_NOTIFY: Final = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, payload) FROM unnest($2::text[]) AS payload
"""
_END_SESSIONS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = $1 AND datname = current_database() AND pid <> ALL ($2::int[])
"""
_UNSAFE: Final = """
SELECT name, setting FROM pg_settings WHERE name IN ('synchronous_commit', 'fsync', 'full_page_writes') AND (
    setting = 'off' OR setting = 'local' AND current_setting('synchronous_standby_names') <> ''
) ORDER BY name
"""
UNSAFE: Final = "confirmed messages may be lost when the server, its machine or its disk fails"
MISSING: Final = -1  # no call has this sequence
NONE_KEPT: Final = (0, None)
ENDED: Final = "the epoch of this node has ended"
COUNTED_OUT: Final = "the other nodes counted this one out"
WENT_BACK: Final = "the database went back in time"


class Database:
    """The database, as one node sees it.

    `handle_hint` is called with each hint of another node, and with LOOK when hints may have been lost; `fenced` with
    an ended epoch and the reason; `reconcile`, after a lost connection, with all rows leased to this node; `failed`
    with a defect, which ends the broker. `topology` returns the newest version of the topology that this node reports.
    """

    def __init__(
        self, url: str, node: str, *, schema: str = "slotmq", handle_hint: Callable[[Hint], None] = lambda _: None
    ) -> None:
        self.node = node
        self.schema = schema
        self.epoch = 0
        self.generation = 0
        self.handle_hint = handle_hint
        self.fenced: Callable[[int, str], None] = lambda _epoch, _reason: None
        self.failed: Callable[[BaseException], None] = _raise_in_loop
        self.topology: Callable[[], int] = lambda: 0
        self.reconcile: Callable[[list[LeasedRow]], None] = lambda _: None
        self._statements: dict[tuple[str, int], str] = {}
        self._sequence = 0
        self._newest = 0  # the sequence of the newest answered call
        self._newest_synchronous: int | None = None  # that of the newest answered call that waited for the disk
        self._forgotten = 0  # the results of calls with lower sequences are deleted
        self._kept: tuple[int, int | None] = NONE_KEPT  # the calls whose results remain: newest, newest synchronous
        self._newest_number = 0  # the highest number known to be committed, of calls and epochs of all nodes
        self._sent: int | None = None  # the sequence of the call whose result is unknown
        self._beats = 0  # the heartbeats of this epoch, as counted by the newest answer on these connections
        self._unsafe = ""  # the unsafe settings that were logged last
        self._is_older = False  # committed data was found missing, and the connections have not been renewed since
        self.failing = FailingCalls(time.monotonic)
        self.link = Link(ServerAddress(url, node, schema), self._recover, self._fail)

    def attach(
        self,
        *,
        fenced: Callable[[int, str], None],
        reconcile: Callable[[list[LeasedRow]], None],
        topology: Callable[[], int],
        failed: Callable[[BaseException], None] | None,
    ) -> None:
        """Set the functions of the node; without `failed`, the loop's exception handler is called with a defect."""
        self.fenced, self.reconcile, self.topology = fenced, reconcile, topology
        if failed is not None:
            self.failed = failed

    # ---- life

    @property
    def trouble(self) -> str:
        """The reason why PostgreSQL cannot serve this node now, in one line; empty if it can."""
        if not self.link.is_up:
            return "the database of the cluster cannot be reached"
        if reason := self.failing.reason:
            return f"the database of the cluster fails: {reason}"
        if self.link.unanswered_s > ANSWER_S:
            return "the database of the cluster does not answer"
        return ""

    async def open(self, patience_s: float = 30.0) -> None:
        """Connect, trying for `patience_s` seconds, and create or upgrade the schema.

        Raises: Unreachable; DatabaseRefused.
        """
        connections = await self.link.open(patience_s)
        await connections.install()
        await self._check_settings(connections)
        await self._listen(connections)

    async def close(self) -> None:
        """Stop acting, and close all connections."""
        self.epoch = 0
        await self.link.close()

    def abort(self) -> None:
        """Close all connections at once, because the process ends; else the driver would cancel running statements."""
        self.epoch = 0
        self.link.abort()

    def begin_epoch(self, epoch: int, generation: int) -> None:
        assert epoch and self._sent is None
        self.epoch, self.generation = epoch, generation
        self._newest_number = max(self._newest_number, epoch)
        self._sequence = self._newest = 0
        self._newest_synchronous = None
        self._forgotten = self._beats = 0
        self._kept = NONE_KEPT

    def end_epoch(self) -> None:
        """Stop acting: a running `commit` and all later calls as the epoch raise Fenced.

        The connections are opened again: on new ones this node detects whether the database was restored to an earlier
        state, and ensures that no number is used twice.
        """
        self.epoch = 0
        if self.link.ready(early=True) is not None:
            self.link.drop(ENDED)
        self.link.wake()

    # ---- membership

    async def join(self, url: str, version: int) -> Joined:
        """Join as a new epoch. `version` is that of the functions that this broker calls.

        Raises: Conflict, if a member has the node's name; Unreachable; DatabaseRefused.
        """
        rows = await self.function("upkeep", "join", self.node, url, version)
        return Joined(*rows[0].values())

    async def beat(self, url: str, applied_version: int, reports: dict[str, Any]) -> Pulse:
        """Send a heartbeat, and return the time, the generation and the members. Nodes tell each other the newest
        number that they know to be committed. So each detects a database that was restored to an earlier state under
        open connections, even if the node that committed the number is gone. Raises: WentBack if the database lacks
        that number, a version of the topology, or a heartbeat of this node; Fenced; Unreachable.
        """
        epoch, known = self.epoch, (self._newest_number, self.topology(), self._beats + 1)
        rows = await self.acting("beat", "beat", url, applied_version, reports | {"newest_number": self._newest_number})
        first = rows[0]
        members = [ClusterMember.from_row(row) for row in rows]
        beats = next(member.beats for member in members if member.epoch == epoch)
        if epoch == self.epoch:
            if any(had < own for had, own in zip((first["newest"], first["topology"], beats), known, strict=True)):
                self._note_older(epoch)
                raise WentBack(WENT_BACK)
            self._beats = max(self._beats, beats)
        reported = [min(member.reports.get("newest_number", 0), first["newest"]) for member in members]
        self._newest_number = max(self._newest_number, *reported)
        return Pulse(first["now_ms"], first["generation"], members)

    async def members(self) -> list[ClusterMember]:
        """Return the members; a broker that has not joined may call this."""
        return [ClusterMember.from_row(row) for row in await self.function("beat", "members")]

    async def count_out(self, dead: ClusterMember) -> bool:
        """Declare a node dead. Return False if it has sent another heartbeat, or is not a member any more."""
        if self.epoch:
            rows = await self.acting("upkeep", "count_out", dead.node, dead.epoch, dead.beats)
        else:
            rows = await self.function("upkeep", "count_out", None, None, dead.node, dead.epoch, dead.beats)
        return bool(rows[0][0])

    async def end_sessions(self, node: str) -> None:
        """Terminate all database sessions of a node, but never this node's own."""
        name = self.link.target._replace(node=node).application_name
        await self.link.fetch("beat", _END_SESSIONS, name, self.link.pids)

    async def leave(self, epoch: int) -> None:
        """Free everything leased to this node as `epoch`, and leave; do nothing if that epoch has already ended."""
        await self.function("upkeep", "leave", self.node, epoch)

    async def forget(self) -> None:
        """Delete the results of old calls."""
        newest, synchronous, epoch = self._newest, self._newest_synchronous, self.epoch
        if (newest, synchronous) == self._kept:
            return
        await self.acting("upkeep", "forget", newest, synchronous, self._forgotten)
        if epoch == self.epoch:
            self._forgotten = newest if synchronous is None else min(newest, synchronous)
            self._kept = newest, synchronous

    async def advance_clock(self, now_ms: int) -> None:
        """Advance the cluster's time to `now_ms`, because the server's clock is behind."""
        behind_ms = (await self.acting("upkeep", "advance_clock", now_ms))[0][0]
        if behind_ms:
            _log.warning("database.clock_behind", database=self.link.shown, by_s=behind_ms / 1000)

    async def turn_ring(self) -> str | None:
        """Begin the next chunk table if the current one is full, else empty old ones. Return what was done, or None."""
        done: str | None = (await self.acting("upkeep", "turn_ring"))[0][0]
        return done

    # ---- messages

    async def commit(self, call: SharedCall, *, synchronous: bool) -> CommittedCall:
        """Commit a call once, and return its result. Wait while the database is unreachable. One call runs at a time,
        and continues if the caller is cancelled.
        Raises: CommitRefused if full queues refuse part of an atomic call; StatementRefused if no retry helps; Fenced.
        """
        if not self.epoch:
            raise Fenced("this node has not joined")
        self._sequence += 1
        assert self._sent is None
        return await self.link.finish(self._commit(self.epoch, self._sequence, synchronous, call.arguments()))

    async def lease(
        self, levels: Sequence[int], room: Sequence[int], after: Sequence[int], able: Sequence[int] = ()
    ) -> list[LeasedRow]:
        """Lease up to `room` messages of each level, from the lowest free rows whose number is at least `after`.

        `able` is the total room of this node's consumers, for levels with limits.
        """
        rows = await self.acting("lease", "lease", levels, room, after, False, able)
        return [LeasedRow(*row.values()) for row in rows]

    async def give_back(
        self,
        levels: Sequence[int],
        numbers: Sequence[int],
        bits: Sequence[bitarray],
        seen: Sequence[bitarray | None],
        counts: Sequence[Mapping[str, Sequence[int]] | None],
        *due_ms: Sequence[int],
    ) -> None:
        """Free messages of rows leased to this node. `seen` may have been delivered; `counts` are counts of returns.

        Shapes: `due_ms` is absent, or one sequence of the times at which the keeper must check the rows again.
        """
        await self.acting("lease", "give_back", levels, numbers, pack_rows(bits), pack_rows(seen), counts, *due_ms)

    async def levels_in_use(self) -> list[int]:
        """Return the levels of quorum queues, except the default ones, that have messages."""
        return [row[0] for row in await self.function("read", "levels_in_use")]

    async def purge(self, levels: Sequence[int]) -> dict[int, int]:
        """Delete the free messages of levels, and return how many each level had."""
        return {row[0]: row[1] for row in await self.acting("lease", "purge", levels)}

    async def free_messages(self, levels: Sequence[int], rows_max: int) -> dict[int, int]:
        """Return the number of free messages in the first `rows_max` rows of each level."""
        return {row[0]: row[1] for row in await self.function("read", "free_messages", levels, rows_max)}

    async def chunks(self, ring: int, numbers: Sequence[int]) -> list[tuple[int, bytes]]:
        """Return the numbers and parts of those chunks that are in the chunk table `ring`, in order."""
        statement = f"SELECT number, bytes FROM chunk_{ring:d} WHERE number = ANY ($1) ORDER BY number, part"  # noqa: S608
        return [(row[0], row[1]) for row in await self._fetch("read", "chunks", statement, numbers)]

    async def locate(self, levels: Sequence[int], numbers: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return level, number and chunk table of rows whose chunks may have moved."""
        return [tuple(row.values()) for row in await self.function("read", "locate", levels, numbers)]

    # ---- hints

    async def notify(self, hint: Hint) -> None:
        """Send a hint to the other nodes. A hint that cannot be sent is only logged."""
        try:
            await self._fetch("listen", "notify", _NOTIFY, self.schema, hint.payloads())
        except ClusterError as error:
            _log.debug("hint.lost", kind=hint.kind, reason=str(error))

    def _handle_payload(self, payload: str) -> None:
        if hint := Hint.from_payload(payload):
            self.handle_hint(hint)

    # ---- any function

    async def function(self, lane: Lane, name: str, *arguments: Any) -> list[Any]:
        """Call a function of the schema and return its rows. Raises: Fenced; Conflict; Unreachable; DatabaseRefused."""
        return await self._fetch(lane, name, self._statement(name, len(arguments)), *arguments)

    async def _fetch(self, lane: Lane, name: str, statement: str, *arguments: Any) -> list[Any]:
        """Run a statement, and record whether PostgreSQL could execute it."""
        try:
            rows = await self.link.fetch(lane, statement, *arguments)
        except (DatabaseFails, StatementRefused) as error:
            if name not in HOUSEKEEPING:
                self.failing.failed(name, error)
            raise
        self.failing.succeeded(name)
        return rows

    def _statement(self, name: str, places: int) -> str:
        """Return the statement that calls a function; PostgreSQL prepares each text once per connection."""
        statement = self._statements.get((name, places))
        if statement is None:
            arguments = ", ".join(f"${place}" for place in range(1, places + 1))
            statement = f"SELECT * FROM {name}({arguments})"  # noqa: S608 names of our own
            self._statements[name, places] = statement
        return statement

    async def acting(self, lane: Lane, name: str, *arguments: Any) -> list[Any]:
        """Call a function whose first arguments are this node and its epoch, and return its rows.

        Raises: Fenced; Conflict; Unreachable; DatabaseRefused.
        """
        epoch = self.epoch
        if not epoch:
            raise Fenced("this node has not joined")
        try:
            return await self.function(lane, name, self.node, epoch, *arguments)
        except WentBack:
            self._note_older(epoch)
            raise
        except Fenced:
            self._note_fenced(epoch)
            raise

    def _fail(self, error: BaseException) -> None:
        self.failed(error)

    def _note_fenced(self, epoch: int, reason: str = COUNTED_OUT) -> None:
        if epoch == self.epoch:
            self.fenced(epoch, reason)

    def _note_older(self, epoch: int) -> None:
        """End an epoch because the database lacks committed data; new connections make this known to all nodes."""
        self._is_older = True
        self._note_fenced(epoch, WENT_BACK)

    # ---- calls

    async def _commit(self, epoch: int, sequence: int, synchronous: bool, arguments: list[Any]) -> CommittedCall:
        try:
            return await self._committed(epoch, sequence, synchronous, arguments)
        except Fenced:
            self._note_fenced(epoch)
            raise
        except StatementRefused as error:
            self.failing.failed("commit", error)
            raise
        finally:
            self._sent = None
            self.link.wake()

    async def _committed(self, epoch: int, sequence: int, synchronous: bool, arguments: list[Any]) -> CommittedCall:
        """Send a call until its result is known.

        Also repeat it after a warning, which may say that the call was committed but not confirmed by a standby. The
        repeated call finds the stored result and writes again, so that its answer waits for the standby, too.
        """
        statement = self._statement("commit", 4 + len(arguments))
        pause_s, reason, before = RETRY_PAUSE_S, "", self._newest_number
        while True:
            while (connections := self.link.ready(early=self._sent is not None)) is None and epoch == self.epoch:
                await self.link.change()
            if epoch != self.epoch or connections is None:
                raise Fenced(ENDED)
            self._sent = sequence
            try:
                rows = await connections.fetch("call", statement, self.node, epoch, sequence, synchronous, *arguments)
                warning = connections.warning("call")
            except StatementRefused:
                raise
            except Unreachable as error:
                rows, warning = [], str(error)
                if isinstance(error, DatabaseFails):
                    self.failing.failed("commit", error)
            if not warning:
                break
            if warning != reason:
                _log.warning("call.repeated", database=self.link.shown, sequence=sequence, reason=warning)
            reason = warning
            if not connections.is_broken:
                await self.link.change(pause_s)
                pause_s = min(pause_s * 2, RETRY_PAUSE_MAX_S)
        self.failing.succeeded("commit")
        number, ring, refused = rows[0].values()
        if number <= before:  # the number was assigned before, in a history that is lost
            self._note_older(epoch)
            raise WentBack(WENT_BACK)
        self._newest = sequence
        if synchronous:
            self._newest_synchronous = sequence
            self._newest_number = max(self._newest_number, number)
        return CommittedCall(number, ring, RefusedShare.all_from(refused), repeated=bool(reason))

    # ---- after a break

    async def _recover(self, connections: Connections, before: Identity, backends: list[Backend]) -> None:
        """Find out which state the database has, before anything continues."""
        self._forgotten = self._beats = 0  # a crash may have restored deleted results, and lost heartbeats
        self._kept = NONE_KEPT
        await connections.end_backends(backends)
        has_changed = connections.identity != before
        if has_changed:
            _log.warning("database.changed", database=self.link.shown, before=before, now=connections.identity)
        epoch, is_older = self.epoch, self._is_older
        if epoch and not is_older:
            version = (await connections.fetch("beat", self._statement("topology_version", 0)))[0][0]
            is_older = version < self.topology()
        newest = MISSING if is_older else self._newest_synchronous if epoch else None
        arguments = self.node, epoch, newest, self._newest_number, self.generation, has_changed or is_older
        rows = await connections.fetch("beat", self._statement("come_back", 6), *arguments)
        self._is_older = False
        if not rows[0]["has_all"]:
            _log.error("database.went_back", database=self.link.shown, epoch=epoch, generation=rows[0]["generation"])
        if epoch and not (rows[0]["has_all"] and rows[0]["is_member"]):
            self._note_fenced(epoch, COUNTED_OUT if rows[0]["generation"] == self.generation else WENT_BACK)
        await self._check_settings(connections)
        await self._listen(connections)
        self.link.check()
        while self._sent is not None and not connections.is_broken:
            await self.link.change()
        if self.epoch:
            await self._reconcile(connections, self.epoch)

    async def _reconcile(self, connections: Connections, epoch: int) -> None:
        """Report the rows leased to this node, while no call or lease is running."""
        try:
            rows = await connections.fetch("lease", self._statement("held", 2), self.node, epoch)
        except Fenced:
            self._note_fenced(epoch)
            return
        if epoch == self.epoch:
            self.reconcile([LeasedRow(*row.values()) for row in rows])

    async def _check_settings(self, connections: Connections) -> None:
        """Log settings of the server with which confirmed messages can be lost."""
        rows = await connections.fetch("read", _UNSAFE)
        found = " ".join(f"{row['name']}={row['setting']}" for row in rows)
        if found and found != self._unsafe:
            _log.warning("database.unsafe", database=self.link.shown, settings=found, reason=UNSAFE)
        self._unsafe = found

    async def _listen(self, connections: Connections) -> None:
        await connections.listen(self.schema, self._handle_payload)
        self.handle_hint(Hint(LOOK))


def _raise_in_loop(error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": "a node of a cluster failed", "exception": error})
