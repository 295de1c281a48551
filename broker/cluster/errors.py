"""Errors of the cluster, each with a text of one line that names no password."""

from __future__ import annotations

__all__ = [
    "ClusterError",
    "CommitRefused",
    "Conflict",
    "DatabaseFails",
    "DatabaseRefused",
    "Fenced",
    "NameTaken",
    "StatementRefused",
    "Unreachable",
    "WentBack",
]


class ClusterError(Exception):
    """The base of the cluster's errors."""


class Fenced(ClusterError):
    """The epoch of this node has ended: it was counted out, or the database went back in time. SQLSTATE SQ001."""


class WentBack(Fenced):
    """The database lacks what this node knows to be committed. SQLSTATE SQ005."""


class Unreachable(ClusterError):
    """PostgreSQL did not carry a statement out. It may have been committed or not, and may be tried again."""


class DatabaseFails(Unreachable):
    """PostgreSQL answered with an error of its own, such as a full disk: nothing was committed."""


class StatementRefused(Unreachable):
    """PostgreSQL refused a statement for what it contains or needs: nothing was committed, and nothing ever will be."""


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
    """PostgreSQL refused the connection, and trying again would not help."""
