"""What needs Spark's packages is passed over where they are not installed; the rest runs."""

from __future__ import annotations

from tests.spark_extra import pytest_make_collect_report

__all__ = ["pytest_make_collect_report"]
