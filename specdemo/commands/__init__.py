"""The zoo's and the session's commands, one module each; see `specdemo.cli`."""
