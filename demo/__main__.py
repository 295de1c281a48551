"""Run the demo: `python -m demo`."""

import sys

from demo.run import main

# Clients are spawned processes that import this module under another name; only the first process runs the demo.
if __name__ == "__main__":
    sys.exit(main())
