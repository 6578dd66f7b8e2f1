"""Finds, fetches and exports models: registry of pairs, downloads, embedded pair, tokenizers. Runs
none."""
