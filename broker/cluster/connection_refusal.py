"""Why a connection to PostgreSQL could not be opened, and whether another attempt can succeed."""

from __future__ import annotations

import ssl
import warnings
from typing import Final

import asyncpg

from broker.cluster.errors import ClusterError, DatabaseRefused, Unreachable
from broker.cluster.server_address import ServerAddress

__all__ = ["LOST_STATEMENT", "POOLER", "TRANSIENT", "refusal_of"]

TRANSIENT: Final = ("40", "53", "55", "57", "08")
"""Classes of SQLSTATE: the statement was rolled back, or its result is unknown."""
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
