"""`slotmq perf`: generate load for any AMQP 0-9-1 or MQTT broker, and compare results.

A scenario's module is imported only when the scenario is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.cli.exit_codes import FAILED, unwritable
from broker.cli.parser import BadUsage, LazyParser, add_command
from broker.cli.table import failed

if TYPE_CHECKING:
    import argparse

    from broker.perf.result import Result


def add_perf(commands: Any) -> None:
    """Add the command `perf` and its subcommands."""
    from broker.perf.scenarios import SCENARIOS, add

    perf = add_command(commands, "perf", "measure any AMQP 0-9-1 or MQTT broker")
    scenarios = perf.add_subparsers(title="scenarios", metavar="SCENARIO", required=True, parser_class=Scenario)
    for name, summary in SCENARIOS.items():
        scenarios.add_parser(name, help=summary, add_help=False).defer(name, "slotmq perf", add)
    _add_compare(scenarios)


class Scenario(LazyParser):
    """The parser of a scenario, which stores the command line for the result."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, rest = super().parse_known_args(args, namespace)
        if self.add is not None:
            from broker.perf.flags import masked

            found.run, found.words = run_scenario, [self.name, *masked(args or ())]
        return found, rest


def run_scenario(arguments: argparse.Namespace) -> int:
    """Run a scenario, show its result, and return the exit code.

    Raises: BadUsage for options or files that cannot be used.
    """
    from broker.perf.faults import BadOptions, Fault, RunFailed
    from broker.perf.progress import RunProgress
    from broker.perf.scenarios import run

    _check_files(arguments)
    try:
        with RunProgress(quiet=arguments.quiet) as progress:
            result = run(arguments.scenario, arguments, progress)
    except BadOptions as error:
        raise BadUsage(str(error)) from None
    except (Fault, RunFailed) as error:
        return failed(str(error))
    except OSError as error:
        address = arguments.uri
        return failed(f"cannot reach {address.host} port {address.port}: {error.strerror or error}")
    _show(result, arguments)
    return FAILED if result.failures else 0


def _check_files(arguments: argparse.Namespace) -> None:
    """Check before a long run that its files can be written. Raises: BadUsage."""
    for name in (arguments.json, arguments.plot):
        if name is not None and str(name) != "-":
            _write(Path(name), "", mode="a")


def _write(path: Path, text: str, mode: str = "w") -> None:
    """Write a file. Raises: BadUsage; Unanswered on a full disk."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise unwritable(path, error) from None


def _show(result: Result, arguments: argparse.Namespace) -> None:
    from broker.perf.page import page
    from broker.perf.table import table

    if arguments.plot is not None:
        _write(arguments.plot, page([result]))
    if arguments.json == "-":
        print(result.to_json(), end="")
        return
    if arguments.json is not None:
        _write(Path(arguments.json), result.to_json())
    print(table(result), end="")


def _add_compare(commands: Any) -> None:
    command = add_command(commands, "compare", "show results of earlier runs side by side, with ratios to the first")
    command.add_argument("files", metavar="FILE", nargs="+", type=Path, help="files written by --json")
    command.add_argument("--plot", metavar="FILE", type=Path, help="draw all of them as one HTML page")
    command.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> None:
    """Show results side by side, with ratios to the first.

    Raises: BadUsage for files that cannot be used.
    """
    from broker.perf.page import page
    from broker.perf.table import compared

    results = [_read(path) for path in arguments.files]
    if arguments.plot is not None:
        _write(arguments.plot, page(results))
    print(compared(results), end="")


def _read(path: Path) -> Result:
    from broker.perf.faults import BadDocument
    from broker.perf.result import Result

    try:
        return Result.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadUsage(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadUsage(f"{path}: not JSON: not UTF-8") from None
    except BadDocument as error:
        raise BadUsage(f"{path}: {error}") from None
