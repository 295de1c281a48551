"""Columns of a row by their dotted names: to choose them, and to sort by them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Columns", "Row", "sort_key", "value_at"]

Row = dict[str, Any]
Tree = dict[str, Any]  # a column's name -> the chosen parts of its value, None for the whole of it


class Columns:
    """The columns that a caller wants, such as ``name,message_stats.publish_details.rate``."""

    __slots__ = ("_tree", "names")

    def __init__(self, text: str) -> None:
        self._tree: Tree = {}
        for dotted in text.split(","):
            tree, *rest = self._tree, *dotted.strip().split(".")
            for word in rest[:-1]:
                inner = tree.setdefault(word, {})
                if inner is None:  # the whole value is wanted already
                    break
                tree = inner
            else:
                tree[rest[-1]] = None
        self.names = frozenset(self._tree)

    def of(self, row: Row) -> Row:
        """Return the chosen columns of a row; a column that the row does not have is left out."""
        return _chosen(row, self._tree)


def _chosen(row: Mapping[str, Any], tree: Tree) -> Row:
    found: Row = {}
    for name, inner in tree.items():
        if name in row:
            value = row[name]
            found[name] = _chosen(value, inner) if inner is not None and isinstance(value, dict) else value
    return found


def value_at(row: Row, path: Sequence[str]) -> Any:
    """Return the value of a dotted column, None when the row does not have it."""
    value: Any = row
    for word in path:
        if not isinstance(value, dict):
            return None
        value = value.get(word)
    return value


def sort_key(value: Any) -> tuple[int, Any]:
    """Return what sorts values of all types: what is missing as 0, numbers, then texts, then tables and lists.

    Source: rabbit_mgmt_util sorts in Erlang's order of terms.
    """
    if value is None or isinstance(value, bool | int | float):
        return 0, value or 0
    if isinstance(value, str):
        return 1, value
    return 2, json.dumps(value, sort_keys=True)
