"""Serves the page, as `specdemo page` does. A Hugging Face Space runs this file."""

import sys

from specdemo.start import start

if __name__ == "__main__":
    sys.exit(start("app.py", "page"))
