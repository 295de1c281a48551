"""The versions of Java that Spark can use, by the version that a Java reports."""

from __future__ import annotations

import pytest

from broker.pipeline.spark.java import properties, refusal


@pytest.mark.parametrize("version", ["17.0.11", "17.0.15", "17.1", "21", "21-ea", "21.0.8", "25.0.3", "25.1.0"])
def test_a_version_that_will_do(version: str) -> None:
    """A recent release of a supported Java line is accepted."""
    assert refusal(version) is None


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("1.8.0_402", "Spark takes 17"),
        ("11.0.22", "Spark takes 17"),
        ("17", "17.0.11 or newer"),
        ("17.0.10", "17.0.11 or newer"),
        ("17-ea", "17.0.11 or newer"),
        ("22.0.1", "Spark takes 17"),
        ("25", "25.0.3 or newer"),
        ("25.0.2", "25.0.3 or newer"),
        ("26-ea", "Spark takes 17"),
        ("", "cannot be read"),
        ("unknown", "cannot be read"),
    ],
)
def test_a_version_that_will_not_do(version: str, why: str) -> None:
    """A Java that is too old, unsupported or known to damage data is refused with the reason and its version."""
    said = refusal(version)
    assert said is not None
    assert why in said
    assert version in said


def test_properties_are_read_from_among_other_lines() -> None:
    """The output of `-XshowSettings` gives home and version, whatever lines surround them."""
    said = (
        "Property settings:\n    java.home = /opt/with space/jre\n    java.version = 21.0.8\n"
        '    java.library.path = /a\n        /b\nopenjdk version "21.0.8"\n'
    )
    found = properties(said)
    assert found["java.home"] == "/opt/with space/jre"
    assert found["java.version"] == "21.0.8"
