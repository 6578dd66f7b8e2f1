"""Serves a session over an OpenAI-compatible API, in one process or on Ray Serve."""
