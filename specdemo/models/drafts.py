"""The expected tokens per round, by Leviathan et al. (arXiv 2211.17192)."""


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Expected tokens of a round: 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a), equation 1."""
    return sum(acceptance**position for position in range(draft_tokens + 1))
