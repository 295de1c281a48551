"""The committer's view of what waits for the disk: a publisher, a transaction, or the answers of a vhost."""

from __future__ import annotations

from typing import Protocol


class Confirmable(Protocol):
    """Numbered work, which hears up to which number it is safe on disk.

    Units: ``published``, ``confirmed`` and ``logged`` are numbers of its own count; ``logged`` is the last one that has
        to wait for the disk.
    Invariant: ``waiting`` is set while it is on the committer's list.
    """

    confirmed: int
    logged: int
    published: int
    waiting: bool

    def confirm(self, upto: int) -> None:
        """Note that everything up to and including number `upto` is safe."""


class Refusable(Confirmable, Protocol):
    """Confirmable work of which a store that several brokers share may refuse a part, before it is confirmed."""

    def refuse(self, number: int) -> None:
        """Note that a full queue refused a message of this number."""


class ConfirmedPublishes(Refusable, Protocol):
    """The publishes of one channel, which are numbered and answered while it is ``confirming``."""

    confirming: bool


class Confirmer(Protocol):
    """Confirms publishes, transactions and durable changes once they are on disk."""

    def wait(self, confirmable: Confirmable) -> None:
        """Confirm the work after the next commit."""
