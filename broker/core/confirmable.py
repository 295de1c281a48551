"""Interfaces between the committer and work that waits for the disk, such as publishes and a vhost's answers."""

from __future__ import annotations

from typing import Protocol


class Confirmable(Protocol):
    """Numbered work that is confirmed once it is on disk. Units: ``published`` is the last number that was assigned,
    ``logged`` the last one that has to wait for the disk, and ``confirmed`` the last one that was confirmed.
    Invariant: ``waiting`` is set while the work is on the committer's list.
    """

    confirmed: int
    logged: int
    published: int
    waiting: bool

    def confirm(self, upto: int) -> None:
        """Record that everything up to and including number `upto` is on disk."""


class Refusable(Confirmable, Protocol):
    """Publishes that are confirmed or, in a shared store, may be refused one by one."""

    def refuse(self, number: int) -> None:
        """Record that a full queue refused the message with this number."""


class ConfirmedPublishes(Refusable, Protocol):
    """The publishes of one channel, which are numbered and confirmed while ``confirming`` is set."""

    confirming: bool


class Confirmer(Protocol):
    """Confirm work once it is on disk."""

    def wait(self, confirmable: Confirmable) -> None:
        """Confirm the work after the next commit."""
