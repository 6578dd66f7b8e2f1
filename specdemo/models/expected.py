"""The speed of a pair before it is fetched: the embedded pair's costs here, scaled by weights."""

import numpy as np

from specdemo.engine.profile import Profile
from specdemo.models import embedded, machine, measured
from specdemo.models.registry import Pair
from specdemo.models.sources import Source

EMBEDDED_TOKENS = 3.5
"""Tokens of the embedded target in the time that a GB of weights takes: 2.9 to 4.1 in the
rehearsals of seven models (docs/results/rehearsals.md)."""


def speed(pair: Pair) -> str:
    """Tokens/s of autoregressive decoding to those of speculative decoding with an acceptance rate
    of one half, as text; "" where the embedded pair has not been measured yet."""
    profile = _profile()
    if profile is None:
        return ""
    sizes, costs = zip(*profile.targets["exact"].costs.items(), strict=True)
    costs = np.minimum.accumulate(costs[::-1])[::-1]  # a forward may be padded to a larger one
    drafted = np.arange(9)  # tokens in a round
    verify = np.interp(drafted + 1, sizes, costs) * _share(pair.target)
    step = profile.draft_step if pair.embedded else costs[0] * _share(pair.draft)
    speeds = (2 - 0.5**drafted) / (drafted * step + verify)  # 1 + 1/2 + 1/4 ... tokens a round
    least, most = (
        f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}" for speed in (speeds[0], speeds.max())
    )
    return f"{least} to {most} tokens/s expected" if least != most else f"{least} tokens/s expected"


def _share(source: Source) -> float:
    """Time of a token of the model, relative to the embedded target's."""
    weights = source.ir_bytes or source.download_bytes
    return EMBEDDED_TOKENS * weights / 1e9 if source.repo else 1.0


def _profile() -> Profile | None:
    """The profile of the embedded pair on this machine, if it has the target's costs."""
    for about, profile in measured.profiles():
        here = about["machine"] == machine.describe() and about["devices"] == "CPU, CPU"
        costs = profile.targets["exact"].costs if "exact" in profile.targets else {}
        if here and about["target"].startswith(f"{embedded.TARGET} ") and 1 in costs:
            return profile
    return None
