"""Trains a draft head on the target's own text; `steps.train_draft` does every step."""
