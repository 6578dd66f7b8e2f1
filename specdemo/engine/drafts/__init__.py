"""Where draft tokens come from: n-gram lookup, draft models and draft heads. Knows no text."""
