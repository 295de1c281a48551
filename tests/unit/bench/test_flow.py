"""The benchmark's own encoding, and its estimate of the least work per message."""

from __future__ import annotations

import shutil
from argparse import ArgumentTypeError
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import compiled_build
from bench import packages
from bench.scenario import CALL_BYTES, Limits
from bench.scenarios.flow import Flow, Order, message_bytes, tape_of
from broker.perf import wire
from broker.perf.peer import Address


def test_a_large_body_is_cut_into_frames_that_any_broker_takes() -> None:
    """A message of 200 KiB is a method, a header and two bodies; no frame exceeds 128 KiB."""
    flow = Flow("S2-204800", 204_800, persistent=False, confirms=True, acks=True)
    tape = tape_of(Order(Address("", 0), relay=False, scenario=flow, limits=Limits(), queue=""))
    frames, at = [], 0
    while at < 2 * tape.stride_bytes:
        kind, _, size = wire.FRAME_HEAD.unpack_from(tape.buffer, at)
        at += size + wire.FRAME_OVERHEAD_BYTES
        assert size + wire.FRAME_OVERHEAD_BYTES <= 131_072
        assert tape.buffer[at - 1] == 0xCE
        frames.append((kind, size))
    bodies = [size for kind, size in frames[:4] if kind == wire.BODY]
    assert [kind for kind, _ in frames] == [wire.METHOD, wire.HEADER, wire.BODY, wire.BODY] * 2
    assert sum(bodies) == int.from_bytes(tape.buffer[frames[0][1] + 19 :][:8], "big") == 204_800
    assert len(tape.buffer) == tape.messages * tape.stride_bytes


@pytest.mark.parametrize("flags", [(False, False, False), (False, True, True), (True, True, True)])
def test_the_least_calls_can_carry_all_bytes(flags: tuple[bool, bool, bool]) -> None:
    """The minimum includes the reads for the published bytes; confirms, acks and the log add to it."""
    persistent, confirms, acks = flags
    for body_bytes in (16, 1024, 204_800):
        flow = Flow("S", body_bytes, persistent, confirms, acks)
        reads, writes = flow.least_calls(Limits())
        came, went = message_bytes(body_bytes)
        assert reads * CALL_BYTES >= came
        assert writes * CALL_BYTES >= went
        assert flow.record_bytes == (came if persistent else 0)


def test_large_bodies_have_a_window_of_bytes() -> None:
    """Large bodies have fewer messages in flight; acks still come several times in a window."""
    limits = Limits()
    flows = {size: Flow("S", size, persistent=False, confirms=True, acks=True) for size in (16, 204_800, 16 << 20)}
    paced = {size: flow.paced(limits) for size, flow in flows.items()}
    assert paced[16] == limits
    assert paced[204_800].window * 204_800 <= 20 << 20
    assert (paced[16 << 20].window, paced[16 << 20].prefetch, paced[16 << 20].ack_every) == (4, 4, 1)


def test_only_a_compiled_package_is_measured_as_one(tmp_path: Path) -> None:
    """A folder that is missing, or holds sources only, would be measured interpreted: it is refused in one line."""
    package = tmp_path / "broker" / "store"
    package.mkdir(parents=True)
    (package / "record.py").touch()
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ArgumentTypeError, match=f"{folder.name} holds no compiled broker"):
            packages.package_at(str(folder))
    (package / f"record{EXTENSION_SUFFIXES[0]}").touch()
    assert packages.package_at(str(tmp_path)) == tmp_path


def test_compiled_package_is_made_again_when_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run reuses the compiled package; a changed source makes a new one."""
    source = tmp_path / "broker" / "module.py"
    source.parent.mkdir()
    source.write_text("A = 1\n")
    made: list[Path] = []

    def build(project: Path, folder: Path) -> list[Path]:
        assert project == tmp_path
        shutil.copytree(project / "broker", folder / "broker")
        made.append(folder)
        return []

    monkeypatch.setattr(packages, "PROJECT", tmp_path)
    monkeypatch.setattr(compiled_build, "build", build)
    folder = tmp_path / "out"
    assert [packages.compiled_package(folder) for _ in range(2)] == [folder, folder]
    assert len(made) == 1
    source.write_text("A = 2\n")
    packages.compiled_package(folder)
    assert len(made) == 2
