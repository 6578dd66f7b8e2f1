"""Where models come from: pairs as data, downloads, the embedded pair, export, tokenizers and prompt templates.

Nothing here compiles or runs a model; that is the engine's work.
"""
