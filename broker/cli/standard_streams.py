"""The three standard streams, which the parent process may have closed."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn


def open_standard_streams() -> None:
    """Open the null device for each closed standard stream; let standard output escape what it cannot encode.

    Without the null device, the next opened file or socket would become a standard stream, and receive its output.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            break
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115 - open until the process ends
            setattr(sys, name, stream)
        elif name == "stdout" and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # not UnicodeEncodeError


def exit_at_once(code: int) -> NoReturn:
    """Exit without the interpreter's cleanup, after an output stream could not be written.

    The cleanup would flush the stream again, which fails (exit code 120) or blocks forever.
    """
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)
