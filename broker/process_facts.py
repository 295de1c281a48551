"""What a running process says about itself."""

from __future__ import annotations

import os
import time
from typing import Any

from broker import __version__
from broker.compiled import kind
from broker.net.descriptors import descriptors_max
from broker.process_memory import open_descriptors, resident_bytes

__all__ = ["process_facts"]


def process_facts(began_s: float) -> dict[str, Any]:
    """Return version, process and resources of a broker that began at that monotonic time."""
    return {
        "version": __version__,
        "modules": kind(),
        "pid": os.getpid(),
        "uptime_s": int(time.monotonic() - began_s),
        "resident_bytes": resident_bytes(),
        "descriptors": open_descriptors(),
        "descriptors_max": descriptors_max(),
    }
