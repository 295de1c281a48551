"""Defects that are planted on purpose are caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.defect import Defect
from tests.cluster.planted_defects import ALL_TESTS_S, DEFECTS, copy_project, failures, matches, plant


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_fits_the_code(defect: Defect) -> None:
    """The text that each defect replaces occurs once."""
    assert matches(defect) == 1


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_the_tests_pass_without_a_defect(tmp_path: Path) -> None:
    """A test that fails with a defect fails because of it."""
    copy_project(tmp_path)
    assert failures(sorted({test for defect in DEFECTS for test in defect.tests}), tmp_path, ALL_TESTS_S) == ""


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_is_caught(tmp_path: Path, defect: Defect) -> None:
    """One of the tests named for the defect fails with it."""
    copy_project(tmp_path)
    plant(defect, tmp_path)
    assert failures(defect.tests, tmp_path), f"nothing noticed: {defect.name}"
