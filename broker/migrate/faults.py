"""Errors that stop a migration."""

from __future__ import annotations

__all__ = ["MethodRefused", "MigrationFault"]


class MigrationFault(Exception):
    """Messages cannot be moved; the text is one line for the user."""


class MethodRefused(MigrationFault):
    """A broker refused a method and closed the channel or the connection."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
