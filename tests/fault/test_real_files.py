"""Real files: errors become StoreFailed, and the files in memory behave alike."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from broker.store.damage import FolderBusy, StoreFailed
from broker.store.direct_writer import BUFFER_BYTES, DirectWriter
from broker.store.files import BLOCKS_MAX, PAGE_BYTES, WRITE_MAX_BYTES, Files, aligned_memory
from broker.store.memory_files import MemoryFiles
from broker.store.store import VhostStore
from tests.deadline import DEADLINE_S
from tests.fault.store_model import StoreModel


def story(files: Files, folder: Path) -> list[object]:
    """Do what the store does with files and return everything observable."""
    seen: list[object] = [files.exists(folder / "deep")]
    files.make_folder(folder / "deep" / "er")
    files.make_folder(folder / "deep")
    seen.append(files.exists(folder / "deep" / "er"))
    file = files.open(folder / "deep" / "b", create=True)
    file.write_at(5, b"hello")
    file.write_at(0, b"abc")
    seen += [file.size(), file.read_at(0, 100), file.read_at(3, 4), file.read_at(100, 5), file.read_at(8, 0)]
    seen += [file.read_cached(0, 100), file.read_cached(3, 4)]
    file.allocate(10, 8)
    seen.append(file.size())
    file.truncate(7)
    file.sync()
    file.drop_cache()
    file.truncate(9)
    seen.append(file.read_at(0, 100))
    again = files.open(folder / "deep" / "b", write=True, create=True)
    again.write_at(0, b"X")
    seen.append(again.write_blocks_at(1, [b"%d" % number for number in range(2 * BLOCKS_MAX + 1)]))
    again.write_zeros(3, 5)
    seen += [file.read_at(0, 10_000), again.write_blocks_at(7, [])]
    again.truncate(9)
    seen.append(file.read_at(0, 3))
    file.close()
    again.close()
    files.rename(folder / "deep" / "b", folder / "deep" / "a")
    files.open(folder / "deep" / "c", create=True).close()
    files.rename(folder / "deep" / "a", folder / "deep" / "c")
    seen += [files.list(folder / "deep"), files.read(folder / "deep" / "c"), files.size(folder / "deep" / "c")]
    seen.append(files.link(folder / "deep" / "c", folder / "deep" / "er" / "linked"))
    files.remove(folder / "deep" / "c")
    files.remove(folder / "deep" / "c")
    seen.append(files.read(folder / "deep" / "er" / "linked"))
    files.remove_tree(folder / "deep" / "er")
    files.remove_tree(folder / "deep" / "er")
    files.sync_folder(folder / "deep")
    files.lock_folder(folder).close()
    seen += [files.list(folder / "deep"), files.free_bytes(folder) > 0, len(files.token(16))]
    seen.append(files.token(16) != files.token(16))
    for refused in (
        lambda: files.open(folder / "none"),
        lambda: files.open(folder / "none" / "none", create=True),
        lambda: files.read(folder / "none"),
        lambda: files.size(folder / "none"),
        lambda: files.list(folder / "none"),
        lambda: files.sync_folder(folder / "none"),
        lambda: files.rename(folder / "none", folder / "some"),
        lambda: files.link(folder / "none", folder / "some"),
    ):
        with pytest.raises(StoreFailed, match="No such file or directory") as caught:
            refused()
        seen.append(str(caught.value).replace(str(folder), ""))
    return seen


def test_both_kinds_of_files_do_the_same(tmp_path: Path) -> None:
    """The files in memory behave as the operating system does."""
    twin = MemoryFiles()
    twin.make_folder(Path("/somewhere"))
    assert story(Files(), tmp_path) == story(twin, Path("/somewhere"))


@pytest.mark.parametrize(
    ("offset", "size", "had", "read"),
    [
        (0, 10, 10, b"0123456789"),
        (2, 3, 3, b"234"),
        (2, 3, 2, None),
        (2, 3, 0, None),
        (2, 3, None, None),
        (7, 9, 3, b"789"),  # up to the end of the file
        (7, 9, 2, None),
        (10, 1, 0, None),
    ],
)
def test_what_the_page_cache_does_not_have_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, size: int, had: int | None, read: bytes | None
) -> None:
    """Bytes are returned without the disk only if the page cache has all of them: `had` says how many."""
    content = b"0123456789"
    flags_used: list[int] = []

    def preadv(_descriptor: int, blocks: list[bytearray], at: int, flags: int) -> int:
        flags_used.append(flags)
        if had is None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        blocks[0][:had] = content[at : at + had]
        return had

    file = Files().open(tmp_path / "file", write=True, create=True)
    file.write_at(0, content)
    assert file.read_cached(0, 10) in (content, None)  # the kernel decides, and some file systems cannot tell
    monkeypatch.setattr(os, "preadv", preadv)
    assert file.read_cached(offset, size) == read
    assert flags_used == [os.RWF_NOWAIT]
    file.close()
    monkeypatch.undo()
    assert file.read_cached(0, 1) is None


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot read from the page cache alone")
def test_a_part_of_what_was_wanted_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page cache may have the first bytes alone: that is no answer, unless the file ends there."""
    file = Files().open(tmp_path / "file", write=True, create=True)
    file.write_at(0, b"0123456789")
    real = os.preadv
    for cached in range(11):

        def preadv(number: int, buffers: list[bytearray], at: int, flags: int, end: int = cached) -> int:
            if at >= end:
                raise BlockingIOError
            part = bytearray(min(len(buffers[0]), end - at))
            done = real(number, [part], at)
            buffers[0][:done] = part[:done]
            return done

        monkeypatch.setattr(os, "preadv", preadv)
        for at in range(10):
            for size in (1, 5, 9, 10, 20):
                wanted = b"0123456789"[at : at + size]
                assert file.read_cached(at, size) == (wanted if at + len(wanted) <= cached else None)
    file.close()


