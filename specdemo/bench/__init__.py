"""Measures what speculative decoding saves, beside other engines."""
