"""The place of a lake, a folder of this machine or a prefix of an S3 bucket, and the file operations for both.

Tests substitute a `Disk` that can fail at each call. Data that must survive a power loss is synced before the next
step: first the file's bytes, then the folder that contains its name.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from broker.pipeline.faults import LakeRefused
from broker.pipeline.options import URL, local_path
from broker.pipeline.spark.log import cache_folder

SCHEMES: Final = frozenset({"s3", "s3a"})
UNSUPPORTED: Final = re.compile(r"[][^|%\\\x00-\x1f]")
BUFFER_BYTES: Final = 1 << 20  # without a buffer, the stream of deltalake does not accept Python's bytes
OPTION_PREFIX: Final = "AWS_"  # the prefix of an object store's environment variables


class Disk:
    """File operations of the operating system."""

    def create(self, path: Path) -> BinaryIO:
        """Open a new file for writing. Raises: FileExistsError."""
        return path.open("xb")

    def sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def sync_file(self, path: Path) -> None:
        """Sync the bytes of a file that another process or library wrote."""
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> bool:
        """Create a hard link to a file; return False if the target exists."""
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        return True

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> bool:
        """Remove a file; return whether it existed."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def read(self, path: Path) -> bytes:
        """Return the contents of a file. Raises: FileNotFoundError."""
        return path.read_bytes()

    def written_ms(self, path: Path) -> float | None:
        """Return when a file was written, in milliseconds since 1970, or None if there is no such file."""
        return path.stat().st_mtime * 1000 if path.exists() else None

    def list(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; empty if the folder does not exist."""
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
        except FileNotFoundError:
            return []

    def write_whole(self, path: Path, block: bytes) -> None:
        """Write a file atomically, creating its folder if needed; the file is on disk when this returns."""
        self.make_folder(path.parent)
        writing = path.with_name(f".{uuid.uuid4().hex}")
        try:
            with self.create(writing) as file:
                file.write(block)
                self.sync(file)
            self.rename(writing, path)
        except OSError:
            with suppress(OSError):
                self.remove(writing)
            raise
        self.sync_folder(path.parent)

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its missing parents, and sync the folders that contain their names."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for made in reversed(missing):
            made.mkdir(exist_ok=True)
            self.sync_folder(made.parent)


class ObjectDisk(Disk):
    """The operations on objects of a bucket, with paths below a URL. Links and renames are not supported."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        self.files: Any = PyFileSystem(DeltaStorageHandler(uri, dict(options)))

    def create(self, path: Path) -> BinaryIO:
        made: BinaryIO = self.files.open_output_stream(path.as_posix(), buffer_size=BUFFER_BYTES)
        return made

    def write_whole(self, path: Path, block: bytes) -> None:
        with self.create(path) as file:  # an object appears only when it is complete
            file.write(block)

    def remove(self, path: Path) -> bool:
        if not self.files.get_file_info(path.as_posix()).is_file:
            return False
        self.files.delete_file(path.as_posix())
        return True

    def read(self, path: Path) -> bytes:
        with self.files.open_input_file(path.as_posix()) as file:
            return bytes(file.read())

    def written_ms(self, path: Path) -> float | None:
        written = self.files.get_file_info(path.as_posix()).mtime
        return None if written is None else float(written.timestamp() * 1000)

    def list(self, folder: Path) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self.files.get_file_info(FileSelector(folder.as_posix(), allow_not_found=True))
        return sorted(info.base_name for info in found)

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing: closing a file makes it durable, and a bucket has no folders."""

    sync = sync_file = sync_folder = make_folder = _nothing


@dataclass(frozen=True, slots=True)
class LakePlace:
    """The place of a lake, for the driver and the workers.

    Shapes: `uri` is an absolute path or s3://bucket/prefix; `options` are those of `deltalake`, such as
        AWS_ENDPOINT_URL, and may contain secrets.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, name: str | Path | LakePlace) -> LakePlace:
        """Return the place of a path or a URL; the options for a bucket are read from the environment.

        Raises: LakeRefused for a place that cannot be a lake.
        """
        if isinstance(name, LakePlace):
            return name
        found = URL.match(str(name))
        if found is None or found[1].lower() not in SCHEMES:
            path = str(local_path(name).absolute())
            if found := UNSUPPORTED.search(path):
                raise LakeRefused(f"{path} cannot be a lake: Delta does not support the {found[0]!r} in its path")
            return cls(path)
        rest = str(name)[found.end() :].strip("/")
        if not rest:
            raise LakeRefused(f"{name} names no bucket: a lake is at s3://bucket/prefix")
        options = {name: value for name, value in os.environ.items() if name.startswith(OPTION_PREFIX)}
        return cls(f"s3://{rest}", options)

    def __str__(self) -> str:
        return self.uri

    @property
    def folder(self) -> Path | None:
        return None if self.uri.startswith("s3://") else Path(self.uri)

    @property
    def root(self) -> Path:
        return self.folder or Path()

    def disk(self) -> Disk:
        return Disk() if self.folder is not None else ObjectDisk(self.uri, self.options)

    @property
    def work_folder(self) -> Path:
        """The folder for locks and jobs: the lake itself, or for a bucket a folder in the user's cache."""
        if self.folder is not None:
            return self.folder
        digest = hashlib.sha256(f"{self.uri} {self.options.get('AWS_ENDPOINT_URL', '')}".encode()).hexdigest()[:8]
        return cache_folder(os.environ) / "lakes" / f"{quote(self.uri[5:], safe='')[:100]}-{digest}"
