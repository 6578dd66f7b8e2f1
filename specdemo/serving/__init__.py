"""A session behind an API like OpenAI's, in one process or on Ray Serve. Decodes nothing itself."""
