"""specdemo: speculative decoding on OpenVINO."""

__version__ = "0.1.0"
