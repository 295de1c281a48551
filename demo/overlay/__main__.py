"""Run the demo of the overlay: `python -m demo.overlay`."""

import sys

from demo.overlay.run import main

# Clients are spawned processes that import this module under another name; only the first process runs the demo.
if __name__ == "__main__":
    sys.exit(main())
