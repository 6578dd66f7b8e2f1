"""The commands of models and of the session, one module each; see `specdemo.cli`."""
