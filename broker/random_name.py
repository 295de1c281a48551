"""Names that nobody else has, for what clients leave nameless."""

from __future__ import annotations

import secrets
import string
from typing import Final

__all__ = ["generate_name"]

ALPHABET: Final = string.ascii_letters + string.digits + "-_"
LETTERS: Final = 22  # 132 bits, as in RabbitMQ's generated names


def generate_name() -> str:
    """Return 22 characters that nobody else has."""
    return "".join(secrets.choice(ALPHABET) for _ in range(LETTERS))
