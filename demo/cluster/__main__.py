"""Run the demo of the cluster: `python -m demo.cluster`."""

import sys

from demo.cluster.run import main

# Clients are spawned processes that import this module under another name; only the first process runs the demo.
if __name__ == "__main__":
    sys.exit(main())
