"""Finds, fetches and exports models: pairs, downloads, embedded pair, tokenizers. Runs none."""
