"""The three standard streams, which the parent process may have closed."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn


def take_standard_streams() -> None:
    """Put the null device where a standard stream was closed.

    Otherwise the next file or socket would become a standard stream, and prints would go to it.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            break
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115 - for the process's life
            setattr(sys, name, stream)
        elif name == "stdout" and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show must not fail


def leave(code: int) -> NoReturn:
    """End the process at once, when standard error cannot be written.

    At its end the interpreter would flush its buffer, which fails again (exit code 120) or waits forever.
    """
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)
