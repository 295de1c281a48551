"""Why a connection to PostgreSQL could not be opened or a statement failed, and whether another attempt can succeed."""

from __future__ import annotations

import ssl
import warnings
from typing import Final

import asyncpg

from broker.cluster.errors import (
    ClusterError,
    CommitRefused,
    Conflict,
    DatabaseFails,
    DatabaseRefused,
    Fenced,
    StatementRefused,
    Unreachable,
    WentBack,
)
from broker.cluster.server_address import ServerAddress

__all__ = ["POOLER", "failure_of", "refusal_of"]

TRANSIENT: Final = ("40", "53", "55", "57", "08")
"""Classes of SQLSTATE in which a connection that cannot be opened may be opened later."""
PASSING: Final = ("40", "55", "57")
"""A deadlock, a lock, a statement that was cancelled: the next attempt may well succeed."""
CERTAIN: Final = ("22", "23", "54", "XX001", "XX002")
"""A value, a constraint, a size, a page that is damaged: the next attempt will fail, too."""
OWN: Final[dict[str, type[ClusterError]]] = {
    "SQ001": Fenced,
    "SQ002": DatabaseRefused,
    "SQ003": Conflict,
    "SQ005": WentBack,
}
"""What the functions of the schema raise themselves."""
REFUSED: Final = "SQ004"
READ_ONLY: Final = "25006"
POOLER: Final = (
    "a connection pooler in front of PostgreSQL gives one session to several clients: connect directly, or through a "
    "pooler in session mode"
)
LOST_STATEMENT: Final = ("26000", "42P05")
"""States of SQL for a prepared statement that this session has not, or has already: it is another client's."""
NOT_AN_OPTION: Final = ("unrecognized configuration parameter", "unsupported startup parameter")
NO_TLS: Final = "rejected SSL upgrade"

warnings.filterwarnings("error", "password file")  # of the driver, which then would be refused for want of a password


def refusal_of(target: ServerAddress, error: BaseException) -> ClusterError | None:
    """Return the error for a connection that could not be opened; None for what is no failure of the connection."""
    text = f"{target.shown}: {target.reason(error)}"
    state = getattr(error, "sqlstate", None) or ""
    if state in LOST_STATEMENT:
        return DatabaseRefused(f"{target.shown}: {POOLER}")
    if any(words in text for words in NOT_AN_OPTION):
        return DatabaseRefused(f"{text}: leave this option out of the URL, its driver does not know it")
    if isinstance(error, asyncpg.PostgresError) and not state.startswith(TRANSIENT):
        return DatabaseRefused(text)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return Unreachable(f"{target.shown}: this server takes no writes")
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
    """Return what it means that a statement failed on connections that work; None if they are of no more use.

    `text` is what the error says. Whatever it is, it ends a call and never the broker.
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
