"""`python -m specdemo`: the command line."""

import sys

from specdemo.cli import main

if __name__ == "__main__":
    sys.exit(main())
