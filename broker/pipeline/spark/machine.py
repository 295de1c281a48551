"""The parts of this machine that Spark needs: packages, memory, space for its temporary files, a shell."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

__all__ = ["PACKAGES", "Machine", "look", "memory_bytes"]

PACKAGES: Final = ("pyspark", "pyarrow", "deltalake", "pandas", "numpy")
MEMORY_NEEDED_BYTES: Final = 2 << 30  # the JVM's gigabyte, a driver and two workers
SPACE_NEEDED_BYTES: Final = 1 << 30
PANDAS_BELOW: Final = 3


@dataclass(frozen=True, slots=True)
class Machine:
    """The findings. Shapes: a package that is not installed has no version; memory is None if unknown."""

    python: str
    cores: int
    packages: dict[str, str | None]
    memory_bytes: int | None
    temporary: str
    temporary_bytes: int
    shell: str | None

    @property
    def missing(self) -> list[str]:
        """The packages of the extra that are not installed."""
        return [name for name, found in self.packages.items() if found is None]

    @property
    def warnings(self) -> list[str]:
        """The problems that may occur although Spark starts."""
        found = []
        if self.memory_bytes is not None and self.memory_bytes < MEMORY_NEEDED_BYTES:
            found.append(f"{gib(self.memory_bytes)} of memory is little: Spark wants {gib(MEMORY_NEEDED_BYTES)}")
        if self.temporary_bytes < SPACE_NEEDED_BYTES:
            found.append(
                f"{gib(self.temporary_bytes)} is little for what Spark writes to {self.temporary}; "
                "SPARK_LOCAL_DIRS names another place"
            )
        pandas = self.packages.get("pandas") or "0"
        if int(pandas.partition(".")[0]) >= PANDAS_BELOW:
            found.append(f'pandas {pandas} is newer than PySpark knows: pip install "pandas<3"')
        return found


def look() -> Machine:
    """Return the findings of this machine."""
    temporary = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or tempfile.gettempdir()
    return Machine(
        python=platform.python_version(),
        cores=os.cpu_count() or 1,
        packages={name: _version(name) for name in PACKAGES},
        memory_bytes=_available_bytes(),
        temporary=temporary,
        temporary_bytes=_free_bytes(temporary),
        shell=shutil.which("bash"),
    )


def _free_bytes(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def gib(size_bytes: int) -> str:
    """Return a size as text."""
    return f"{size_bytes / (1 << 30):.1f} GiB"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _available_bytes() -> int | None:
    with suppress(OSError):
        return memory_bytes(Path("/proc/meminfo").read_text(encoding="ascii"), _cgroup_left_bytes())
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _cgroup_left_bytes() -> int | None:
    """Return how much memory a container may still take, None without a limit."""
    folder = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max" is no number
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    return None


def memory_bytes(meminfo: str, left_bytes: int | None) -> int | None:
    """Return how much memory new programs may take, by the kernel's figures."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            available = int(value.split()[0]) * 1024
            return available if left_bytes is None else min(available, max(0, left_bytes))
    return left_bytes
