"""`python -m membench`: the `membench` command."""

import sys

from membench.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
