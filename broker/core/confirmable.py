"""The committer's view of work that waits for the disk: of a publisher, a transaction, or the answers of a vhost."""

from __future__ import annotations

from typing import Protocol


class Confirmable(Protocol):
    """Numbered work, which learns up to which number it is on disk. Units: ``published``, ``confirmed`` and ``logged``
    are its own numbers; ``logged`` is the last one that has to wait for the disk.
    Invariant: ``waiting`` is set while it is on the committer's list.
    """

    confirmed: int
    logged: int
    published: int
    waiting: bool

    def confirm(self, upto: int) -> None:
        """Record that everything up to and including number `upto` is on disk."""


class Refusable(Confirmable, Protocol):
    """Confirmable work of which a shared store may refuse a part before it is confirmed."""

    def refuse(self, number: int) -> None:
        """Record that a full queue refused the message with this number."""


class ConfirmedPublishes(Refusable, Protocol):
    """The publishes of one channel, which are numbered and answered while it is ``confirming``."""

    confirming: bool


class Confirmer(Protocol):
    """Confirm publishes, transactions and durable changes once they are on disk."""

    def wait(self, confirmable: Confirmable) -> None:
        """Confirm the work after the next commit."""
