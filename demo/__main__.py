"""Run the demo: `python -m demo`, or `python -m demo --show cluster`."""

import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name

from bench.service import BrokerFailed
from demo.ledger import Failed
from demo.options import SHOWS, parse_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 when every guarantee was kept, 1 when one was not, 2 when the demo cannot run."""
    options = parse_options(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that everything is stopped first
    folder = Path(tempfile.mkdtemp(prefix="slotmq-demo-"))
    _, name, extras = SHOWS[options.show]
    try:
        return 0 if resolve_name(name)(options, folder).perform() else 1
    except ImportError as error:
        print(f"{error}; this demo needs the extras: pip install '.[{extras}]'", file=sys.stderr)
        return 2
    except (Failed, BrokerFailed) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if options.keep:
            print(f"data and output are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


# Clients are spawned processes that import this module under another name; only the first process runs the demo.
if __name__ == "__main__":
    sys.exit(main())
