"""``python -m membench.calibrate``."""

import sys

from membench.calibrate.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
