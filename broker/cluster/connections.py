"""The connections of a node to PostgreSQL, one for each kind of work. When one breaks, all are closed, so a node has
either all connections, to one server, or none.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, TypeVar

import asyncpg

from broker.cluster.database_rows import unpack_bits
from broker.cluster.errors import (
    POOLER,
    ClusterError,
    DatabaseFails,
    DatabaseRefused,
    StatementRefused,
    Unreachable,
    failure_of,
    refusal_of,
)
from broker.cluster.schema import SESSION_SETTINGS, SchemaRefused, install
from broker.cluster.server_address import ServerAddress, one_line

_T = TypeVar("_T")
Lane = Literal["call", "lease", "read", "listen", "beat", "upkeep"]
LANES: Final[tuple[Lane, ...]] = ("call", "lease", "read", "listen", "beat", "upkeep")

# A commit ("call") is never cancelled. "upkeep" declares nodes dead, waits for their calls, and frees what they held.
STATEMENT_TIMEOUT_MS: Final[dict[Lane, int]] = {
    "call": 0,
    "lease": 30_000,
    "read": 30_000,
    "listen": 30_000,
    "beat": 30_000,
    "upkeep": 300_000,
}
# Settings that a node relies on, which an administrator may have changed for the role or the database.
PROTECTED: Final = {
    "default_transaction_isolation": "read committed",  # each statement of a function sees what others committed
    "client_min_messages": "warning",  # a commit that no standby confirmed causes a warning
    "lock_timeout": "0",
    "idle_session_timeout": "0",  # a connection may be idle for hours
}
TCP_USER_TIMEOUT_MS: Final = 10_000
KEEPALIVE_IDLE_S: Final = 5
KEEPALIVE_INTERVAL_S: Final = 2
KEEPALIVE_COUNT: Final = 3
MINIMUM_VERSION: Final = 140_000  # the first one with bit_count
STATEMENTS_MAX: Final = 200  # prepared statements of one connection

_IDENTITY: Final = """
SELECT s.system_identifier, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS timeline,
       pg_postmaster_start_time() AS started, current_setting('server_version_num')::int AS version, a.pid,
       a.backend_start
FROM pg_control_system() AS s, pg_stat_activity AS a WHERE a.pid = pg_backend_pid()
"""
_SET: Final = "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS s (name, value)"
# A pooler may have given the process to another client in the meantime.
_END: Final = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a
JOIN unnest($1::int[], $2::timestamptz[]) AS b (pid, backend_start) USING (pid, backend_start)
WHERE a.application_name = current_setting('application_name')
"""


class Identity(NamedTuple):
    """The database of a server and its history. After a fail-over, or in a restored copy, the timeline differs."""

    system: int
    timeline: str


class Backend(NamedTuple):
    """A server process of PostgreSQL. The pid alone is not enough, because the system reuses it."""

    pid: int
    started: dt.datetime


class _Connection:
    """One connection, which runs one statement at a time."""

    def __init__(self, driver: Any, backend: Backend) -> None:
        self.driver = driver
        self.backend = backend
        self.free = asyncio.Lock()
        self.warning = ""

    def forget_warning(self) -> None:
        self.warning = ""

    def note_warning(self, _driver: Any, message: Any) -> None:
        """Record the warning of a statement, for example that a standby did not confirm a commit."""
        if message.severity == "WARNING":
            self.warning = one_line(message)


