"""Unique names for objects that clients declare without a name."""

from __future__ import annotations

import secrets
import string
from typing import Final

__all__ = ["generate_name"]

ALPHABET: Final = string.ascii_letters + string.digits + "-_"
LETTERS: Final = 22  # 132 bits, as in RabbitMQ's generated names


def generate_name() -> str:
    """Return a random name of 22 characters."""
    return "".join(secrets.choice(ALPHABET) for _ in range(LETTERS))
