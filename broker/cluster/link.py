"""The link to PostgreSQL: connections that are reopened when they break, and the record of failing calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from broker.cluster.connections import Backend, Connections, Identity, Lane, newer_primary
from broker.cluster.errors import ClusterError, DatabaseFails, DatabaseRefused, StatementRefused, Unreachable
from broker.cluster.server_address import ServerAddress
from broker.event_log import get_logger
from broker.tasks import Tasks

_log = get_logger()
_T = TypeVar("_T")

PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
CONNECT_MIN_S: Final = 2.0
LOOK_INTERVAL_S: Final = 1.0  # between two checks whether another server accepts writes, too
FRESH_S: Final = 3.0  # a failing function is called again within a second, as long as it is needed
RECONCILED: Final[tuple[Lane, ...]] = ("call", "lease")  # lanes that wait for the reconciliation of leased rows


class Link:
    """The connections of this node, while there are any. After they were lost, `recover` is called with the new
    connections, the identity of the former server, and the old server processes, whose statements may still be running.
    `recover` calls `check` once the database is known to have the same history, or the epoch has ended. When it
    returns, all statements continue.
    """

    def __init__(
        self,
        target: ServerAddress,
        recover: Callable[[Connections, Identity, list[Backend]], Awaitable[None]],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.target = target
        self._pause_max_s = PAUSE_MAX_S
        self.reason = "not connected yet"
        self._recover = recover
        self._connections: Connections | None = None
        self._is_checked = False
        self._is_reconciled = False
        self._is_closed = False
        self._waiting: list[asyncio.Future[None]] = []
        self._running = Tasks(failed)  # statements
        self._began_s: dict[int, float] = {}  # when each running statement began, by its number
        self._statements = 0  # the number of the newest statement
        self._broken: Connections | None = None  # connections to replace
        self._repair = Tasks(failed, self._start_repair)
        self._look_interval_s = LOOK_INTERVAL_S
        self._look = Tasks(failed)

    def adapt(self, lease_s: float) -> None:
        """Adapt the pauses, intervals and timeouts to a lease of this length."""
        self._pause_max_s = min(lease_s / 4, PAUSE_MAX_S)
        self._look_interval_s = max(lease_s, LOOK_INTERVAL_S)
        self.target = self.target._replace(connect_timeout_s=max(lease_s, CONNECT_MIN_S))

    # ---- state

    @property
    def is_up(self) -> bool:
        """Whether there are connections that work, as far as is known."""
        return self._connections is not None

    @property
    def shown(self) -> str:
        """The connected server, or all servers of the URL, without the password."""
        return (self.target if self._connections is None else self._connections.target).shown

    @property
    def pids(self) -> list[int]:
        return [] if self._connections is None else [backend.pid for backend in self._connections.backends]

    def ready(self, *, early: bool) -> Connections | None:
        """Return the connections if statements may be sent; `early` ones may be sent before leases are reconciled."""
        return self._connections if (self._is_checked if early else self._is_reconciled) else None

    async def change(self, timeout_s: float | None = None) -> None:
        """Wait until connections are opened or lost, or `wake` is called, but no longer than `timeout_s`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await asyncio.wait([waiter], timeout=timeout_s)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def check(self) -> None:
        """Let heartbeats, reads and repeated calls continue: the history is the same, or the epoch has ended."""
        self._is_checked = True
        self.wake()

    # ---- life

    async def open(self, patience_s: float) -> Connections:
        """Connect, retrying for `patience_s` seconds. Raises: Unreachable; DatabaseRefused."""
        loop = asyncio.get_running_loop()
        until_s, pause_s = loop.time() + patience_s, PAUSE_S
        while True:
            try:
                connections = await Connections.open(self.target)
            except Unreachable as error:
                if loop.time() + pause_s > until_s:
                    raise
                self._note(error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, self._pause_max_s)
            else:
                break
        self._use(connections)
        self._is_checked = self._is_reconciled = True
        if len(self.target.servers) > 1:
            self._look.start(self._look_at_others())
        return connections

    async def close(self) -> None:
        """Close the connections, and open no others. Running statements fail with Unreachable."""
        self._is_closed = True
        await self._look.stop()
        await self._repair.stop()
        connections, self._connections = self._connections, None
        self._is_checked = self._is_reconciled = False
        self.reason = "closed"
        self.wake()
        if connections is not None:
            connections.watch()
            await connections.close()
        await self._running.ended()

    def abort(self) -> None:
        """Close the connections at once, and open no others, because the process ends."""
        self._is_closed = True
        if self._connections is not None:
            self._connections.watch()
            self.drop("closed")

    def drop(self, reason: str) -> None:
        """Close the connections at once and open them again."""
        if self._connections is not None:
            self._connections.abort(reason)

    # ---- statements

    async def fetch(self, lane: Lane, statement: str, *arguments: Any) -> list[Any]:
        """Run a statement on a connection and return its rows. It runs to its end even if the caller is cancelled.

        Raises: Fenced; Conflict; Unreachable, at once if there is no connection; DatabaseRefused.
        """
        while (connections := self.ready(early=lane not in RECONCILED)) is None:
            if self._connections is None:
                raise Unreachable(self.reason)
            await self.change()
        return await self.finish(connections.fetch(lane, statement, *arguments))

    async def finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run work to its end even if the caller is cancelled."""
        return await self._running.finish(self._timed(work))

    async def _timed(self, work: Coroutine[Any, Any, _T]) -> _T:
        self._statements += 1
        number = self._statements
        self._began_s[number] = asyncio.get_running_loop().time()
        try:
            return await work
        finally:
            del self._began_s[number]

    @property
    def unanswered_s(self) -> float:
        """How long the oldest running statement has waited for its answer, or 0 if none is running."""
        oldest_s = next(iter(self._began_s.values()), None)
        return 0.0 if oldest_s is None else asyncio.get_running_loop().time() - oldest_s

    # ---- repair

    def _use(self, connections: Connections) -> None:
        self._connections = connections
        self.target = self.target._replace(first=connections.target.url)  # a former primary may be up again
        connections.watch(self._lost)

    def _lost(self) -> None:
        old, self._connections = self._connections, None
        self._is_checked = self._is_reconciled = False
        assert old is not None
        self.reason = old.reason
        _log.warning("database.lost", database=self.target.shown, reason=self.reason)
        self.wake()
        self._broken = old
        self._start_repair()

    def _start_repair(self) -> None:
        """Start to replace lost connections, unless a repair is running; called again when it ends."""
        if self._broken is not None and not self._is_closed and not self._repair.busy:
            self._repair.start(self._restore(self._broken))

    async def _restore(self, old: Connections) -> None:
        """Connect and recover, repeatedly until it succeeds."""
        pause_s, backends = PAUSE_S, old.backends
        while True:
            try:
                connections = await Connections.open(self.target)
                self._use(connections)
                before, backends = backends, backends + connections.backends
                await self._recover(connections, old.identity, before)
                if not connections.is_broken:
                    break
            except ClusterError as error:
                self._note(error)
                self.drop(str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._pause_max_s)
        self._broken = None
        _log.info("database.restored", database=self.target.shown)
        self._is_checked = self._is_reconciled = True
        self.wake()

    async def _look_at_others(self) -> None:
        """Switch to a server that was promoted while the one in use still accepts writes."""
        while True:
            await asyncio.sleep(self._look_interval_s)
            used = self._connections
            newer = None if used is None else await newer_primary(used, self.target.servers)
            if used is not None and newer is not None and used is self._connections:
                _log.error("database.split", database=used.target.shown, newer=newer.shown)
                self.target = self.target._replace(first=newer.url)
                used.abort("another server accepts writes too, and its timeline is newer")

    def _note(self, error: ClusterError) -> None:
        if str(error) != self.reason:
            level = _log.error if isinstance(error, DatabaseRefused) else _log.warning
            level("database.unreachable", database=self.target.shown, reason=str(error))
        self.reason = str(error)


async def patiently(work: Callable[[], Awaitable[_T]]) -> _T:
    """Return the result of `work`, which must be idempotent; repeat it while PostgreSQL is unreachable or fails.

    Raises: StatementRefused, because PostgreSQL would refuse each attempt; any ClusterError that is not Unreachable.
    """
    pause_s = PAUSE_S
    while True:
        try:
            return await work()
        except StatementRefused:
            raise
        except Unreachable:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


class _Failure(NamedTuple):
    reason: str
    at_s: float
    is_certain: bool


class FailingCalls:
    """Log a function's failing calls when the reason changes or after a pause; ``count`` counts failed calls."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` never goes back."""
        self._clock = clock
        self._failures: dict[str, _Failure] = {}
        self.count = 0

    def failed(self, function: str, error: DatabaseFails | StatementRefused) -> None:
        """Record a failed call of a function."""
        self.count += 1
        failure = _Failure(str(error), self._clock(), isinstance(error, StatementRefused))
        known = self._failures.get(function)
        if known is None or known != failure._replace(at_s=known.at_s) or failure.at_s - known.at_s > FRESH_S:
            event = "call.refused" if failure.is_certain else "database.failing"
            _log.error(event, function=function, reason=failure.reason)
        self._failures[function] = failure

    def succeeded(self, function: str) -> None:
        """Record a successful call of a function. Cost: one check whether any function is failing."""
        if self._failures:
            self._failures.pop(function, None)

    @property
    def reason(self) -> str:
        """The newest error among functions whose last call failed within FRESH_S and was not refused; empty if none."""
        now_s = self._clock()
        fresh = [one for one in self._failures.values() if now_s - one.at_s <= FRESH_S and not one.is_certain]
        return max(fresh, key=lambda one: one.at_s).reason if fresh else ""
