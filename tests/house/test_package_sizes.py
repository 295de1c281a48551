"""The size of each package: a change that needs more raises its row, and its message says why."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]

MOST = {
    "broker": (768, 116_150),
    "broker/administration": (11, 1_950),
    "broker/amqp": (26, 4_050),
    "broker/cli": (44, 4_800),
    "broker/client": (4, 600),
    "broker/cluster": (41, 9_700),
    "broker/core": (152, 20_200),
    "broker/delivery": (18, 3_550),
    "broker/doctor": (6, 550),
    "broker/figures": (7, 700),
    "broker/manage": (61, 8_600),
    "broker/migrate": (7, 850),
    "broker/mqtt": (9, 1_300),
    "broker/net": (16, 2_450),
    "broker/operations": (24, 4_000),
    "broker/overlay": (44, 7_450),
    "broker/overlay_node": (15, 2_750),
    "broker/parts": (11, 1_050),
    "broker/perf": (37, 6_050),
    "broker/pipeline": (70, 12_500),
    "broker/routing": (53, 6_500),
    "broker/settings": (11, 1_600),
    "broker/slot_files": (12, 1_500),
    "broker/slots": (7, 1_350),
    "broker/store": (36, 6_750),
    "broker/taps": (9, 1_500),
    "broker/testing": (6, 700),
    "broker/vhosts": (5, 600),
    "broker/zeromq": (8, 1_200),
    "bench": (67, 8_350),
    "demo": (15, 2_100),
    "tools": (25, 2_900),
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
