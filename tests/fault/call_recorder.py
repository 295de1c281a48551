"""Records the real file calls of a broker process; a test can make its log writes fail halfway.

`observed` makes a `BrokerProcess` start with the recorder: a module `sitecustomize` wraps the functions of `os`
before the broker is imported. Each call becomes one line of JSON in a file, in the order in which the calls returned.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.broker_process import PACKAGE, PROJECT, BrokerProcess

MARKER: Final = re.compile(rb"<<[^<>]{1,40}>>")
"""The marker in a message body by which a test recognizes the write that contains the message."""
LOG: Final = "/log/"
SYNC_S: Final = 0.02  # each sync takes at least this long: a confirm that does not wait for it arrives earlier

Call = Mapping[str, Any]


class CallRecorder:
    """Wraps the file calls of this process. Shapes: for ``breaks`` see `observed`."""

    def __init__(self, trace: Path, breaks: str) -> None:
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._breaks = breaks
        self._broken = False
        self._lock = threading.Lock()
        self._paths: dict[int, str] = {}
        self._real: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        """Install the recorder around the functions that the store calls."""
        for name in ("open", "close", "pread", "pwrite", "pwritev", "ftruncate", "fsync", "fdatasync", "posix_fadvise"):
            if hasattr(os, name):
                self._real[name] = getattr(os, name)
                setattr(os, name, getattr(self, f"_{name}", self._around(name)))
        self._real["fcntl"] = fcntl.fcntl
        fcntl.fcntl = self._fcntl  # type: ignore[assignment]

    def _around(self, name: str) -> Callable[..., Any]:
        def call(descriptor: int, *arguments: Any) -> Any:
            if name in ("fsync", "fdatasync"):
                self._note(f"{name} begins", descriptor)
                time.sleep(SYNC_S)
            result = self._real[name](descriptor, *arguments)
            self._note(name, descriptor, *(argument for argument in arguments if isinstance(argument, int)))
            return result

        return call

    def _open(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        descriptor: int = self._real["open"](path, flags, *arguments, **options)
        self._paths[descriptor] = os.fspath(path)
        self._note("create" if flags & os.O_CREAT else "open", descriptor)
        return descriptor

    def _close(self, descriptor: int) -> None:
        self._paths.pop(descriptor, None)
        self._real["close"](descriptor)

    def _fcntl(self, descriptor: int, command: int, argument: Any = 0) -> Any:
        if command == fcntl.F_SETFL:
            self._note("F_SETFL", descriptor, argument)
        return self._real["fcntl"](descriptor, command, argument)

    def _pwrite(self, descriptor: int, block: Any, offset: int) -> int:
        view = memoryview(block)
        if LOG in self._paths.get(descriptor, "") and len(view) > 1:
            if self._broken:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._breaks == "always":
                view = view[: len(view) // 2]
            elif self._breaks and os.path.exists(self._breaks):
                self._broken = True
                view = view[: len(view) // 2]
        written: int = self._real["pwrite"](descriptor, view, offset)
        markers = [found.decode() for found in MARKER.findall(view[:written])]
        self._note("pwrite", descriptor, offset, written, markers=markers)
        return written

    def _pwritev(self, descriptor: int, blocks: list[bytes], offset: int) -> int:
        return self._pwrite(descriptor, b"".join(blocks), offset)

    def _note(self, name: str, descriptor: int, *arguments: int, **more: Any) -> None:
        path = self._paths.get(descriptor)
        if path is None:
            return
        call = {"call": name, "path": path, "descriptor": descriptor, "arguments": arguments, **more}
        with self._lock:
            self._real.get("write", os.write)(self._trace, json.dumps(call).encode() + b"\n")


def observed(process: BrokerProcess, *, breaks: str = "") -> Callable[[], list[Call]]:
    """Record the broker at each later start; return a function that returns the calls since the last start.

    Shapes: with ``breaks`` "always", each write to the log writes only half of its bytes. If it is a path, the first
    write after that file exists writes half, and all later ones fail with ENOSPC.
    """
    site = process.folder.parent / "recorded"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        "import os\nfrom pathlib import Path\nfrom tests.fault.call_recorder import CallRecorder\n"
        f"CallRecorder(Path({str(site)!r}, str(os.getpid())), {breaks!r}).install()\n"
    )
    process.environment["PYTHONPATH"] = os.pathsep.join(map(str, (site, PACKAGE, PROJECT)))

    def calls() -> list[Call]:
        trace = site / str(process.running.pid)
        return [json.loads(line) for line in trace.read_text().splitlines()]

    return calls


def synced(calls: list[Call], marker: str) -> str:
    """Return why the bytes with a marker are not on disk yet, or an empty string if they are."""
    at, write = next(
        ((at, one) for at, one in enumerate(calls) if one["call"] == "pwrite" and marker in one["markers"]), (0, None)
    )
    if write is None:
        return "it was not written"
    path, descriptor = write["path"], write["descriptor"]
    if not _whole(calls[at:], ("fdatasync", "fsync"), path, descriptor):
        return f"{path} was not synced after the write"
    made = max(at for at, one in enumerate(calls[:at]) if one["call"] == "create" and one["path"] == path)
    if not _whole(calls[made:], ("fsync",), str(Path(path).parent)):
        return f"the folder of {path} was not synced after the file was created"
    return ""


def _whole(calls: list[Call], names: tuple[str, ...], path: str, descriptor: int | None = None) -> bool:
    """Return whether a call of one of the names began and ended within these calls."""
    begun = False
    for one in calls:
        if one["path"] == path and descriptor in (None, one["descriptor"]):
            begun |= one["call"] in [f"{name} begins" for name in names]
            if begun and one["call"] in names:
                return True
    return False
