"""All measures of one source tree, as numbers that can be compared with those of another."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tools.house import imports, paths, sources, tracer

Measures: TypeAlias = dict[str, int]
"""The counts, by name."""


def measure() -> Measures:
    """Return the measures of the tree that this program imports the broker from."""
    found: Measures = {}
    for name in paths.PATHS:
        steps = paths.walk(name)
        found[f"{name}: functions"] = len(tracer.functions(steps))
        found[f"{name}: files"] = len(tracer.files(steps))
        found[f"{name}: re-entries"] = tracer.reentries(steps)
    for package in imports.packages(paths.ROOT):
        circles = imports.circles(imports.import_graph(paths.ROOT, package))
        found[f"{package}: modules in circles"] = sum(map(len, circles))
    found["writes to fields of others"] = len(sources.foreign_writes(paths.ROOT))
    found["... marked as hot"] = len(sources.hot_writes(paths.ROOT))
    by_package = sources.lines(paths.ROOT)
    found |= {f"broker.{package}: lines": count for package, count in by_package.items()}
    found["all lines"] = sum(by_package.values())
    return found


def measure_revision(revision: str) -> Measures:
    """Return the measures of another revision of the broker, taken by this program.

    Raises: subprocess.CalledProcessError, after git or the other process has printed the reason.
    """
    with tempfile.TemporaryDirectory(prefix="slotmq-house-") as name:
        tree = Path(name)
        archive = subprocess.run(
            ["git", "-C", paths.ROOT, "archive", revision, "broker"], stdout=subprocess.PIPE, check=True
        )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 has none
            files.extractall(tree)
        (tree / "tools").symlink_to(paths.ROOT / "tools")
        done = subprocess.run(
            [sys.executable, "-m", "tools.house", "--json"],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": name},
            stdout=subprocess.PIPE,
            check=True,
        )
    measures: Measures = json.loads(done.stdout)
    return measures


def table(columns: Mapping[str, Measures]) -> str:
    """Return measures in rows, with a column for each tree."""
    names = list(dict.fromkeys(name for measures in reversed(list(columns.values())) for name in measures))
    width = max(map(len, names))
    rows = [f"{'':{width}}  " + "  ".join(f"{title:>9}" for title in columns)]
    for name in names:
        cells = [str(measures.get(name, "-")) for measures in columns.values()]
        rows.append(f"{name:{width}}  " + "  ".join(f"{cell:>9}" for cell in cells))
    return "\n".join(rows)
