"""Argument types for argparse: checkouts of SlotMQ, compiled packages, lists of names."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from bench.brokers import PROJECT
from bench.service import BrokerFailed

_BUILD = "tools/compiled_build.py"


@dataclass(frozen=True, slots=True)
class Checkout:
    """A source tree with the package `broker`; tables show its `name`."""

    folder: Path

    @classmethod
    def of(cls, text: str) -> Checkout:
        """Return the checkout at a path, for argparse's `type`."""
        folder = Path(text).resolve()
        if not (folder / "broker" / "__main__.py").is_file():
            raise argparse.ArgumentTypeError(f"{text} is not a checkout of SlotMQ")
        return cls(folder)

    @property
    def name(self) -> str:
        return self.folder.name

    def package(self, *, compiled: bool) -> Path:
        """Return the folder to import the broker from, after compiling it unless that folder is up to date.

        Raises: BrokerFailed when it cannot be compiled.
        """
        if not compiled:
            return self.folder
        built = self.folder / "build" / "compiled"
        done = subprocess.run(
            [sys.executable, _BUILD, str(built)], cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise BrokerFailed(said[-1] if said else f"{_BUILD} of {self.name} ended with {done.returncode}")
        return built


HERE = Checkout(PROJECT)


def package_at(text: str) -> Path:
    """Return the folder at a path that contains a compiled package, for argparse's `type`."""
    folder = Path(text).resolve()
    if not any(folder.glob(f"broker/**/*{EXTENSION_SUFFIXES[0]}")):
        raise argparse.ArgumentTypeError(f"{text} contains no compiled broker")
    return folder


def choices(known: Collection[str], *, empty: bool = False) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of "a,b" into names, for argparse's `type`; it refuses unknown names.

    It refuses an empty text, too, unless `empty`.
    """

    def names_of(text: str) -> tuple[str, ...]:
        names = tuple(text.split(",")) if text or not empty else ()
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
        return names

    return names_of
