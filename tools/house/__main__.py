"""Print measures of the source: `python -m tools.house --help`."""

from __future__ import annotations

import argparse
import signal
import sys

from tools.house import paths
from tools.house.path_tables import path_table
from tools.house.sources import foreign_writes


def main() -> int:
    """Run the command line, and return the exit code."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as `head` may stop reading
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    path = commands.add_parser("path", help="print every call of a path in its order; * where the event loop calls")
    path.add_argument("name", choices=paths.PATHS)
    commands.add_parser("writes", help="print the assignments to fields of other objects")
    commands.add_parser("architecture", help="print a table of each path: its files and functions")
    options = parser.parse_args()
    if options.command == "path":
        for step in paths.walk(options.name):
            print("*" if step.outermost else " ", step.file, step.function)
    elif options.command == "architecture":
        for name in paths.PATHS:
            print(f"## {name}\n\n{path_table(name)}\n")
    else:
        print("\n".join(foreign_writes(paths.ROOT)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
