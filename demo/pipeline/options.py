"""The command line of the pipeline's demo."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.options import ALL_ROWS


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one run."""

    rows: int
    patterns: int
    report: Path | None
    master: str
    keep: bool


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Return the options of the command line.

    Raises: SystemExit(2) with one line on an argument that is out of range.
    """
    parser = argparse.ArgumentParser(prog="python -m demo.pipeline", description=__doc__)
    parser.add_argument("--rows", type=int, default=ALL_ROWS, metavar="N", help="publish the first N flights only")
    parser.add_argument("--patterns", type=int, default=200, metavar="N", help="queues of `route` (default 200)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="keep the report here")
    parser.add_argument("--master", default="local[*]", metavar="URL", help="Spark's master (default local[*])")
    parser.add_argument("--keep", action="store_true", help="keep the broker's data folder and the lake")
    parsed = parser.parse_args(arguments)
    for name, lowest, highest in (("rows", 100, ALL_ROWS), ("patterns", 1, 5_000)):
        value = getattr(parsed, name)
        if not lowest <= value <= highest:
            parser.error(f"--{name} is {value}; it must be {lowest} to {highest}")
    return Options(parsed.rows, parsed.patterns, parsed.report, parsed.master, parsed.keep)
