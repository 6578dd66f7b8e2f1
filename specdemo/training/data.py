"""Training data, all made by the target: made-up instructions, the target's answers, and its hidden
states at each answer token. A draft head reads the states and learns the logits that they give.

Instructions are made from prompts.toml and from passages of the target's earlier answers. Two of
three answers are greedy; the third is sampled, so that the head also learns what follows a less
likely token. All data is kept in files of GROUP conversations. So an interrupted run continues, and
ends with the same data.
"""

import json
import os
import random
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import jinja2
import numpy as np
import openvino as ov
from pydantic import TypeAdapter
from tqdm import tqdm

from specdemo.engine.messages import ModelSettings, Run
from specdemo.engine.model import open_model
from specdemo.errors import BadInput
from specdemo.models.load import LoadedPair
from specdemo.session import ACTIVE_REQUESTS, Session
from specdemo.settings import Settings
from specdemo.training.settings import TrainSettings

_DATA = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
_FORMS = jinja2.Environment(
    variable_start_string="{", variable_end_string="}", undefined=jinja2.StrictUndefined
)
MIX: dict[str, float] = _DATA["mix"]  # the share of each kind of instruction
GIVEN, ASKED = "text", "asked"  # kinds: a user's own conversations, and own instructions
GROUP, TEMPERATURE = 64, 0.7
LEAST_PASSAGE = 40  # passages are cut from answers of at least as many tokens
LONGEST = 1024  # tokens that are used of an answer in a user's own file
TOGETHER = 1024  # tokens that the target reads in one forward: 1.3 times as fast as one answer
LOOKUP = 4  # tokens of the longest context of n-gram lookup
# Depths where a head reads the residual stream, beside the last hidden state: agreement 0.400 with
# them, 0.376 without, for SmolLM2-135M after 164,000 chains.
THIRDS = (1 / 3, 2 / 3)


@dataclass(frozen=True, slots=True)
class Conversation:
    """An instruction and its answer, as text and as token ids with the stop token, if it has one.
    `greedy`: every answer token is the target's most likely one."""

    kind: str
    greedy: bool
    instruction: str
    text: str
    answer: tuple[int, ...]


def instruction(number: int, answers: Sequence[str]) -> tuple[str, str]:
    """The kind and the text of instruction `number`; equal arguments give equal instructions.

    Passages are cut from `answers`; without any, kinds that need a passage become writing tasks.
    """
    rng = random.Random(number)
    kind = rng.choices(list(MIX), list(MIX.values()))[0]
    if not answers and kind in ("summary", "passage question"):
        kind = "writing"
    values = _passage(rng, answers or [""])
    for names, source in _DATA["values"].items():
        if isinstance(source, list):
            values[names] = rng.randint(*source)
        else:
            drawn = rng.sample(" ".join(source.split()).split(", "), len(names.split()))
            values |= zip(names.split(), drawn, strict=True)
    for name, forms in _DATA["parts"].items():
        values[name] = _FORMS.from_string(rng.choice(forms)).render(values)
    form = rng.choices(_DATA["forms"][kind], _DATA["weights"].get(kind))[0]
    return kind, _FORMS.from_string(form).render(values)


def _passage(rng: random.Random, answers: Sequence[str]) -> dict[str, str | int]:
    """`passage`: one to four answers, joined and cut after a word. `phrase`: 2 to 4 words of it."""
    joint = rng.choice((" ", "\n"))
    passage = joint.join(" ".join(rng.choice(answers).split()) for _ in range(rng.randint(1, 4)))
    passage = passage[: rng.randint(400, 2200)].rsplit(" ", 1)[0]
    words = [word.strip('.,:;()"') for word in passage.split()]
    at = rng.randrange(max(1, len(words) - 4))
    return {"passage": passage, "phrase": " ".join(words[at : at + rng.randint(2, 4)])}


