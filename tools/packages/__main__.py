"""Build the packages and use them in fresh environments, step by step, until a step fails.

The wheel is built from the sdist, and both in isolation. It is installed with each extra alone and with all of them.
The steps of the Dockerfile are carried out without Docker.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.packages.image import Image, ImageFailed
from tools.packages.trial import Trial, TrialFailed

PROJECT: Final = Path(__file__).resolve().parents[2]
EXTRAS: Final = ((), ("manage",), ("cluster",), ("zmq",), ("manage", "cluster", "re2", "zmq"))


class StepFailed(Exception):
    """A program failed; the text is its output."""


def main() -> int:
    """Run the steps and return an exit code."""
    try:
        with tempfile.TemporaryDirectory(prefix="slotmq-packages-") as folder:
            run_steps(Path(folder))
    except (StepFailed, TrialFailed, ImageFailed) as error:
        print(f"packages: failed: {error}", file=sys.stderr)
        return 1
    return 0


def run_steps(folder: Path) -> None:
    """Build, install and use all packages. Raises: StepFailed, TrialFailed, ImageFailed."""
    with step("sdist, wheel from it"):
        wheel = build(folder)
    for extras in EXTRAS:
        with step(f"wheel with {', '.join(extras) or 'no extra'}"):
            environment = folder / ("-".join(extras) or "core")
            python = install(environment, f"slotmq[{','.join(extras)}] @ {wheel.as_uri()}")
            environment.joinpath("trial").mkdir()
            Trial(python.parent, environment / "trial", extras).use()
    with step("all extras together, of the environment of the tests"):
        run(sys.executable, "-m", "pip", "check")
    with step("Dockerfile"):
        image = Image(PROJECT, folder / "image")
        image.build()
        variables = image.environment | {"SLOTMQ_SERVER__HOST": "127.0.0.1"}
        Trial(image.scripts, image.folder, ["manage", "cluster"], variables, image.serve).use(image.health)


def build(folder: Path) -> Path:
    """Build an sdist and from it a wheel, check both, and return the wheel. Raises: StepFailed."""
    python = install(folder / "build", "build", "pip", "twine")  # with pip, build creates its environments faster
    run(str(python), "-m", "build", "--outdir", str(folder / "dist"), str(PROJECT))
    (sdist,), (wheel,) = folder.glob("dist/*.tar.gz"), folder.glob("dist/*.whl")
    run(str(python), "-m", "twine", "check", "--strict", str(sdist), str(wheel))
    if PROJECT.joinpath(".git").exists():
        with tarfile.open(sdist) as archive:
            packed = {name.partition("/")[2] for name in archive.getnames()}
        missing = set(run("git", "-C", str(PROJECT), "-c", "safe.directory=*", "ls-files").split("\n")) - packed
        if missing:
            raise StepFailed(f"the sdist lacks {', '.join(sorted(missing)[:5])}")
    return wheel


def install(folder: Path, *packages: str) -> Path:
    """Create an environment with these packages and their dependencies; return its Python. Raises: StepFailed."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--no-compile", *packages)
    run(*pip, "check")
    return python


def run(*command: str) -> str:
    """Run a program and return its output. Raises: StepFailed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise StepFailed(f"{' '.join(command)} ended with {done.returncode}:\n{said[-2000:]}")
    return done.stdout.strip()


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the name of a step, and how long it took."""
    begin = time.monotonic()
    print(f"packages: {name} ...", end=" ", flush=True)
    yield
    print(f"ok, {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
