"""Runs a command, and writes the resources of its whole process tree as JSON, the last line of standard error.

A process that outlives the command, such as a JVM, becomes a child of this process, which waits for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux
_LEFT_S = 0.2  # a process that lives longer is a server, and is not waited for


def main() -> int:
    """Return the command's exit code."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    begun = time.perf_counter()
    code = subprocess.run(sys.argv[1:], check=False).returncode
    wall_s = time.perf_counter() - begun
    last = time.monotonic() + _LEFT_S
    while time.monotonic() < last:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                last = time.monotonic() + _LEFT_S
                continue
        except ChildProcessError:
            break
        time.sleep(_LEFT_S / 20)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime}), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
