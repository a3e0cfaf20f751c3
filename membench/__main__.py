"""`python -m membench`: the command line."""

import sys

from membench.cli.run import main

sys.exit(main())
