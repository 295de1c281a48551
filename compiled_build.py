"""Compiles the hot modules with mypyc: `python compiled_build.py FOLDER` writes a package beside its sources.

The sources stay unchanged and also run interpreted. The compiled modules are those that every message passes through,
on its way in, out, to disk and back, chosen by measurement: docs/performance.md, docs/topic-index.md. Compiling needs
the extra `compile`, the package's own dependencies, a C compiler and Python's header files. A wheel is built from the
sources when one of the last two is not there; any other failure ends the build.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PACKAGE: Final = "broker"
PLUGIN: Final = "pytest_slotmq.py"
COMPILED: Final = (
    "broker/amqp/channel.py",
    "broker/amqp/channel_moves.py",
    "broker/amqp/codec.py",
    "broker/amqp/connection.py",
    "broker/amqp/connection_limits.py",
    "broker/amqp/control.py",
    "broker/amqp/content_header.py",
    "broker/amqp/framing.py",
    "broker/amqp/handshake.py",
    "broker/amqp/header_facts.py",
    "broker/amqp/output.py",
    "broker/amqp/publish_run.py",
    "broker/amqp/tables.py",
    "broker/amqp/wire.py",
    "broker/routing/binding.py",
    "broker/routing/bundle.py",
    "broker/routing/cache.py",
    "broker/routing/destinations.py",
    "broker/routing/dialect.py",
    "broker/routing/direct_exchange.py",
    "broker/routing/exchange.py",
    "broker/routing/exchange_tally.py",
    "broker/routing/fanout_exchange.py",
    "broker/routing/hash_exchange.py",
    "broker/routing/headers_exchange.py",
    "broker/routing/index.py",
    "broker/routing/key_trie.py",
    "broker/routing/listeners.py",
    "broker/routing/pattern.py",
    "broker/routing/route.py",
    "broker/routing/route_cache.py",
    "broker/routing/topic_exchange.py",
    "broker/routing/engines/bitmap.py",
    "broker/routing/engines/bitmap_closed.py",
    "broker/routing/engines/bitmap_open.py",
    "broker/routing/engines/bitmap_places.py",
    "broker/routing/engines/bitmap_section.py",
    "broker/routing/engines/bitmap_side.py",
    "broker/routing/engines/bitmap_suspects.py",
    "broker/routing/engines/bitmap_table.py",
    "broker/routing/engines/dfa.py",
    "broker/routing/engines/middles.py",
    "broker/routing/engines/nfa.py",
    "broker/routing/engines/pairwise.py",
    "broker/routing/engines/tiered.py",
    "broker/routing/engines/tiers.py",
    "broker/routing/engines/trie.py",
    "broker/routing/engines/trie_node.py",
    "broker/routing/engines/trie_walk.py",
    "broker/slots/acks.py",
    "broker/slots/manager.py",
    "broker/slots/ready_sizes.py",
    "broker/slots/slot.py",
    "broker/slots/states.py",
    "broker/store/batch.py",
    "broker/store/direct_writer.py",
    "broker/store/entry_buffer.py",
    "broker/store/id_ranges.py",
    "broker/store/message_log.py",
    "broker/store/queue_entry.py",
    "broker/store/queue_log.py",
    "broker/store/reading.py",
    "broker/store/record.py",
    "broker/store/recorded.py",
    "broker/store/recorder.py",
    "broker/store/replay.py",
    "broker/store/segment_file.py",
    "broker/store/window.py",
    "broker/core/queue/consumer.py",
    "broker/core/queue/expiry.py",
    "broker/core/queue/head.py",
    "broker/core/queue/holding_queue.py",
    "broker/core/message/message.py",
    "broker/core/queue/output_window.py",
    "broker/core/queue/consumer_ring.py",
    "broker/core/queue/queue.py",
    "broker/core/queue/recovered_queue.py",
    "broker/core/publishing/local_store.py",
    "broker/core/queue/stream.py",
    "broker/core/queue/stream_owner.py",
    "broker/core/queue/stream_queue.py",
    "broker/core/queue/tap_queue.py",
    "broker/core/queue/unacked.py",
    "broker/core/session/method_budget.py",
    "broker/core/session/basic.py",
    "broker/core/session/channel_publishes.py",
    "broker/core/session/confirm_frames.py",
    "broker/core/publish_credit.py",
    "broker/core/publishing/posting.py",
    "broker/core/publishing/publish_target.py",
    "broker/core/publishing/publish_entry.py",
    "broker/core/publishing/wide_publishes.py",
    "broker/core/session/channel_confirms.py",
    "broker/core/session/detailed_publisher.py",
    "broker/core/session/publisher.py",
    "broker/core/session/queue.py",
    "broker/core/session/resolver.py",
    "broker/core/statistics/commit_tally.py",
    "broker/core/statistics/delivery_tally.py",
    "broker/core/statistics/publish_tally.py",
    "broker/core/topology/bindings.py",
    "broker/core/topology/changes.py",
    "broker/core/topology/journal.py",
    "broker/core/topology/live_bindings.py",
    "broker/cluster/batch.py",
    "broker/cluster/chunk.py",
    "broker/cluster/chunk_loader.py",
    "broker/cluster/shared_queue.py",
    "broker/cluster/shared_store.py",
    "broker/cluster/shared_stream.py",
    "broker/overlay/constraints.py",
    "broker/overlay/empty_increments.py",
    "broker/overlay/forwarding.py",
    "broker/overlay/inner.py",
    "broker/overlay/interest.py",
    "broker/overlay/interest_scheme.py",
    "broker/overlay/leaf.py",
    "broker/overlay/logical_broker.py",
    "broker/overlay/packet_fields.py",
    "broker/overlay/packets.py",
    "broker/overlay/peers.py",
    "broker/overlay/sink.py",
    "broker/overlay/source.py",
    "broker/overlay/space_table.py",
    "broker/overlay/wire.py",
    "broker/net/links/overlay_link.py",
    "broker/delivery/batch_writer.py",
    "broker/delivery/clock.py",
    "broker/delivery/committer.py",
    "broker/delivery/flusher.py",
    "broker/delivery/message_loader.py",
    "broker/delivery/pager.py",
    "broker/delivery/turn.py",
    "broker/delivery/engine.py",
    "broker/net/handshakes.py",
    "broker/net/listener.py",
    "broker/net/transport.py",
    "broker/net/prompt_ack.py",
    "broker/net/receive_buffer.py",
    "broker/net/publisher_throttle.py",
    "broker/core/auth/attempts.py",
    "broker/core/auth/login_counts.py",
    "broker/core/auth/logins.py",
    "broker/core/auth/peer.py",
    "broker/core/auth/usage.py",
    "broker/core/auth/users.py",
    "broker/log_writer.py",
    "broker/telemetry.py",
    "broker/core/deadlines.py",
    "broker/core/session/channel.py",
    "broker/core/session/client.py",
    "broker/core/session/connection.py",
    "broker/delivery/awaited_queues.py",
    "broker/delivery/worker.py",
)
STAMP: Final = "sources.sha1"
SWITCH: Final = "SLOTMQ_COMPILE"
"""The environment variable that leaves compiling out when it is 0."""
NOT_SOURCES: Final = (".so", ".pyd", ".pyc")
HERE: Final = Path(__file__).resolve().parent
PROGRAMS: Final = (HERE / "compiled_build.py", HERE / "extension_build.py")


class CompileError(Exception):
    """Modules that could not be compiled; the text is the reason in one line."""


class NoCompiler(CompileError):
    """No C compiler is available, or nothing to compile against."""


def wanted() -> bool:
    """Return whether the environment permits compiling."""
    return os.environ.get(SWITCH, "1") != "0" and sys.implementation.name == "cpython"


def check_compiler() -> None:
    """Raise NoCompiler when there is no C compiler, or Python's header files are not installed."""
    if os.name != "posix":
        raise NoCompiler(f"{sys.platform} is not supported")
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise NoCompiler(f"there is no C compiler named {compiler}")
    if subprocess.call([compiler, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        raise NoCompiler(f"{compiler} does not run")  # macOS has one that only offers to install the real one
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise NoCompiler(f"there is no {header}")


def build(project: Path, folder: Path) -> list[Path]:
    """Copy the whole package into an empty folder, add the compiled modules and return their files.

    Raises: NoCompiler; CompileError.
    """
    check_compiler()
    others = shutil.ignore_patterns("__pycache__", ".*", *(f"*{suffix}" for suffix in NOT_SOURCES))
    shutil.copytree(project / PACKAGE, folder / PACKAGE, ignore=others)
    shutil.copy(project / PLUGIN, folder)  # its fixtures import the package beside it
    environment = {**os.environ, "MYPYPATH": "."}
    command = [sys.executable, str(PROGRAMS[1]), *COMPILED]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        errors = [line for line in said if "error:" in line] or said[-1:]
        raise CompileError(errors[0] if errors else f"the compilation ended with {done.returncode}")
    return sorted(path for path in folder.rglob("*") if path.name.endswith(NOT_SOURCES[:2]))


def refresh(project: Path, folder: Path) -> bool:
    """Rebuild a folder when a source differs from those that it was built from, and return whether it was rebuilt.

    A build that fails or is interrupted leaves the folder unchanged. Builds beside each other run one after the other.
    Raises: NoCompiler; CompileError; OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = folder.with_name(".new"), folder.with_name(".old")
    with locked(folder.with_name(".lock")):
        stamp = folder / STAMP
        if stamp.exists() and stamp.read_text() == sources_digest(project):
            return False
        for left in (new, old):  # by a build that was interrupted
            shutil.rmtree(left, ignore_errors=True)
        build(project, new)
        (new / STAMP).write_text(sources_digest(new))  # of what was compiled: a source may have changed since
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, once no other process holds it."""
    import fcntl  # not on Windows, where nothing is compiled in place

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sources_digest(folder: Path) -> str:
    """Return a digest of a folder's package, of the programs that compile it and of the interpreter.

    Cost: reads every file of the package, about 15 ms.
    """
    total = hashlib.sha1(sys.version.encode(), usedforsecurity=False)
    for path in [*map(str, PROGRAMS), *_files(str(folder / PACKAGE))]:
        with open(path, "rb", buffering=0) as file:  # half the time of Path.read_bytes
            content = file.read()
        name = path.removeprefix(str(folder)).removeprefix(str(HERE))
        total.update(f"{name} {len(content)} ".encode() + content)
    return total.hexdigest()


def _files(folder: str) -> Iterator[str]:
    """Yield the files of the package that its authors wrote, in a fixed order."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files(entry.path)
        elif not entry.name.endswith(NOT_SOURCES) and not entry.name.startswith("."):  # such as an editor's locks
            yield entry.path


def main(arguments: list[str]) -> int:
    """Compile into the given folder, and return an exit code: 3 without a compiler, 2 for any other error."""
    if len(arguments) != 1:
        print("usage: python compiled_build.py FOLDER", file=sys.stderr)
        return 2
    try:
        rebuilt = refresh(Path(__file__).parent, Path(arguments[0]).absolute())
    except CompileError as error:
        print(f"cannot compile: {error}", file=sys.stderr)
        return 3 if isinstance(error, NoCompiler) else 2
    print(f"{len(COMPILED)} compiled modules in {arguments[0]}{'' if rebuilt else ', unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