class Connections:
    """Open connections, one per lane, to one server. When one is lost, all are closed, the function given to `watch` is
    called, and the object can no longer be used.
    """

    def __init__(self, target: ServerAddress, identity: Identity, lanes: dict[Lane, _Connection]) -> None:
        self.target = target
        self.identity = identity
        self.is_broken = False
        self.reason = ""
        self._lost: Callable[[], None] = lambda: None
        self._lanes = lanes
        for lane in lanes.values():
            lane.driver.add_termination_listener(self._ended)
            lane.driver.add_log_listener(lane.note_warning)

    def watch(self, lost: Callable[[], None] = lambda: None) -> None:
        """Set the function that is called when the connections are lost."""
        self._lost = lost

    @property
    def backends(self) -> list[Backend]:
        """The server processes of the connections."""
        return [lane.backend for lane in self._lanes.values()]

    def abort(self, reason: str) -> None:
        """Close all connections at once. Running statements fail with Unreachable."""
        if self.is_broken:
            return
        self.reason = reason
        self.is_broken = True
        for lane in self._lanes.values():
            lane.driver.terminate()
        self._lost()

    def _ended(self, _driver: Any) -> None:
        self.abort("PostgreSQL closed the connection")

    async def close(self) -> None:
        self.is_broken, self.reason = True, "closed"
        for lane in self._lanes.values():
            try:
                await lane.driver.close(timeout=1)
            except Exception:  # noqa: BLE001 any error of a connection that is closing
                lane.driver.terminate()

    async def install(self) -> int:
        """Create or upgrade the schema, and return the version of its functions.

        Raises: Unreachable; DatabaseRefused.
        """
        try:
            return await install(self._lanes["call"].driver, self.target.schema)
        except SchemaRefused as error:
            raise DatabaseRefused(f"{self.target.shown}: {error}") from error
        except Exception as error:
            failure = self._failure(error)
            if isinstance(failure, DatabaseFails | StatementRefused):
                failure = DatabaseRefused(f"{self.target.shown}: {failure}")
            raise failure from error

    async def listen(self, channel: str, handle: Callable[[str], None]) -> None:
        """Call `handle` with the payload of each notification that another session sent. Raises: Unreachable."""
        own = self._lanes["listen"].backend.pid

        def forward(_driver: Any, pid: int, _channel: str, payload: str) -> None:
            if pid != own:
                handle(payload)

        try:
            await self._lanes["listen"].driver.add_listener(channel, forward)
        except Exception as error:
            raise self._failure(error) from error

    async def fetch(self, lane: Lane, statement: str, *arguments: Any) -> list[Any]:
        """Run a statement, prepared at its first use, and return its rows. The caller must not be cancelled.

        Raises: Fenced; Conflict; CommitRefused; Unreachable; DatabaseRefused.
        """
        connection = self._lanes[lane]
        async with connection.free:
            if self.is_broken:
                raise Unreachable(self.reason)
            connection.forget_warning()
            try:
                rows: list[Any] = await connection.driver.fetch(statement, *arguments)
            except Exception as error:
                raise self._failure(error) from error
        return rows

    def warning(self, lane: Lane) -> str:
        """Return the warning that the last statement of a lane caused, or "" if it caused none."""
        return self._lanes[lane].warning

    async def end_backends(self, backends: list[Backend]) -> None:
        """Terminate the server processes of earlier connections, and wait until they are gone. Raises: Unreachable."""
        earlier = set(backends) - set(self.backends)
        pids, started = [backend.pid for backend in earlier], [backend.started for backend in earlier]
        while await self.fetch("beat", _END, pids, started):  # noqa: ASYNC110 PostgreSQL does not report their end
            await asyncio.sleep(0.01)

    def _failure(self, error: Exception) -> ClusterError:
        """Return the error for a statement that failed.

        The driver may raise any error if a connection ends during an operation. So unless PostgreSQL itself reported
        the error and the connections are intact, the connections are considered lost.
        """
        text = self.target.reason(error)
        failure = None if self.is_broken else failure_of(text, error)
        if failure is None:
            self.abort(text)
            failure = Unreachable(self.reason)
        return failure

    @classmethod
    async def open(cls, target: ServerAddress) -> Connections:
        """Open all connections to the first server that accepts writes. Raises: Unreachable; DatabaseRefused."""
        return await first_open(target, cls._open_to)

    @classmethod
    async def _open_to(cls, target: ServerAddress) -> Connections:
        done = await _open_each([target] * len(LANES))
        opened = [result for result in done if not isinstance(result, BaseException)]
        try:
            for result in done:
                if isinstance(result, BaseException):
                    raise result
            async with asyncio.timeout(target.connect_timeout_s):
                with _resets():
                    return cls(target, *await _prepared(target, opened))
        except BaseException as error:
            for driver, _ in opened:
                driver.terminate()
            refusal = refusal_of(target, error)
            if refusal is None:
                raise
            raise refusal from error


async def first_open(target: ServerAddress, attempt: Callable[[ServerAddress], Awaitable[_T]]) -> _T:
    """Return the result of `attempt` for the first server of the URL that accepts writes. The driver could try the
    servers itself, but then a server that does not answer would use up the timeout of all.
    Raises: Unreachable; DatabaseRefused, if one server refused.
    """
    failures: list[ClusterError] = []
    for server in target.servers:
        try:
            return await attempt(server)
        except (Unreachable, DatabaseRefused) as error:
            failures.append(error)
    kind = DatabaseRefused if any(isinstance(error, DatabaseRefused) for error in failures) else Unreachable
    raise kind("; ".join(map(str, failures)))


