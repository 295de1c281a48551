"""The doctor's findings about a machine."""

from __future__ import annotations

import dataclasses

from broker.pipeline.jobs.doctor import Machine, look, memory_bytes

GOOD = Machine(
    python="3.11.2",
    cores=2,
    packages={"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3", "numpy": "2.4.6"},
    memory_bytes=8 << 30,
    temporary="/tmp",
    temporary_bytes=50 << 30,
    shell="/bin/bash",
)


def test_a_good_machine_has_no_warnings() -> None:
    """A good machine has no findings."""
    assert GOOD.missing == GOOD.warnings == []


def test_what_is_missing_or_little_is_named() -> None:
    """A missing package, little memory, little space and a newer pandas are reported."""
    poor = dataclasses.replace(
        GOOD, memory_bytes=1 << 30, temporary_bytes=1 << 20, packages={"pyspark": None, "pandas": "3.0.1"}
    )
    assert poor.missing == ["pyspark"]
    assert [warning.partition(" ")[0] for warning in poor.warnings] == ["1", "1", "pandas"]


def test_a_container_may_have_less_than_the_machine() -> None:
    """The free memory is at most what the container may still use."""
    meminfo = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n"
    assert memory_bytes(meminfo, None) == 8000000 * 1024
    assert memory_bytes(meminfo, 1000) == 1000
    assert memory_bytes(meminfo, -5) == 0
    assert memory_bytes("", None) is None


def test_this_machine_can_be_looked_at() -> None:
    """The check of this machine finds cores and a folder for temporary files."""
    found = look()
    assert found.cores >= 1
    assert found.temporary_bytes > 0
