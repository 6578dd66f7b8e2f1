"""Finds, fetches and exports models: registry of pairs, downloads, embedded pair, tokenizers.

Only `rehearsal` runs a model.
"""
