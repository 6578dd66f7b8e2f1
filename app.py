"""Serves the page, as `specdemo page` does. A Hugging Face Space runs this file."""

import sys

from specdemo.cli import main
from specdemo.commands.page import page

if __name__ == "__main__":
    sys.exit(main(command=page, name="app.py"))
