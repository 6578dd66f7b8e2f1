"""The servers of the page and of the OpenAI-compatible API."""