def test_a_full_disk_is_a_failed_store() -> None:
    """ENOSPC is StoreFailed, with the path and the operating system's message."""
    file = Files().open(Path("/dev/full"), write=True)
    with pytest.raises(StoreFailed, match="/dev/full: No space left on device"):
        file.write_at(0, b"x")
    with pytest.raises(StoreFailed, match="/dev/full: No space left on device"):
        file.write_blocks_at(0, [b"x", b"y"])
    file.write_zeros(0, 8)  # they are not needed
    file.close()
    with pytest.raises(StoreFailed, match="Bad file descriptor"):
        file.write_zeros(0, 8)


def test_a_short_write_of_blocks_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may write less than it was given, anywhere between two bytes."""
    file = Files().open(tmp_path / "file", create=True)
    blocks = [b"abc", b"", b"defg", b"h"]
    for size in range(9):
        monkeypatch.setattr(os, "pwritev", lambda number, some, at, n=size: os.pwrite(number, b"".join(some)[:n], at))
        assert file.write_blocks_at(5 + 8 * size, blocks) == 13 + 8 * size
    assert file.read_at(0, 100) == bytes(5) + b"abcdefgh" * 9
    file.close()


def test_one_call_writes_a_mebibyte_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large block is written in parts, and small blocks are written together."""
    calls: list[int] = []

    def counted(write: Callable[[int, Any, int], int]) -> Callable[[int, Any, int], int]:
        def call(descriptor: int, content: Any, offset: int) -> int:
            calls.append(write(descriptor, content, offset))
            return calls[-1]

        return call

    monkeypatch.setattr(os, "pwrite", counted(os.pwrite))
    monkeypatch.setattr(os, "pwritev", counted(os.pwritev))
    file = Files().open(tmp_path / "file", create=True)
    whole = WRITE_MAX_BYTES
    for sizes, expected in (
        ([2 * whole + 1], [whole, whole, 1]),
        ([whole], [whole]),
        ([whole // 2, whole // 2, 1, 2], [whole, 3]),
        ([1, 3 * whole, 1], [1, whole, whole, whole, 1]),
        ([1] * (BLOCKS_MAX + 2), [BLOCKS_MAX, 2]),
    ):
        calls.clear()
        blocks = [bytes((number % 256,)) * size for number, size in enumerate(sizes, 1)]
        assert file.write_blocks_at(9, blocks) == 9 + sum(sizes)
        assert calls == expected
        assert file.read_at(9, sum(sizes)) == b"".join(blocks)
    file.close()


@pytest.mark.parametrize("files", [Files(), MemoryFiles()], ids=["real", "memory"])
@pytest.mark.parametrize("refused", [False, True])
def test_blocks_of_any_size_pass_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Files, refused: bool
) -> None:
    """The direct writer puts the bytes where `write_blocks_at` puts them, also when the system has no direct writes."""
    files.make_folder(tmp_path)
    if refused:
        control = fcntl.fcntl

        def refuse(descriptor: int, command: int, argument: int) -> int:
            if argument & getattr(os, "O_DIRECT", 0):
                raise OSError(errno.EINVAL, "Invalid argument")
            return control(descriptor, command, argument)

        monkeypatch.setattr(fcntl, "fcntl", refuse)
    random = Random(1)
    written = files.open(tmp_path / "direct", create=True)
    expected = files.open(tmp_path / "cached", create=True)
    writer = DirectWriter()
    end = 0
    page, whole = PAGE_BYTES, BUFFER_BYTES
    for sizes in (
        [page - 1],
        [1],
        [page],
        [100, 2 * page, 7],
        [whole - end % page],
        [3 * whole + 5, 0, 9, whole],
        [random.randint(0, 3 * page) for _ in range(100)],
        [],
    ):
        blocks = [random.randbytes(size) for size in sizes]
        assert writer.write_direct(written, end, blocks) == expected.write_blocks_at(end, blocks)
        end += sum(sizes)
        written.sync()
        assert written.size() == end
        assert written.read_at(0, end) == expected.read_at(0, end)
    if refused and type(files) is Files:
        assert not written.direct
    written.close()
    expected.close()


def test_a_full_disk_refuses_pages() -> None:
    """ENOSPC in the middle of a large batch is a failed store."""
    file = Files().open(Path("/dev/full"), write=True)
    pages = aligned_memory(PAGE_BYTES)
    with pytest.raises(StoreFailed, match="/dev/full: No space left on device"):
        file.write_pages_at(0, pages)
    file.close()


def test_a_lock_holds_against_another_process(tmp_path: Path) -> None:
    """While one process holds the lock, another one fails because the folder is busy; the end of the first frees it."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "import sys; from pathlib import Path; from broker.store.files import Files;"
                f"lock = Files().lock(Path({str(tmp_path / 'lock')!r})); print('held', flush=True); sys.stdin.read()"
            ),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FolderBusy, match=str(tmp_path)):
            Files().lock(tmp_path / "lock")
    finally:
        holder.communicate(timeout=DEADLINE_S)
    lock = Files().lock(tmp_path / "lock")
    with pytest.raises(FolderBusy):
        Files().lock(tmp_path / "lock")
    lock.close()


def test_a_folder_is_locked_itself(tmp_path: Path) -> None:
    """Whatever happens to the files in a folder, its lock is exclusive until it is released."""
    lock = Files().lock_folder(tmp_path)
    with pytest.raises(FolderBusy, match=f"^{tmp_path}: another broker"):
        Files().lock_folder(tmp_path)
    lock.close()
    Files().lock_folder(tmp_path).close()


def test_a_file_system_that_locks_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be locked stays unlocked; a file that cannot be locked raises StoreFailed."""

    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    Files().lock_folder(tmp_path).close()
    with pytest.raises(StoreFailed, match="Bad file descriptor"):
        Files().lock(tmp_path / "lock")


@pytest.mark.parametrize("can", [None, errno.EOPNOTSUPP])
def test_room_without_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: int | None) -> None:
    """Without fallocate in the system or the file system, space is reserved by writing it."""
    if can is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:

        def refuse(_descriptor: int, _offset: int, _size: int) -> None:
            raise OSError(can, "Operation not supported")

        monkeypatch.setattr(os, "posix_fallocate", refuse)
    file = Files().open(tmp_path / "reserve", create=True)
    file.allocate(0, 100_000)
    file.allocate(100_000, 4096)
    file.close()
    assert (tmp_path / "reserve").stat().st_size == 104_096
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 104_096


@pytest.mark.parametrize("seed", range(5))
def test_a_store_works_on_them(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store model of the memory tests runs on real files, and a store opened again has all its data."""
    monkeypatch.setattr("tests.fault.store_model.FOLDER", tmp_path / "vhost")
    model = StoreModel(Files(), seed)
    for _ in range(3):
        model.open()
        if model.recovered.topology:
            model.verify()
            model.adopt()
        model.work(60)
        model.commit()
        model.store.close()
    model.open()
    model.verify()
    assert isinstance(model.store, VhostStore)
    model.adopt()
    model.stop()
    assert model.open().clean
    model.store.close()
