"""The engine behind an API: HTTP in the form of OpenAI's, on one process or on Ray Serve. Decodes nothing itself."""
