"""The physical limit of a confirm that waits for the disk: append and sync the same batches, without a broker."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path

from bench.meter import Figures

_FILE_BYTES = 256 << 20  # then start over: a log's segments are finite, too


def append_limit(folder: Path, record_bytes: int, batch: int, seconds: float) -> Figures:
    """Return messages per second and CPU time per message of a bare append + fdatasync loop on the disk of `folder`."""
    block = bytes(record_bytes * batch)
    batches, written = 0, 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as log:
        used = _cpu_s()
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            if written > _FILE_BYTES:
                log.truncate(0)
                log.seek(0)
                written = 0
            written += log.write(block)
            os.fdatasync(log.fileno())
            batches += 1
        took_s = time.monotonic() - begun
        cpu_s = _cpu_s() - used
    messages = batches * batch
    return {"per_s": messages / took_s, "cpu_us": cpu_s / messages * 1e6, "batch": batch}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
