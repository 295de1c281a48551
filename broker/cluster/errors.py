"""The cluster's errors, whose texts are single lines without passwords, and how PostgreSQL's errors map to them."""

from __future__ import annotations

import ssl
import warnings
from typing import Final

import asyncpg

from broker.cluster.server_address import ServerAddress

TRANSIENT: Final = ("40", "53", "55", "57", "08")
"""Classes of SQLSTATE: a connection could not be opened, but may be opened later."""
PASSING: Final = ("40", "55", "57")
"""Classes of SQLSTATE: a deadlock, a lock, a cancelled statement. The next attempt may succeed."""
CERTAIN: Final = ("22", "23", "54", "XX001", "XX002")
"""SQLSTATEs of a wrong value, a constraint, a size, a damaged page. The next attempt will fail, too."""
REFUSED: Final = "SQ004"
READ_ONLY: Final = "25006"
POOLER: Final = (
    "a connection pooler in front of PostgreSQL gives one session to several clients: connect directly, or through a "
    "pooler in session mode"
)
LOST_STATEMENT: Final = ("26000", "42P05")
"""SQLSTATEs of a prepared statement that is missing or already exists: the session is shared with another client."""
NOT_AN_OPTION: Final = ("unrecognized configuration parameter", "unsupported startup parameter")
NO_TLS: Final = "rejected SSL upgrade"

warnings.filterwarnings("error", "password file")  # asyncpg ignores an unsafe file and would connect without a password


class ClusterError(Exception):
    """The base class of the cluster's errors."""


class Fenced(ClusterError):
    """This node is not a member: it was declared dead, for example, or the database was restored. SQLSTATE SQ001."""


class WentBack(Fenced):
    """The database lacks data that this node knows to be committed. SQLSTATE SQ005."""


class Unreachable(ClusterError):
    """PostgreSQL was not reached, or did not complete a statement. Unless a subclass says otherwise, the statement may
    have been committed, and can be retried.
    """


class DatabaseFails(Unreachable):
    """PostgreSQL answered with an error of its own, such as a full disk: nothing was committed."""


class StatementRefused(Unreachable):
    """PostgreSQL refused a statement because of its contents: nothing was committed, and a retry will not succeed."""


class Conflict(ClusterError):
    """The contents of the database do not allow the change. SQLSTATE SQ003."""


class CommitRefused(ClusterError):
    """Full queues refused messages of an all-or-nothing call. `rows` lists these messages as JSON. SQLSTATE SQ004."""

    def __init__(self, text: str, rows: str) -> None:
        super().__init__(text)
        self.rows = rows


class NameTaken(ClusterError):
    """Another living broker has this node's name."""


class DatabaseRefused(ClusterError):
    """PostgreSQL cannot be used: it refused the login, for example, or its schema is too new (SQLSTATE SQ002)."""


OWN: Final[dict[str, type[ClusterError]]] = {
    "SQ001": Fenced,
    "SQ002": DatabaseRefused,
    "SQ003": Conflict,
    "SQ005": WentBack,
}
"""The errors that the schema's functions raise, by SQLSTATE, except REFUSED."""


def refusal_of(target: ServerAddress, error: BaseException) -> ClusterError | None:
    """Return the error for a connection that could not be opened, or None if `error` is not an expected one."""
    text = f"{target.shown}: {target.reason(error)}"
    state = getattr(error, "sqlstate", None) or ""
    if state in LOST_STATEMENT:
        return DatabaseRefused(f"{target.shown}: {POOLER}")
    if any(words in text for words in NOT_AN_OPTION):
        return DatabaseRefused(f"{text}: remove this option from the URL; the driver does not support it")
    if isinstance(error, asyncpg.PostgresError) and not state.startswith(TRANSIENT):
        return DatabaseRefused(text)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return Unreachable(f"{target.shown}: this server does not accept writes")
    if isinstance(error, ssl.SSLCertVerificationError) or NO_TLS in text:
        return DatabaseRefused(text)
    if isinstance(error, FileNotFoundError) and "ssl" in target.options:
        return DatabaseRefused(f"{text}: a certificate or key of the URL's options")
    if isinstance(error, TimeoutError):
        return Unreachable(f"{target.shown}: no answer within {target.connect_timeout_s:g} s")
    if isinstance(error, OSError | asyncpg.PostgresError | asyncpg.InternalClientError):
        return Unreachable(text)
    if isinstance(error, asyncpg.InterfaceError | ValueError | UserWarning):
        return DatabaseRefused(text)
    return None


def failure_of(text: str, error: Exception) -> ClusterError | None:
    """Return the error for a failed statement, or None if `error` is not PostgreSQL's or the connection is unusable.
    `text` is the message of the returned error. Any error of PostgreSQL ends a call, never the broker.
    """
    if not isinstance(error, asyncpg.PostgresError):
        return None
    state = error.sqlstate or ""
    if state == REFUSED:
        return CommitRefused(text, getattr(error, "detail", None) or "[]")
    if state in OWN:
        return OWN[state](text)
    if isinstance(error, asyncpg.PostgresConnectionError) or state == READ_ONLY or state in LOST_STATEMENT:
        return None
    if state.startswith(CERTAIN):
        return StatementRefused(text)
    return Unreachable(text) if state.startswith(PASSING) else DatabaseFails(text)
