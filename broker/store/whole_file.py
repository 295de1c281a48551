"""A small file that is replaced as a whole, so that a crash leaves the old content or the new one."""

from __future__ import annotations

from pathlib import Path

from broker.store.files import Files


def replace_file(files: Files, path: Path, block: bytes) -> None:
    """Replace the content of a file; on return the content and the name of the file are on disk.

    Raises: StoreFailed, after which the next start finds the old content or the new one.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    files.remove(unfinished)  # after a failed sync, no later one writes the pages of that file
    file = files.open(unfinished, create=True)
    try:
        file.write_at(0, block)
        file.sync()
    finally:
        file.close()
    files.rename(unfinished, path)
    files.sync_folder(path.parent)
