"""The size of each package: a change that needs more raises its row, and its message says why."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]

MOST = {
    "broker": (629, 104_550),
    "broker/administration": (11, 2_000),
    "broker/amqp": (19, 3_750),
    "broker/cli": (39, 4_270),
    "broker/client": (4, 550),
    "broker/cluster": (40, 9_000),
    "broker/core": (118, 18_820),
    "broker/delivery": (17, 3_400),
    "broker/doctor": (5, 550),
    "broker/figures": (5, 600),
    "broker/manage": (57, 8_050),
    "broker/migrate": (5, 800),
    "broker/mqtt": (10, 1_300),
    "broker/net": (15, 2_300),
    "broker/operations": (24, 3_800),
    "broker/overlay": (21, 4_750),
    "broker/overlay_node": (11, 2_550),
    "broker/parts": (11, 1_100),
    "broker/perf": (26, 4_900),
    "broker/pipeline": (65, 11_950),
    "broker/routing": (29, 5_250),
    "broker/settings": (11, 1_250),
    "broker/slot_files": (8, 1_300),
    "broker/slots": (7, 1_300),
    "broker/store": (29, 6_140),
    "broker/taps": (8, 1_350),
    "broker/testing": (6, 700),
    "broker/vhosts": (4, 600),
    "broker/zeromq": (7, 1_150),
    "bench": (56, 8_000),
    "demo": (15, 1_800),
    "tools": (23, 2_650),
}
"""By folder: the most Python files and lines that it may have. Lower a row when the folder has shrunk."""


def test_no_folder_grows_unnoticed() -> None:
    """Each folder has at most its row's files and lines, and at least nine tenths of the lines."""
    found = {name: size(ROOT / name) for name in MOST}
    folders = {f"broker/{path.name}" for path in (ROOT / "broker").iterdir() if (path / "__init__.py").exists()}
    assert folders <= MOST.keys(), "each package has a row"
    over = {name: sizes for name, sizes in found.items() if sizes[0] > MOST[name][0] or sizes[1] > MOST[name][1]}
    assert not over, f"(files, lines) of {over}; at most { ({name: MOST[name] for name in over}) }"
    assert not {name for name, (_, lines) in found.items() if lines < 0.9 * MOST[name][1]}, "these rows are out of date"


def size(folder: Path) -> tuple[int, int]:
    """Return how many Python files a folder has, and how many lines."""
    files = sorted(folder.rglob("*.py"))
    return len(files), sum(len(file.read_text().splitlines()) for file in files)
