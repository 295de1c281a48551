"""`slotmq health`: an exit code at minimal cost."""

import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli.health import health

HEAVY = ("argparse", "asyncio", "json", "pydantic", "re", "socket", "structlog", "typing", "broker.server")


def test_nobody_there_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a broker the check fails with one line."""
    assert health(["--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"slotmq: no broker answers on data folder {tmp_path} (another one: --data-dir D): No such file or directory\n"
    )


@pytest.mark.parametrize("argv", [["--bogus"], ["--data-dir"], ["x"], ["--config", "missing.toml"]])
def test_wrong_usage_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command line has an exit code other than that of a stopped broker."""
    assert health(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_check_imports_next_to_nothing() -> None:
    """The check runs every few seconds, so it imports nothing expensive."""
    script = (
        "import sys; from broker.cli.main import main; main(['health', '--data-dir', '/nowhere']);"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, '.'); {script}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "[]"
