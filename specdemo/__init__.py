"""specdemo: watch two language models answer faster than one, on OpenVINO."""

__version__ = "0.1.0"
