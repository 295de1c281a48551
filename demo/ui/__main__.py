"""Run the demo of the web page: `python -m demo.ui`."""

import sys

from demo.ui.run import main

if __name__ == "__main__":
    sys.exit(main())
