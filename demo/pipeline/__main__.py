"""Run the demo of the pipeline: `python -m demo.pipeline`."""

import sys

from demo.pipeline.run import main

# The publishers are spawned processes that import this module under another name; only the first one runs the demo.
if __name__ == "__main__":
    sys.exit(main())
