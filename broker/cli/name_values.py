"""NAME=VALUE on the command line: a value is JSON if it parses as JSON, else text."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from broker.cli.parser import BadUsage, add_value
from broker.core.definitions.json_text import read_json

__all__ = ["add_arguments_option", "name_and_text", "name_and_value", "table_of"]


def name_and_text(text: str) -> tuple[str, str]:
    """Return both sides of a NAME=VALUE. Raises: ArgumentTypeError."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"'{text}' should be NAME=VALUE")
    return name, value


def name_and_value(text: str) -> tuple[str, Any]:
    """Return name and value of a NAME=VALUE: `n=3` is a number, `n="3"` a text, as is `n=three`.

    Raises: ArgumentTypeError.
    """
    name, value = name_and_text(text)
    try:
        return name, read_json(value.encode())
    except ValueError:
        return name, value


def table_of(pairs: Iterable[tuple[str, Any]], option: str) -> dict[str, Any]:
    """Return pairs as a table. Raises: BadUsage when a name comes twice."""
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise BadUsage(f"{option} {name} is given twice")
        table[name] = value
    return table


def add_arguments_option(command: argparse.ArgumentParser, example: str) -> None:
    """Add the arguments of a declare or a binding."""
    add_value(
        command,
        "--argument",
        "NAME=VALUE",
        f"such as {example}; the value is JSON if it parses, else text; can be repeated",
        action="append",
        default=[],
        type=name_and_value,
    )
