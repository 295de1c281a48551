"""Skips test modules that need Spark's packages where these are not installed."""

from __future__ import annotations

from tests.spark_extra import pytest_make_collect_report

__all__ = ["pytest_make_collect_report"]
