"""Checks of the data folder and its disk: access, file system, free space, and the duration of a sync."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.doctor.finding import Diagnosis, bad, fine, warn
from broker.settings import Settings
from broker.store.damage import LinkedFolder, StoreFailed
from broker.store.data_folder import OPEN_TO_OTHERS, WRITABLE, check_links
from broker.store.files import Files

SYNCS: Final = 32
BLOCK: Final = bytes(4096)
SLOW_S: Final = 0.020  # a publisher that waits for each confirm sends at most 50 messages a second
UNREAL_S: Final = 0.000_020  # no device syncs that fast
OTHERS_MODE: Final = 0o077
MOUNTS: Final = Path("/proc/mounts")
MEMORY: Final = ("tmpfs", "ramfs")
NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")
LAYERED: Final = ("overlay", "aufs")
MIB: Final = 1 << 20


def folder_findings(settings: Settings) -> Iterator[Diagnosis]:
    """Check the data folder, or its nearest existing parent before the first start. *Blocking.*"""
    folder = settings.server.data_dir.absolute()
    if folder.exists() and not folder.is_dir():
        yield bad("data folder", f"{folder} is not a folder", "change server.data_dir")
        return
    there = next(one for one in (folder, *folder.parents) if one.is_dir())
    if not os.access(there, os.W_OK | os.X_OK):
        owner = there.stat().st_uid
        yield bad(
            "data folder",
            f"user {os.geteuid()} cannot write {there}, which belongs to user {owner}",
            f"run as that user, or: chown -R {os.geteuid()} {there}",
        )
        return
    if there == folder:
        mode = folder.stat().st_mode & 0o777
        linked = _link(folder)
        if linked:
            yield bad("data folder", linked, "move its target here, or mount it here")
        if mode & WRITABLE:
            yield warn("data folder", f"{folder} has mode {mode:o}: {OPEN_TO_OTHERS}", f"chmod 700 {folder}")
        elif mode & OTHERS_MODE:
            others = f"{folder} has mode {mode:o}: other users can read messages and password hashes"
            yield warn("data folder", others, f"chmod 700 {folder}")
        elif not linked:
            yield fine("data folder", f"{folder}, for its owner only")
    else:
        yield fine("data folder", f"{folder} is created at the first start")
    yield _kind(there)
    yield _space(there, settings.store.disk_free_min_bytes)
    yield _speed(there)


def _link(folder: Path) -> str:
    """Return the error for a symbolic link in a data folder, or an empty string if there is none."""
    try:
        check_links(Files(), folder)
    except LinkedFolder as found:
        return str(found)
    except StoreFailed:
        pass  # other checks report that the folder cannot be read
    return ""


def _kind(folder: Path) -> Diagnosis:
    kind = file_system(folder)
    if kind in MEMORY:
        return warn("file system", f"{kind}: the data is in memory", "put server.data_dir on a disk")
    if kind in NETWORK:
        return warn("file system", f"{kind}: a network file system", "put server.data_dir on a local disk")
    if kind in LAYERED:
        return warn("file system", f"{kind}: deleted with the container", "mount a volume at server.data_dir")
    return fine("file system", kind or "unknown")


def file_system(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system of a folder, or an empty string if the system does not report it."""
    longest, kind = -1, ""
    with suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            _device, point, type_, *_rest = line.split(" ")
            point = point.encode().decode("unicode_escape")  # a space is \040
            if folder.resolve().is_relative_to(point) and len(point) >= longest:
                longest, kind = len(point), type_
    return kind


def _space(folder: Path, least_bytes: int) -> Diagnosis:
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    found = f"{free_bytes // MIB:,} MiB free, publishers are blocked below {least_bytes // MIB:,} MiB"
    if free_bytes < least_bytes:
        return bad("disk space", found, "free some space, or lower store.disk_free_min_bytes")
    if free_bytes < 4 * least_bytes:
        return warn("disk space", found, "free some space, or take a larger disk")
    return fine("disk space", found)


def _speed(folder: Path) -> Diagnosis:
    try:
        return sync_finding(*sync_times_s(folder))
    except OSError as error:
        reason = error.strerror or str(error)
    except StoreFailed as failed:
        reason = failed.reason
    return bad("disk speed", f"{folder} cannot be written: {reason}", "check the disk and its mount options")


def sync_times_s(folder: Path) -> list[float]:
    """Return how long small synced writes take, one duration for each. Raises: OSError, StoreFailed."""
    times_s = []
    with tempfile.NamedTemporaryFile(dir=folder) as made:
        file = Files().open(Path(made.name), write=True)
        try:
            for number in range(SYNCS):
                began_s = time.perf_counter()
                file.write_at(number * len(BLOCK), BLOCK)
                file.sync()
                times_s.append(time.perf_counter() - began_s)
        finally:
            file.close()
    return times_s


def sync_finding(*times_s: float) -> Diagnosis:
    """Return the finding for the durations of syncs; each confirm waits for one sync."""
    median_s, longest_s = statistics.median(times_s), max(times_s)
    found = f"a sync takes {median_s * 1000:.2f} ms, at most {longest_s * 1000:.1f} ms ({len(times_s)} measured)"
    if median_s > SLOW_S:
        return warn("disk speed", f"{found}: each confirm waits for one", "use a faster disk, an SSD for example")
    if median_s < UNREAL_S:
        hint = "confirmed messages survive a crash of the broker, but perhaps not a power loss: check the disk's cache"
        return warn("disk speed", f"{found}: no disk is that fast", hint)
    return fine("disk speed", found)
