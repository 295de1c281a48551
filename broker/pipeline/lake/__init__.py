"""The lake: Parquet files by date, and a log that says which of them count. See docs/pipeline-lake.md."""

from __future__ import annotations

from broker.pipeline.faults import LakeRefused
from broker.pipeline.lake.lake import Lake

__all__ = ["Lake", "LakeRefused"]
