"""Defects that somebody might make in the cluster, and the tests that must catch each of them.

Each is one replacement in one file, in a copy of the project.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

PROJECT: Final = Path(__file__).resolve().parents[2]
COPIED: Final = ("broker", "tests", "tools", "bench", "demo", "docs", "config", "pyproject.toml", "pytest_slotmq.py")
CALLS: Final = "broker/cluster/sql/calls.sql"
MEMBERS: Final = "broker/cluster/sql/members.sql"
FAILOVER: Final = "broker/cluster/sql/failover.sql"
SQL_TESTS: Final = (
    "tests/cluster/test_sql_calls.py",
    "tests/cluster/test_sql_fences.py",
    "tests/cluster/test_sql_members.py",
)
TEST_S: Final = 600


class Defect(NamedTuple):
    """One defect: `old` occurs once in the file at `path`."""

    name: str
    path: str
    old: str
    new: str
    tests: Sequence[str]


DEFECTS: Final = (
    Defect(
        "a commit without the fence",
        CALLS,
        """    PERFORM fence(p_node, p_epoch);
    SELECT c.ring, c.generation INTO v_ring, v_generation FROM cluster c;
    INSERT INTO batch""",
        """    SELECT c.ring, c.generation INTO v_ring, v_generation FROM cluster c;
    INSERT INTO batch""",
        SQL_TESTS,
    ),
    Defect(
        "a lease without the epoch",
        MEMBERS,
        "PERFORM 1 FROM member m WHERE m.node = p_node AND m.epoch = p_epoch FOR SHARE;",
        "PERFORM 1 FROM member m WHERE m.node = p_node FOR SHARE;",
        SQL_TESTS,
    ),
    Defect(
        "a fence that no count-out waits for",
        MEMBERS,
        "PERFORM 1 FROM member m WHERE m.node = p_node AND m.epoch = p_epoch FOR SHARE;",
        "PERFORM 1 FROM member m WHERE m.node = p_node AND m.epoch = p_epoch;",
        SQL_TESTS,
    ),
    Defect(
        "reclaim in one statement: the rows are freed with a snapshot from before the dead node's last call",
        MEMBERS,
        """    DELETE FROM member m WHERE m.node = p_dead_node AND m.epoch = p_dead_epoch;  -- waits""",
        """    PERFORM free_rows(p_dead_node, p_dead_epoch);
    DELETE FROM member m WHERE m.node = p_dead_node AND m.epoch = p_dead_epoch;
    RETURN true;  -- waits""",
        SQL_TESTS,
    ),
    Defect(
        "what a dead node held is not marked redelivered",
        MEMBERS,
        "d.due_at, d.bits, d.bits, d.counts,",
        "d.due_at, d.bits, d.seen, d.counts,",
        SQL_TESTS,
    ),
    Defect(
        "a row of a dead node replaces the free row of its slot",
        MEMBERS,
        "bits = f.bits | EXCLUDED.bits,",
        "bits = EXCLUDED.bits,",
        SQL_TESTS,
    ),
    Defect(
        "a leased message stays free",
        CALLS,
        """                UPDATE slot s SET bits = s.bits & ~lease.bits
                    WHERE s.stream = r.stream AND s.number = r.number AND s.holder = '';
""",
        "",
        SQL_TESTS,
    ),
    Defect(
        "a second lease of a slot replaces the first",
        CALLS,
        """                bits = s.bits | EXCLUDED.bits,
                seen = either_bits(s.seen, EXCLUDED.seen),
                counts = merged_counts(s.counts, EXCLUDED.counts);
            IF q.limited THEN""",
        """                bits = EXCLUDED.bits,
                seen = either_bits(s.seen, EXCLUDED.seen),
                counts = merged_counts(s.counts, EXCLUDED.counts);
            IF q.limited THEN""",
        SQL_TESTS,
    ),
    Defect(
        "a settlement deletes the whole row",
        CALLS,
        """            AND bit_count(s.bits & ~r.bits) = 0;
        IF NOT FOUND""",
        """            AND bit_count(s.bits & r.bits) > 0;
        IF NOT FOUND""",
        SQL_TESTS,
    ),
    Defect(
        "a settlement clears the messages of other nodes",
        CALLS,
        """            UPDATE slot s SET bits = s.bits & ~r.bits
                WHERE s.stream = r.stream AND s.number = r.number AND s.holder = p_node;
        END IF;
    END LOOP;
    INSERT INTO producer_run""",
        """            UPDATE slot s SET bits = s.bits & ~r.bits WHERE s.stream = r.stream AND s.number = r.number;
        END IF;
    END LOOP;
    INSERT INTO producer_run""",
        SQL_TESTS,
    ),
    Defect(
        "a returned message is lost where the slot has free ones",
        CALLS,
        """            bits = f.bits | EXCLUDED.bits,
            due_at = least(f.due_at, EXCLUDED.due_at),
            seen = either_bits(f.seen, EXCLUDED.seen),
            counts = merged_counts(f.counts, EXCLUDED.counts);
        IF q.counter""",
        """            due_at = least(f.due_at, EXCLUDED.due_at),
            seen = either_bits(f.seen, EXCLUDED.seen),
            counts = merged_counts(f.counts, EXCLUDED.counts);
        IF q.counter""",
        SQL_TESTS,
    ),
    Defect(
        "a call that is sent again is applied again",
        CALLS,
        "    IF NOT FOUND THEN\n        -- this write",
        "    v_number := coalesce(v_number, nextval('number_of_call'));\n    IF false THEN\n        -- this write",
        SQL_TESTS,
    ),
    Defect(
        "the database went back in time and nobody notices",
        FAILOVER,
        "    IF NOT has_batch THEN ",
        "    IF false THEN ",
        ("tests/cluster",),
    ),
    Defect(
        "a node is counted out although it has beaten again",
        MEMBERS,
        "WHERE b.node = p_dead_node AND b.epoch = p_dead_epoch AND b.beats = p_dead_beats;",
        "WHERE b.node = p_dead_node AND b.epoch = p_dead_epoch;",
        SQL_TESTS,
    ),
    Defect(
        "a lease that counts from the answer of a beat",
        "broker/cluster/node.py",
        "                self._prolong(sent_s, now_s)\n",
        "                self._prolong(now_s, now_s)\n",
        ("tests/cluster/test_membership.py"),
    ),
    Defect(
        "an observer that counts its own outage",
        "broker/cluster/observer.py",
        "        if self._looked_s is None or answered_s - self._looked_s > self._lease_s * GAP_SHARE:\n",
        "        if self._looked_s is None:\n",
        ("tests/cluster", "tests/unit/cluster"),
    ),
)


def matches(defect: Defect, folder: Path = PROJECT) -> int:
    """Return how often the text that a defect replaces occurs."""
    return (folder / defect.path).read_text(encoding="utf-8").count(defect.old)


def copy_project(folder: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, folder / name)


def plant(defect: Defect, folder: Path) -> None:
    """Make the replacement in a copy."""
    file = folder / defect.path
    file.write_text(file.read_text(encoding="utf-8").replace(defect.old, defect.new), encoding="utf-8")


def failures(tests: Sequence[str], folder: Path) -> str:
    """Run tests in a copy until one fails; return the lines that name failures, "" when all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TEST_S, check=False
    )
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "\n".join(lines) or (done.stdout + done.stderr)[-2000:]
