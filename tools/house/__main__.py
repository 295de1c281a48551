"""Print the measures of the source: `python -m tools.house --help`."""

from __future__ import annotations

import argparse
import difflib
import json
import signal
import subprocess
import sys

from tools.house import imports, paths, sources
from tools.house.architecture import PAGE, page_with_tables
from tools.house.measures import measure, measure_revision, table

LISTS = ("circles", "writes")


def main() -> int:
    """Print what the command line asks for, and return the exit code."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as `head` may stop reading
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the measures as JSON")
    parser.add_argument("--base", metavar="REV", help="print the measures of another revision beside them")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    path = commands.add_parser("path", help="print every call of a path in its order; * where the event loop calls")
    path.add_argument("name", choices=paths.PATHS)
    listed = commands.add_parser("list", help="print what a measure counts")
    listed.add_argument("name", choices=LISTS)
    page = commands.add_parser("architecture", help="write the tables of ARCHITECTURE.md")
    page.add_argument("--check", action="store_true", help="only print how the page differs; the exit code is 1 if so")
    options = parser.parse_args()
    if options.command == "path":
        for step in paths.walk(options.name):
            print("*" if step.outermost else " ", step.file, step.function)
    elif options.command == "architecture":
        return _write_page(check=options.check)
    elif options.command == "list":
        print("\n".join(_listed(options.name)))
    else:
        return _show(options)
    return 0


def _write_page(*, check: bool) -> int:
    page = PAGE.read_text()
    wanted = page_with_tables(page)
    if check:
        sys.stdout.writelines(difflib.unified_diff(page.splitlines(True), wanted.splitlines(True), PAGE.name, "traced"))
        return int(page != wanted)
    PAGE.write_text(wanted)
    return 0


def _listed(name: str) -> list[str]:
    if name == "writes":
        return sources.foreign_writes(paths.ROOT)
    graphs = [imports.import_graph(paths.ROOT, package) for package in imports.packages(paths.ROOT)]
    return [" ".join(circle) for graph in graphs for circle in imports.circles(graph)]


def _show(options: argparse.Namespace) -> int:
    columns = {"now": measure()}
    if options.base is not None:
        try:
            columns = {options.base[:9]: measure_revision(options.base), **columns}
        except subprocess.CalledProcessError as error:
            print(f"{options.base} cannot be measured: {error}", file=sys.stderr)
            return 2
    measures = columns["now"] if len(columns) == 1 else columns
    print(json.dumps(measures, indent=1) if options.json else table(columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
