"""Speculative decoding in one page: two tables stand for two language models. Needs numpy only.

A small draft model guesses some tokens. The large target model looks at all of them in one forward,
and keeps those that it would have written itself. p is the draft's distribution of the next token
and q the target's, as in Chen et al. (arXiv 2302.01318). Run it: python examples/speculative.py
"""

import numpy as np

TOKEN, DRAFT, ACCEPT, RESIDUAL = range(4)  # independent streams of noise at one position
SEED = 5


def distribution(logits, temperature):
    """Probabilities of the next token. Temperature 0, greedy: all on the likeliest one."""
    if temperature == 0:
        return np.eye(len(logits))[logits.argmax()]
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


def uniform(position, stream, size=None):
    """Noise in (0, 1) of a position in the text: the same whoever asks, and however often."""
    return 1 - np.random.default_rng([SEED, position, stream]).random(size)


def draw(probabilities, position, stream=TOKEN):
    """A token with its probability: token i arrives at time Exponential(1) / p_i, the first wins.
    With the same noise, two similar distributions mostly draw the same token."""
    with np.errstate(divide="ignore"):
        return int(
            (-np.log(uniform(position, stream, len(probabilities))) / probabilities).argmin()
        )


def accepts(chance, position):
    return uniform(position, ACCEPT) < chance


def verify(drafted, p, q, position, coupling):
    """The draft tokens that stand, and one token of the target's own."""
    for at, token in enumerate(drafted):
        if coupling == "shared":  # draw from q with the draft's noise: the same token, or another
            own = draw(q[at], position + at)
            if own != token:
                return [*drafted[:at], own]
        elif not accepts(min(1, q[at][token] / p[at][token]), position + at):  # "maximal"
            residual = np.maximum(q[at] - p[at], 0)
            own = draw(residual / residual.sum(), position + at, RESIDUAL)
            return [*drafted[:at], own]
    return [*drafted, draw(q[-1], position + len(drafted))]  # a bonus: the forward gave q for it


def decode(target, draft, prompt, new_tokens, *, draft_tokens, temperature, coupling="shared"):
    """The answer, and the number of forwards of the target. Without draft tokens each forward gives
    one token: autoregressive decoding. A table has the logits after each last token."""
    end, forwards = len(prompt) + new_tokens, 1
    text = [*prompt, draw(distribution(target[prompt[-1]], temperature), len(prompt))]
    while len(text) < end:
        drafted, p = [], []
        while len(drafted) < min(draft_tokens, end - len(text) - 1):
            p.append(distribution(draft[(text + drafted)[-1]], temperature))
            stream = TOKEN if coupling == "shared" else DRAFT
            drafted.append(draw(p[-1], len(text) + len(drafted), stream))
        q = [distribution(logits, temperature) for logits in target[[text[-1], *drafted]]]
        forwards += 1  # one for all draft tokens: it reads the weights of a real model once
        text += verify(drafted, p, q, len(text), coupling)
    return text[len(prompt) :], forwards


if __name__ == "__main__":
    rng = np.random.default_rng(1)
    target = rng.normal(size=(50, 50)) * 3
    draft = target + rng.normal(size=(50, 50))  # a similar model
    for temperature, coupling in ((0, "shared"), (1, "shared"), (1, "maximal")):
        how = {"temperature": temperature, "coupling": coupling}
        baseline, _ = decode(target, draft, [0], 40, draft_tokens=0, **how)
        answer, forwards = decode(target, draft, [0], 40, draft_tokens=4, **how)
        same = "the same as" if answer == baseline else "drawn like"
        print(f"{how}: 40 tokens in {forwards} forwards, {same} autoregressive decoding")
