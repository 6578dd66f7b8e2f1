"""Measures: what speculation saves prompt by prompt, beside what peers, and that it loses nothing."""
