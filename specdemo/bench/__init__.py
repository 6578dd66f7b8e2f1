"""Measures what speculative decoding saves and tests that it is lossless, beside other engines."""
