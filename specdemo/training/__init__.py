"""Trains a draft for a target on text that the target writes; `run.train_draft` is all of it."""
