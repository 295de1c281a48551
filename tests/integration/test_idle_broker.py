"""The cost of an idle broker: how often something wakes its process."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess

WAKE_UPS_PER_S = 25  # 16 looks a second at clients, memory, disk and clock, and a few that fall between
SETTLED_S, WATCHED_S = 1.0, 2.0


@pytest.mark.skipif(sys.platform != "linux", reason="counts context switches in /proc")
def test_an_idle_broker_is_rarely_woken(broker_process: BrokerProcess) -> None:
    """A broker without clients runs its periodic looks together: each wake-up finds cold caches."""
    process = broker_process.start().process
    assert process is not None
    time.sleep(SETTLED_S)  # the threads of the start end
    before = waits(process.pid)
    time.sleep(WATCHED_S)
    assert 0 < waits(process.pid) - before <= WAKE_UPS_PER_S * WATCHED_S


def waits(pid: int) -> int:
    """Return how often the threads of a process have waited."""
    told = "".join([path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")])
    return sum(map(int, re.findall(r"\nvoluntary_ctxt_switches:\s*(\d+)", told)))
