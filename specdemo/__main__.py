"""`python -m specdemo`: the command line."""

import sys

from specdemo.start import start

if __name__ == "__main__":
    sys.exit(start())
