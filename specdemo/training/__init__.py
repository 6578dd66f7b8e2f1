"""Make a draft for a target from nothing but the target: its own text, its own first layers, its own tokenizer.

`run.train_draft` is the whole run; `command` puts it on the command line. Nothing here is imported by the page.
"""
