"""The lake: Delta tables of messages. See docs/pipeline-lake.md."""

from __future__ import annotations

from broker.pipeline.faults import LakeRefused
from broker.pipeline.lake.lake import Lake

__all__ = ["Lake", "LakeRefused"]
