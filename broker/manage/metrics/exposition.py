"""The text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["CONTENT_TYPE", "head", "label_text", "sample"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def head(name: str, kind: str, about: str) -> str:
    """Return the lines that introduce a metric. Shapes: `kind` is counter, gauge or histogram."""
    return f"# HELP {name} {about.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}\n"


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels as they stand behind a name, nothing for none."""
    inner = ",".join([f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in labels])
    return f"{{{inner}}}" if inner else ""


def sample(name: str, labels: str, value: float | None) -> str:
    """Return the line of a sample; a value that is not known is not a number. Shapes: `labels` as `label_text` has."""
    return f"{name}{labels} {'NaN' if value is None else value}\n"
