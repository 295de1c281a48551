"""The listing of a tap's slot files and cursors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.slot_files.seal_log import Cursor, Seal
from broker.slot_files.seal_view import SealView
from broker.taps.tap_listing import cursor_rows, tap_rows


def view_of(seals: list[tuple[str, str, int, int]], cursors: dict[str, int]) -> SealView:
    """Return a view with seals from 1 on, given as vhost, tap, number and messages, and cursors of /'s tap t."""
    view = SealView()
    for seal, (vhost, tap, number, count) in enumerate(seals, 1):
        view.fold({"k": "seal", **Seal(seal, vhost, tap, number, 1, 1 + count, count, 0, 0, 100, 0).to_json()})
    for name, seal in cursors.items():
        view.fold({"k": "cursor", **Cursor(name, "/", "t", seal, 0).to_json()})
    return view


def test_a_tap_has_the_slot_files_of_all_its_queues() -> None:
    """A tap that was removed and added again continues its slot files, and lags count what each cursor lacks."""
    seals = [("/", "t", 1, 3), ("v", "t", 9, 50), ("/", "u", 2, 70), ("/", "t", 1, 4), ("/", "t", 3, 5)]
    view = view_of(seals, {"new": 0, "between": 2, "last": 4, "done": 5})
    vhost: Any = SimpleNamespace(name="/", queues=SimpleNamespace(taps={}), exchanges={})
    t, u = tap_rows(vhost, view, 7_000)
    assert [t[key] for key in ("name", "removed", "slots", "messages", "bytes", "first_seal", "last_seal")] == [
        "t", True, 3, 12, 300, 1, 5
    ]  # fmt: skip
    assert (u["name"], u["slots"], u["messages"]) == ("u", 1, 70)
    lags = {row["name"]: [row[f"lag_{unit}"] for unit in ("slots", "messages", "bytes", "s")] for row in t["cursors"]}
    assert lags == {"new": [3, 12, 300, 7], "between": [2, 9, 200, 7], "last": [1, 5, 100, 7], "done": [0, 0, 0, 0]}
    assert [(row["vhost"], row["tap"], row["name"]) for row in cursor_rows([t, u])][:1] == [("/", "t", "new")]