async def newer_primary(used: Connections, servers: Sequence[ServerAddress]) -> ServerAddress | None:
    """Return the promoted standby with the newest timeline, or None if no timeline is newer than that in use."""
    others = [server for server in servers if server.url != used.target.url]
    results = await _open_each(others)
    found: list[tuple[str, ServerAddress]] = []
    for server, result in zip(others, results, strict=True):
        if isinstance(result, BaseException):
            continue  # the server is down, or does not accept writes
        driver, row = result
        driver.terminate()
        if row["system_identifier"] == used.identity.system and row["timeline"] > used.identity.timeline:
            found.append((row["timeline"], server))
    return max(found)[1] if found else None


async def _open_each(targets: Sequence[ServerAddress]) -> list[tuple[Any, Any] | BaseException]:
    """Return an open connection to each server, or the error. If cancelled, leave no connection open."""
    opened: list[Any] = []

    async def attempt(target: ServerAddress) -> tuple[Any, Any]:
        driver, row = await _open(target)
        opened.append(driver)
        return driver, row

    try:
        return await asyncio.gather(*map(attempt, targets), return_exceptions=True)
    except asyncio.CancelledError:  # all attempts have ended
        for driver in opened:
            driver.terminate()
        raise


async def _open(target: ServerAddress) -> tuple[Any, Any]:
    """Return an open connection, and the row that identifies its server."""
    driver: Any = await asyncpg.connect(
        target.url,
        timeout=target.connect_timeout_s,
        target_session_attrs="read-write",
        statement_cache_size=STATEMENTS_MAX,
        max_cached_statement_lifetime=0,
        max_cacheable_statement_size=0,
    )
    try:
        async with asyncio.timeout(target.connect_timeout_s):
            with _resets():
                _keep_alive(driver)
                await driver.set_type_codec(
                    "varbit", schema="pg_catalog", encoder=bytes, decoder=unpack_bits, format="binary"
                )
                await driver.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
                return driver, await driver.fetchrow(_IDENTITY)
    except BaseException:
        driver.terminate()
        raise


@contextmanager
def _resets() -> Iterator[None]:
    """Raise unexpected errors of the driver as ConnectionResetError, because the connection ended between two steps."""
    try:
        yield
    except (ClusterError, OSError, asyncpg.PostgresError):
        raise
    except Exception as error:
        raise ConnectionResetError(str(error)) from error


async def _prepared(target: ServerAddress, opened: list[tuple[Any, Any]]) -> tuple[Identity, dict[Lane, _Connection]]:
    """Check that all connections lead to one server and keep their sessions, then apply the settings of each.

    A pooler that is not in session mode gives the session that was released first, or last, to the next client. So each
    session is checked twice, in opposite orders: one of the checks finds another process. Settings are applied after
    the checks.
    """
    servers = {(row["system_identifier"], row["timeline"], row["started"]) for _, row in opened}
    if len(servers) > 1:
        raise Unreachable(f"{target.shown}: the connections lead to different servers")
    system, timeline, _ = servers.pop()
    if opened[0][1]["version"] < MINIMUM_VERSION:
        raise DatabaseRefused(f"{target.shown}: PostgreSQL {MINIMUM_VERSION // 10_000} or newer is needed")
    if len({row["pid"] for _, row in opened}) < len(opened):
        raise DatabaseRefused(f"{target.shown}: {POOLER}")
    for driver, row in (*opened, *reversed(opened)):
        if await driver.fetchval("SELECT pg_backend_pid()") != row["pid"]:
            raise DatabaseRefused(f"{target.shown}: {POOLER}")
    lanes: dict[Lane, _Connection] = {}
    for lane, (driver, row) in zip(LANES, opened, strict=True):
        settings = _settings(target, lane)
        await driver.fetch(_SET, list(settings), list(settings.values()))
        lanes[lane] = _Connection(driver, Backend(row["pid"], row["backend_start"]))
    return Identity(system, timeline), lanes


def _settings(target: ServerAddress, lane: Lane) -> dict[str, str]:
    """Return the settings of a session. They are applied once it is open, because poolers drop startup parameters."""
    return SESSION_SETTINGS | {
        "application_name": target.application_name,
        "search_path": target.quoted_schema,
        "statement_timeout": str(STATEMENT_TIMEOUT_MS[lane]),
        **PROTECTED,
        "tcp_user_timeout": str(TCP_USER_TIMEOUT_MS),
        "tcp_keepalives_idle": str(KEEPALIVE_IDLE_S),
        "tcp_keepalives_interval": str(KEEPALIVE_INTERVAL_S),
        "tcp_keepalives_count": str(KEEPALIVE_COUNT),
    }


def _keep_alive(driver: Any) -> None:
    """Let the kernel end a connection whose peer no longer answers. asyncpg offers no other way to its socket."""
    opened = driver._transport.get_extra_info("socket")  # noqa: SLF001
    if opened is None or opened.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", TCP_USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
