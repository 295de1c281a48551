"""A message as lines to read, as `peek` and `get` show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.cli.table import cell, counted

__all__ = ["message_lines"]


def message_lines(message: Mapping[str, Any]) -> list[str]:
    """Return one message as lines to read."""
    lines = [f"message {message['id']}{', redelivered' if message['redelivered'] else ''}"]
    lines += [f"  {name}: {cell(message[name])}" for name in ("exchange", "routing_key")]
    lines += [f"  {name}: {cell(value)}" for name, value in message["properties"].items()]
    shown = "" if message["body_complete"] else ", cut"
    lines.append(f"  body ({counted(message['body_bytes'], 'bytes')}, {message['body_encoding']}{shown}):")
    text = message["body"] if message["body_encoding"] == "base64" else _readable(message["body"])
    return lines + [f"    {line}" for line in text.split("\n")]


def _readable(body: str) -> str:
    return "\n".join(cell(line) for line in body.split("\n"))
