"""Trains a draft head for a target on the target's own text. `run.train_draft` does every step."""
