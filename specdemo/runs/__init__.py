"""One run: its settings, the session that answers, the race, the trace."""
