"""specdemo: speculative decoding on OpenVINO."""

__version__ = "0.2.0"
