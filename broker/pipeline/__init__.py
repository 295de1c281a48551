"""The data pipeline: Spark over the broker's slots. It needs an extra: `pip install ".[spark]"` in a clone.

The daemon never imports this package. Its names are loaded on first use, so that importing it does not load Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.pipeline.lake.lake import Lake
    from broker.pipeline.spark.session import register, session

__all__ = ["Lake", "register", "session"]

HOMES: Final = {"Lake": "lake.lake", "register": "spark.session", "session": "spark.session"}  # name: module


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"broker.pipeline.{HOMES[name]}"), name)
