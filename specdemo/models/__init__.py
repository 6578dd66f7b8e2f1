"""Where models come from: the registry of pairs, downloads, the embedded pair, export, tokenizers.

Only `rehearsal` compiles or runs a model.
"""
