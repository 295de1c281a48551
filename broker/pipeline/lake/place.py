"""The place of a lake: a folder of this machine, or a prefix of an S3 bucket."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from broker.pipeline.faults import LakeRefused
from broker.pipeline.lake.disk import Disk, ObjectDisk
from broker.pipeline.options import URL, local_path
from broker.pipeline.spark.user_folder import cache_folder

__all__ = ["OPTIONS", "SCHEMES", "LakePlace"]

SCHEMES: Final = frozenset({"s3", "s3a"})
ODD: Final = re.compile(r"[][^|%\\\x00-\x1f]")
OPTIONS: Final = "AWS_"  # the prefix of an object store's environment variables


@dataclass(frozen=True, slots=True)
class LakePlace:
    """The place of a lake, for drivers and workers.

    Shapes: `uri` is an absolute path or s3://bucket/prefix; `options` are those of `deltalake`, such as
        AWS_ENDPOINT_URL, and may hold secrets.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, name: str | Path | LakePlace, given: Mapping[str, str] | None = None) -> LakePlace:
        """Return the place of a path or a URL, with the given options and those of this process's environment.

        Raises: LakeRefused for a place that cannot hold a lake.
        """
        if isinstance(name, LakePlace):
            return name
        found = URL.match(str(name))
        if found is None or found[1].lower() not in SCHEMES:
            path = str(local_path(name).absolute())
            if odd := ODD.search(path):
                raise LakeRefused(f"{path} can be no lake: the Delta package fails over the {odd[0]!r} in its path")
            return cls(path)
        rest = str(name)[found.end() :].strip("/")
        if not rest:
            raise LakeRefused(f"{name} names no bucket: a lake is at s3://bucket/prefix")
        found_options = {**os.environ, **{name.upper(): value for name, value in (given or {}).items()}}
        options = {name: value for name, value in found_options.items() if name.startswith(OPTIONS)}
        return cls(f"s3://{rest}", options)

    def __str__(self) -> str:
        return self.uri

    @property
    def folder(self) -> Path | None:
        """The folder, None for a bucket."""
        return None if self.uri.startswith("s3://") else Path(self.uri)

    @property
    def root(self) -> Path:
        """The root of paths for `disk`."""
        return self.folder or Path()

    def disk(self) -> Disk:
        """Return the file calls for this place."""
        return Disk() if self.folder is not None else ObjectDisk(self.uri, self.options)

    def work_folder(self) -> Path:
        """Return the folder for locks and jobs: the lake itself, or for a bucket a folder of this user."""
        if self.folder is not None:
            return self.folder
        digest = hashlib.sha256(f"{self.uri} {self.options.get('AWS_ENDPOINT_URL', '')}".encode()).hexdigest()[:8]
        return cache_folder(os.environ) / "lakes" / f"{quote(self.uri[5:], safe='')[:100]}-{digest}"

    def table_uri(self, name: str) -> str:
        """Return the URI of a table of the lake."""
        return f"{self.uri}/{name}"
