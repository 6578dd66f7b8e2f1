"""One file for each command: its options, and what it prints."""

CONTEXT = {"max_content_width": 100, "help_option_names": ["-h", "--help"], "show_default": True}


def option_name(field: str) -> str:
    """The option of a field: --draft-tokens for draft_tokens."""
    return "--" + field.replace("_", "-")
