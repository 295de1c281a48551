"""Print the measures of the source: `python -m tools.house --help`."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys

from tools.house import imports, paths, sources
from tools.house.measures import measure, measure_revision, table
from tools.house.path_tables import path_table

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
    tables = commands.add_parser("architecture", help="print a table of each path: its files and functions")
    tables.add_argument("names", nargs="*", metavar="PATH", help=f"all unless given: {', '.join(paths.PATHS)}")
    options = parser.parse_args()
    if options.command == "path":
        for step in paths.walk(options.name):
            print("*" if step.outermost else " ", step.file, step.function)
    elif options.command == "architecture":
        if unknown := set(options.names) - set(paths.PATHS):
            parser.error(f"no such path: {', '.join(sorted(unknown))}")
        for name in options.names or paths.PATHS:
            print(f"## {name}\n\n{path_table(name)}\n")
    elif options.command == "list":
        print("\n".join(_listed(options.name)))
    else:
        return _show(options)
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
