"""The command `run`, and the commands about models; `specdemo.cli` lists all commands."""
