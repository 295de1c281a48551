"""Compiles the hot modules with mypyc: `python compiled_build.py FOLDER` writes a package beside its sources.

The sources stay unchanged and also run interpreted. The compiled modules are those that every message passes through,
on its way in, out, to disk and back, chosen by measurement: docs/performance.md, docs/topic-index.md. Compiling needs
mypy, setuptools, the package's own dependencies, and a C compiler; without them a wheel is built interpreted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

PACKAGE: Final = "broker"
PLUGIN: Final = "pytest_slotmq.py"
COMPILED: Final = (
    "broker/amqp/channel.py",
    "broker/amqp/channel_moves.py",
    "broker/amqp/connection.py",
    "broker/amqp/content_header.py",
    "broker/amqp/framing.py",
    "broker/amqp/header_facts.py",
    "broker/amqp/output.py",
    "broker/amqp/wire.py",
    "broker/routing/bundle.py",
    "broker/routing/cache.py",
    "broker/routing/destinations.py",
    "broker/routing/dialect.py",
    "broker/routing/exchange_tally.py",
    "broker/routing/index.py",
    "broker/routing/key_trie.py",
    "broker/routing/pattern.py",
    "broker/routing/route.py",
    "broker/routing/route_cache.py",
    "broker/routing/engines/bitmap.py",
    "broker/routing/engines/bitmap_closed.py",
    "broker/routing/engines/bitmap_open.py",
    "broker/routing/engines/bitmap_places.py",
    "broker/routing/engines/bitmap_section.py",
    "broker/routing/engines/bitmap_side.py",
    "broker/routing/engines/bitmap_suspects.py",
    "broker/routing/engines/bitmap_table.py",
    "broker/routing/engines/dfa.py",
    "broker/routing/engines/nfa.py",
    "broker/routing/engines/tiered.py",
    "broker/routing/engines/trie.py",
    "broker/routing/engines/trie_node.py",
    "broker/routing/engines/trie_walk.py",
    "broker/slots/acks.py",
    "broker/slots/manager.py",
    "broker/slots/slot.py",
    "broker/store/batch.py",
    "broker/store/id_ranges.py",
    "broker/store/message_log.py",
    "broker/store/queue_entry.py",
    "broker/store/queue_log.py",
    "broker/store/reading.py",
    "broker/store/record.py",
    "broker/store/recorded.py",
    "broker/store/recorder.py",
    "broker/store/replay.py",
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
    "broker/core/publishing/publish_target.py",
    "broker/core/publishing/publish_entry.py",
    "broker/core/session/publisher.py",
    "broker/core/session/resolver.py",
    "broker/core/statistics/delivery_tally.py",
    "broker/core/statistics/publish_tally.py",
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
    "broker/delivery/flusher.py",
    "broker/delivery/message_loader.py",
    "broker/delivery/turn.py",
    "broker/delivery/worker.py",
)
STAMP: Final = "sources.sha256"
SWITCH: Final = "SLOTMQ_COMPILE"
"""The environment variable that leaves compiling out when it is 0."""
REQUIREMENTS: Final = ("mypy>=2.4,<3", "setuptools>=77")


class CompileError(Exception):
    """Modules that could not be compiled; the text is the reason in one line."""


class NoCompiler(CompileError):
    """No C compiler is available."""


def wanted() -> bool:
    """Return whether the environment permits compiling."""
    return os.environ.get(SWITCH, "1") != "0" and sys.implementation.name == "cpython"


def build(project: Path, folder: Path) -> list[Path]:
    """Write the whole package into a folder, with the compiled modules beside their sources, and return these modules.

    Raises: NoCompiler; CompileError.
    """
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if os.name == "posix" and shutil.which(compiler) is None:
        raise NoCompiler(f"there is no C compiler named {compiler}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(project / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))
    shutil.copy(project / PLUGIN, folder)  # its fixtures import the package beside it
    # regex has no types, and no compiled module uses it; the packages that they do use must be present
    command = [sys.executable, "-m", "mypyc", "--disable-error-code=import-untyped", *COMPILED]
    environment = {**os.environ, "MYPYC_OPT_LEVEL": "3", "MYPYC_DEBUG_LEVEL": "0", "MYPYPATH": "."}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CompileError(said[-1] if said else f"mypyc ended with {done.returncode}")
    shutil.rmtree(folder / "build", ignore_errors=True)
    return _made(folder)


def refresh(project: Path, folder: Path) -> list[Path]:
    """Rebuild when a source differs from those that the folder was built from, and return the compiled modules.

    Raises: NoCompiler; CompileError.
    """
    stamp, digest = folder / STAMP, _digest(project)
    if not stamp.exists() or stamp.read_text() != digest:
        build(project, folder)
        stamp.write_text(digest)
    return _made(folder)


def _made(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in {".so", ".pyd"})


def _digest(project: Path) -> str:
    """Return a digest of the package's sources, of the programs that compile them and of the interpreter."""
    total = hashlib.sha256(sys.version.encode())
    for path in [*sorted((project / PACKAGE).rglob("*.py")), project / Path(__file__).name]:
        total.update(str(path.relative_to(project)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def main(arguments: list[str]) -> int:
    """Compile into the given folder, and return an exit code: 3 without a compiler, 2 for any other error."""
    if len(arguments) != 1:
        print("usage: python compiled_build.py FOLDER", file=sys.stderr)
        return 2
    try:
        made = refresh(Path(__file__).parent, Path(arguments[0]).absolute())
    except CompileError as error:
        print(f"cannot compile: {error}", file=sys.stderr)
        return 3 if isinstance(error, NoCompiler) else 2
    print(f"{len(made)} compiled files in {arguments[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
