"""Errors of the cluster, each with a text of one line that names no password."""

from __future__ import annotations

__all__ = ["ClusterError", "CommitRefused", "Conflict", "DatabaseRefused", "Fenced", "NameTaken", "Unreachable"]


class ClusterError(Exception):
    """The base of the cluster's errors."""


class Fenced(ClusterError):
    """The epoch of this node has ended: it was counted out, or the database went back in time. SQLSTATE SQ001."""


class Unreachable(ClusterError):
    """PostgreSQL did not answer. The statement may have been committed or not, and may be tried again."""


class Conflict(ClusterError):
    """What the database has does not allow the change. SQLSTATE SQ003."""


class CommitRefused(ClusterError):
    """A call that is taken completely or not at all has messages for full queues: `rows` names them. SQLSTATE SQ004."""

    def __init__(self, text: str, rows: str) -> None:
        super().__init__(text)
        self.rows = rows


class NameTaken(ClusterError):
    """Another living broker has this node's name."""


class DatabaseRefused(ClusterError):
    """PostgreSQL refused the connection or a statement, and trying again would not help."""
