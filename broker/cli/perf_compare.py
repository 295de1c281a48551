"""`slotmq perf compare`: results of earlier runs, which `--json FILE` kept, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.cli.parser import BadUsage, add_command

if TYPE_CHECKING:
    import argparse

    from broker.perf.result import Result

__all__ = ["add_compare"]


def add_compare(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "compare", "show results of earlier runs side by side, with ratios to the first")
    command.add_argument("files", metavar="FILE", nargs="+", type=Path, help="what --json FILE wrote")
    command.add_argument("--plot", metavar="FILE", type=Path, help="draw all of them as one HTML page")
    command.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """Show the results, and return the exit code.

    Raises: BadUsage for a file that is no result, or a page that cannot be written.
    """
    from broker.perf.page import page
    from broker.perf.table import compared

    results = [_read(path) for path in arguments.files]
    if arguments.plot is not None:
        try:
            arguments.plot.write_text(page(results), encoding="utf-8")
        except OSError as error:
            raise BadUsage(f"cannot write {arguments.plot}: {error.strerror or error}") from None
    print(compared(results), end="")
    return 0


def _read(path: Path) -> Result:
    from broker.perf.document import BadDocument
    from broker.perf.result import Result

    try:
        return Result.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadUsage(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadUsage(f"{path}: not JSON: not UTF-8") from None
    except BadDocument as error:
        raise BadUsage(f"{path}: {error}") from None
