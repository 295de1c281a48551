"""Skips test modules that need the extra `spark` where it is not installed."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from broker.cli.pipeline import missing_packages

__all__ = ["pytest_make_collect_report"]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn an import error for a missing package of the extra into a skip that names it."""
    report = yield
    if report.outcome == "failed":
        missing = [name for name in missing_packages() if f"No module named '{name}" in str(report.longrepr)]
        if missing:
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f'Skipped: {missing[0]} missing: pip install ".[spark]"')
    return report
