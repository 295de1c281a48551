"""The end of a run: the exit code follows the verdict, and failures are named."""

from dataclasses import replace

import pytest

from demo.plan import QueuePlan

pytest.importorskip("numpy", reason="needs the extra [demo]")

from demo.report import Measured, show_report
from demo.verdict import QueueVerdict

PLAN = [QueuePlan("demo.000", "everything", ("#",)), QueuePlan("demo.001", "literal", ("a.b",))]
GOOD = QueueVerdict(
    expected=10, got=10, missing=0, missing_confirmed=0, unexpected=0, duplicates=3, unexplained=0, left=0
)
MEASURED = Measured(
    rows=20, published=23, resent=3, confirmed=20, refused=0, returned=0, delivered=23, altered=0, unconfirmed_rows=0,
    publishing_s=2.0, draining_s=4.0, down_s=0.5, stop_s=0.1, stop_error=None,
)  # fmt: skip


def test_good_run_ends_with_a_table_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row per kind and the sums; explained duplicates are no failure."""
    assert show_report(PLAN, [GOOD, GOOD], MEASURED, plain=True)
    output = capsys.readouterr().out
    cells = [line.split() for line in output.splitlines()]
    assert ["everything", "1", "10", "10", "0", "0", "3", "0", "0"] in cells
    assert ["all", "2", "20", "20", "0", "0", "6", "0", "0"] in cells
    assert "10 flights/s" in output and "OK" in output and "FAILED" not in output


@pytest.mark.parametrize(
    ("verdict", "measured", "words"),
    [
        (replace(GOOD, missing=2, missing_confirmed=2), MEASURED, "2 confirmed flights are missing"),
        (replace(GOOD, missing=2), MEASURED, "2 unconfirmed flights are missing"),
        (replace(GOOD, unexpected=1), MEASURED, "1 flights were delivered to a queue that no binding"),
        (replace(GOOD, unexplained=1), MEASURED, "1 duplicates were neither redelivered nor resent"),
        (replace(GOOD, left=4), MEASURED, "4 messages were left"),
        (GOOD, replace(MEASURED, altered=1), "1 deliveries were altered"),
        (GOOD, replace(MEASURED, returned=1), "1 flights were returned"),
        (GOOD, replace(MEASURED, unconfirmed_rows=1), "1 flights were never confirmed"),
        (GOOD, replace(MEASURED, stop_error="did not end"), "did not end"),
    ],
)
def test_every_fault_fails_the_run(
    verdict: QueueVerdict, measured: Measured, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of fault is named and fails the run."""
    assert not show_report(PLAN, [GOOD, verdict], measured, plain=True)
    assert f"FAILED: {words}" in capsys.readouterr().out


def test_faulty_queue_is_shown_with_its_bindings(capsys: pytest.CaptureFixture[str]) -> None:
    """The report shows the bindings, so that the reader can find the wrong pattern."""
    show_report(PLAN, [GOOD, replace(GOOD, missing=1)], MEASURED, plain=True)
    assert "demo.001 (literal: a.b)" in capsys.readouterr().out
