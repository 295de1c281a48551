"""Stores the measurements of a benchmark as JSON; neither file name nor contents identify the machine."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

RESULTS = Path(__file__).resolve().parent / "results"


def keep(content: dict[str, Any], path: Path | None, kind: str) -> str:
    """Write `content` with the time to `path`, by default into bench/results, and return the file's name."""
    stamp = datetime.now(UTC)
    path = path or RESULTS / f"{kind}-{stamp:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"written": f"{stamp:%Y-%m-%dT%H:%M:%SZ}"} | content, indent=1) + "\n")
    return path.name


def load(path: Path) -> dict[str, Any]:
    """Return the content of a stored run."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit in order on a signal, so that the brokers started here are stopped."""
    raise SystemExit(128 + number)
