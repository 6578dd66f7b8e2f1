"""Trains a draft head for a target on text that it writes; `run.train_draft` is all of it."""
