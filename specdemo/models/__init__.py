"""Where models come from: the registry of pairs, downloads, the embedded pair, export, tokenizers.

Only `rehearsal_costs` compiles or runs a model.
"""
