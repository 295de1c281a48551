"""Checks of the machine, and of the installed broker."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from broker.amqp.errors import BrokerError
from broker.compiled import is_compiled, why_interpreted
from broker.doctor.finding import Diagnosis, bad, fine, warn
from broker.net.alarm_watch import watermarks
from broker.net.pending_clients import DESCRIPTORS_WANTED
from broker.parts.http import NEEDED
from broker.process_memory import memory_limit_bytes
from broker.settings import Settings
from broker.store.clock_file import ClockFile
from broker.store.files import Files

MIB: Final = 1 << 20
BASE_BYTES: Final = 96 * MIB  # the memory of a broker without messages
STORE_DESCRIPTORS: Final = 1024
SOMAXCONN_FILE: Final = Path("/proc/sys/net/core/somaxconn")
CPU_QUOTA_FILE: Final = Path("/sys/fs/cgroup/cpu.max")
UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC of adjtimex(2)
TIMEX_BYTES: Final = 512  # larger than any struct timex
STATUS_AT: Final = 40 if ctypes.sizeof(ctypes.c_long) == 8 else 20
CLOCK_AHEAD_MAX_MS: Final = 60_000


def machine_findings(settings: Settings) -> Iterator[Diagnosis]:
    """Check the machine and the installed broker. *Blocking.*"""
    yield _build()
    yield _http(settings)
    yield _descriptors(settings)
    yield _memory(settings)
    yield from _processor()
    yield _clock()
    yield from _clock_file(settings.server.data_dir)
    yield from _backlog(settings)


def _build() -> Diagnosis:
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
    if find_spec("uvloop") is None:
        return warn("build", f"{python} without uvloop", "pip install uvloop")
    if not is_compiled():
        advice = "install a C compiler; in a clone of SlotMQ: pip install --force-reinstall --no-deps . (or make run)"
        reason = why_interpreted()
        why = f" ({reason})" if reason else ""
        return warn("build", f"{python}, the hot modules are interpreted{why}", advice)
    return fine("build", f"{python}, the hot modules are compiled")


def _http(settings: Settings) -> Diagnosis:
    ports = [name for name in ("http", "metrics") if getattr(settings, name).enabled is not False]
    missing = [package for package in NEEDED if find_spec(package) is None]
    if not ports:
        return fine("http", "off")
    if not missing:
        return fine("http", "slotmq[manage] is installed")
    found, advice = f"no module {missing[0]}", "pip install '.[manage]' in a clone of SlotMQ"
    asked = any(getattr(settings, name).is_required for name in ports)
    return bad("http", found, advice) if asked else warn("http", f"{found}: no HTTP API and no metrics", advice)


def _descriptors(settings: Settings) -> Diagnosis:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    wanted = settings.server.connections_max + STORE_DESCRIPTORS
    found = f"{usable:,} file descriptors for server.connections_max = {settings.server.connections_max:,} clients"
    if usable < wanted:
        advice = f"ulimit -n {wanted}, or LimitNOFILE={wanted} in the unit of systemd"
        return warn("descriptors", found, advice)
    return fine("descriptors", found)


def _memory(settings: Settings) -> Diagnosis:
    limit_bytes = memory_limit_bytes()
    alarm_bytes = watermarks(settings)[0].limit_bytes
    resident_bytes = settings.memory.resident_max_bytes
    found = (
        f"{limit_bytes // MIB:,} MiB for the process, publishers are blocked above {alarm_bytes // MIB:,} MiB, "
        f"messages are paged out above {resident_bytes // MIB:,} MiB"
    )
    if alarm_bytes >= limit_bytes:
        advice = "lower memory.alarm_bytes or memory.alarm_ratio: the kernel would kill the broker first"
        return bad("memory", found, advice)
    if resident_bytes + BASE_BYTES > alarm_bytes:
        least = (alarm_bytes - BASE_BYTES) // MIB
        advice = f"lower memory.resident_max_bytes to {least} MiB" if least > 0 else "give the process more memory"
        return warn("memory", found, f"{advice}: otherwise the alarm is raised before messages are paged out")
    return fine("memory", found)


def _processor() -> Iterator[Diagnosis]:
    with suppress(OSError, ValueError):
        quota, period = CPU_QUOTA_FILE.read_text().split()
        if quota != "max" and int(quota) < int(period):
            found = f"the control group can use {int(quota) * 100 // int(period)} % of one processor"
            yield warn("processor", found, "give the broker a whole one: the limit stops it in each period")


def _clock() -> Diagnosis:
    try:
        timex = ctypes.create_string_buffer(TIMEX_BYTES)  # with modes = 0, adjtimex only reads
        state = ctypes.CDLL(None).adjtimex(timex)
    except (OSError, AttributeError):
        return fine("clock", "unknown: the system does not report whether it is synchronised")
    status = ctypes.c_int.from_buffer(timex, STATUS_AT).value
    if state >= 0 and status & UNSYNCHRONISED:
        advice = "run chrony or systemd-timesyncd: times to live and timestamps depend on it"
        return warn("clock", "nothing synchronises the system's clock", advice)
    return fine("clock", "synchronised" if state >= 0 else "unknown: the system does not report it")


def _clock_file(folder: Path) -> Iterator[Diagnosis]:
    try:
        state = ClockFile(Files(), folder).read()
    except BrokerError as error:
        yield bad("clock", str(error), "restore the file `clock` from a backup")
        return
    if state.ahead_ms > CLOCK_AHEAD_MAX_MS:
        found = f"the system's clock was set back: the broker's is {state.ahead_ms // 1000:,} s ahead"
        yield warn("clock", found, "correct the system's clock; delays and times to live follow the broker's")


def _backlog(settings: Settings) -> Iterator[Diagnosis]:
    with suppress(OSError, ValueError):
        limit = int(SOMAXCONN_FILE.read_text())
        wanted = settings.server.backlog
        found = f"net.core.somaxconn = {limit} for server.backlog = {wanted}"
        if limit < wanted:
            yield warn("kernel", found, f"sysctl -w net.core.somaxconn={wanted}: else bursts of clients are refused")
        else:
            yield fine("kernel", found)