def given(path: Path, loaded: LoadedPair) -> tuple[list[Conversation], list[str]]:
    """The conversations of a user's own file, marked as greedy, and its instructions that have no
    answer yet. Raises BadInput."""
    conversations, unanswered = [], []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            asked, answered = str(row["u"]), str(row.get("a", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f'--text {path}: line {number} is not {{"u": "INSTRUCTION", "a": "ANSWER"}} (the '
                "answer may be missing)."
            ) from error
        if not answered:
            unanswered.append(asked)
            continue
        answer = tuple(loaded.tokenizer.encode(answered, special=False)[:LONGEST])
        conversations.append(Conversation(GIVEN, True, asked, answered, answer))
    return conversations, unanswered


def written(
    loaded: LoadedPair, folder: Path, settings: TrainSettings, unanswered: Sequence[str] = ()
) -> list[Conversation]:
    """Let the target answer instructions, first those of the user, until the answers in `folder`
    have `settings.tokens` tokens. Gives all these conversations. Raises as `Session`."""
    folder.mkdir(exist_ok=True)
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.open("rb")]
    known = [TypeAdapter(Conversation).validate_json(line) for line in lines]
    done = sum(len(one.answer) for one in known)
    if done >= settings.tokens:
        return known
    with (
        tqdm(total=settings.tokens, initial=done, desc="Writing text", unit=" tokens") as bar,
        ThreadPoolExecutor(ACTIVE_REQUESTS) as pool,
        Session(loaded) as session,
    ):

        def answer(number: int) -> Conversation:
            if number < len(unanswered):
                kind, asked = ASKED, unanswered[number]
            else:
                kind, asked = instruction(number, passages)
            prompt = loaded.template.render(asked, loaded.tokenizer)
            if len(prompt) + settings.answer_tokens > loaded.context_limit:
                kind, asked = instruction(number, ())
            temperature = 0.0 if number % 3 else TEMPERATURE
            how = Settings(settings.answer_tokens, temperature=temperature, seed=number)
            *_, trace = session.answer(asked, how)
            return Conversation(kind, not temperature, asked, trace.text, trace.token_ids)

        while bar.n < settings.tokens:
            passages = [one.text for one in known if len(one.answer) >= LEAST_PASSAGE]
            first = len(known)
            for one in pool.map(answer, range(first, first + GROUP)):
                known.append(one)
                bar.update(len(one.answer))
            content = "".join(json.dumps(asdict(one)) + "\n" for one in known[first:])
            partial = folder / "partial"
            partial.write_text(content, encoding="utf-8")
            os.replace(partial, folder / f"{first:07d}.jsonl")
    return known


@dataclass(frozen=True, slots=True)
class Rows:
    """The tokens of all answers, a row each. `states`, float16 [n, H + 1]: the hidden state that
    gave the token (its first columns times the output matrix are the logits), then the log-sum-exp
    of the logits. `tokens`, int64 [n]. `weights`, float32 [n]: in the loss. `ends`, int64 [n]: the
    row after the last one of the same answer."""

    states: np.ndarray
    tokens: np.ndarray
    weights: np.ndarray
    ends: np.ndarray


def read_rows(loaded: LoadedPair, conversations: Sequence[Conversation], folder: Path) -> Rows:
    """The rows of all answers; `folder` keeps their states. Raises ModelError."""
    folder.mkdir(exist_ok=True)
    files, read = [], None
    for start in tqdm(range(0, len(conversations), GROUP), desc="Reading the target's states"):
        group = conversations[start : start + GROUP]
        count = sum(len(one.answer) for one in group)
        files.append(folder / f"{start:07d}.npy")
        # With more text, the last group of an earlier run has more conversations.
        if not files[-1].is_file() or len(np.load(files[-1], mmap_mode="r")) != count:
            read = read or _reader(loaded)
            partial = folder / "partial.npy"
            np.save(partial, read(group))
            os.replace(partial, files[-1])
    prompts = [
        tuple(loaded.template.render(one.instruction, loaded.tokenizer)) for one in conversations
    ]
    answers = [one.answer for one in conversations]
    lengths = [len(answer) for answer in answers]
    return Rows(
        np.concatenate([np.load(file, mmap_mode="r") for file in files]),
        np.concatenate([np.asarray(answer, np.int64) for answer in answers]),
        np.concatenate([*map(lookup_weights, prompts, answers)]),
        np.repeat(np.cumsum(lengths), lengths),
    )


def lookup_weights(prompt: tuple[int, ...], answer: tuple[int, ...]) -> np.ndarray:
    """The weight of each answer token, float32 [n]: 1 if the two tokens before it did not occur in
    this order earlier. Otherwise n-gram lookup drafts: 0.15 if it is right, 0.5 if not."""
    known = prompt + answer
    followed: dict[tuple[int, ...], int] = {}
    weights = []
    for at in range(1, len(known)):
        endings = [known[at - n : at] for n in range(min(LOOKUP, at), 0, -1)]
        if at >= len(prompt):
            longest = next((ending for ending in endings if ending in followed), ())
            wrong = 0.15 if followed.get(longest) == known[at] else 0.5
            weights.append(wrong if len(longest) > 1 else 1.0)
        followed.update(dict.fromkeys(endings, known[at]))
    return np.array(weights, np.float32)


def _reader(loaded: LoadedPair) -> Callable[[Sequence[Conversation]], np.ndarray]:
    """A function from conversations to their states, in the plugin's default numerics but for the
    KV cache: scales of u8 depend on the other tokens in a block."""
    settings = ModelSettings(properties=(("KV_CACHE_PRECISION", "f16"),), hidden=THIRDS)
    model = open_model(loaded.target, settings, ov.Core())

    def read(conversations: Sequence[Conversation]) -> np.ndarray:
        rows, runs = [], []
        for at, one in enumerate(conversations, start=1):
            tokens = [*loaded.template.render(one.instruction, loaded.tokenizer), *one.answer]
            runs.append(Run(model.new_sequence(), tokens[:-1], len(one.answer)))
            if sum(len(run.tokens) for run in runs) > TOGETHER or at == len(conversations):
                found = model.forward(runs)
                rows += [np.hstack([logits.state, logits.log_sum[:, None]]) for logits in found]
                while runs:
                    runs.pop().sequence.release()
        return np.concatenate(rows).clip(-65504, 65504).astype(np.float16)

    return read
