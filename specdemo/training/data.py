"""Training data, all made by the target: instructions, the target's answers, and its hidden states
at each answer token. A draft head reads the states and learns the logits that they give.

Some instructions are written by the target itself; the others are made from prompts.toml and from
passages of the target's earlier answers. Every second answer is sampled, so that the head also
learns what follows a less likely token. All data is kept in files of GROUP conversations. So an
interrupted run continues, and ends with the same data.
"""

import functools
import hashlib
import json
import logging
import random
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path

import jinja2
import numpy as np
import openvino as ov
from pydantic import TypeAdapter

from specdemo.engine import cache
from specdemo.engine.backends import kernels, numerics
from specdemo.engine.backends.graph import read_ir
from specdemo.engine.backends.paged import open_model
from specdemo.engine.drafts.lookup import NgramTable
from specdemo.engine.forwards import Logits, Model, ModelSettings, Run, Taps
from specdemo.engine.sampling import Sampling, choose
from specdemo.errors import BadInput
from specdemo.machine.disk import replacing
from specdemo.machine.terminal import Progress, progress_bar
from specdemo.options import shown
from specdemo.pairs.loading import LoadedPair
from specdemo.text.tokenizer import Tokenizer
from specdemo.training.recipe import TrainSettings

log = logging.getLogger(__name__)
_DATA = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
_FORMS = jinja2.Environment(
    variable_start_string="{", variable_end_string="}", undefined=jinja2.StrictUndefined
)
_form = functools.cache(_FORMS.from_string)
MIX: dict[str, float] = _DATA["mix"]  # the share of each kind of instruction
ANSWERED, UNANSWERED = "text", "asked"  # kinds: a user's conversations, and instructions
BY_TARGET = "own"  # kind of the instructions that the target writes
INSTRUCTION_TOKENS, INSTRUCTION_TEMPERATURE = 64, 0.85  # of these
GROUP = 256  # conversations in a file
TEMPERATURES = (0.7, 1.0)
MIN_PASSAGE_TOKENS = 40  # passages are cut from answers of at least as many tokens
MAX_ANSWER_TOKENS = 1024  # that are used of an answer in a user's file
FORWARD_TOKENS = 1024  # that the target reads in one forward: 1.3 times as fast as one answer
FORWARD_ANSWERS = 128  # that grow by a token in one forward, as far as their cache has room
CACHE_BYTES = 2 << 30
# Depths where a head reads the residual stream, beside the last hidden state: agreement 0.400 with
# them, 0.376 without, for SmolLM2-135M after 164,000 chains.
THIRDS = (1 / 3, 2 / 3)


@dataclass(frozen=True, slots=True)
class Conversation:
    """An instruction and its answer."""

    kind: str
    greedy: bool  # every answer token is the target's most likely one
    instruction: str
    text: str
    answer: tuple[int, ...]  # with the stop token, if it has one


def instruction(number: int, answers: Sequence[str], by_target: str = "") -> tuple[str, str]:
    """The kind and the text of instruction `number`; equal arguments give equal instructions.
    Passages are cut from `answers`. Kinds that need one become prose without any, and so does the
    instruction `by_target` if it is empty."""
    rng = random.Random(number)
    kind = rng.choices(list(MIX), list(MIX.values()))[0]
    if kind == BY_TARGET and by_target:
        return kind, by_target
    if kind == BY_TARGET or not answers and kind in ("summary", "passage question"):
        kind = "prose"
    values = _passage(rng, answers or [""])
    for names, source in _DATA["values"].items():
        if isinstance(source, list):
            values[names] = rng.randint(*source)
        else:
            drawn = rng.sample(" ".join(source.split()).split(", "), len(names.split()))
            values |= zip(names.split(), drawn, strict=True)
    for name, forms in _DATA["parts"].items():
        values[name] = _form(rng.choice(forms)).render(values)
    form = rng.choices(_DATA["forms"][kind], _DATA["weights"].get(kind))[0]
    return kind, _form(form).render(values)


def _passage(rng: random.Random, answers: Sequence[str]) -> dict[str, str | int]:
    """`passage`: one to four answers, joined and cut after a word. `phrase`: 2 to 4 words of it."""
    joint = rng.choice((" ", "\n"))
    passage = joint.join(" ".join(rng.choice(answers).split()) for _ in range(rng.randint(1, 4)))
    passage = passage[: rng.randint(400, 2200)].rsplit(" ", 1)[0]
    words = [word.strip('.,:;()"') for word in passage.split()]
    start = rng.randrange(max(1, len(words) - 4))
    return {"passage": passage, "phrase": " ".join(words[start : start + rng.randint(2, 4)])}


def read_conversations(
    path: Path, folder: Path, loaded: LoadedPair
) -> tuple[dict[Path, list[Conversation]], list[str]]:
    """The conversations of a user's own file, marked as greedy, by the file in `folder` that keeps
    their states; and its instructions that have no answer yet. Says which are left out because
    the context cannot hold them. Raises BadInput."""
    conversations, unanswered = [], []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question, text = str(row["u"]), str(row.get("a", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f'--text {path}: line {number} is not {{"u": "INSTRUCTION", "a": "ANSWER"}} (the '
                "answer may be missing)."
            ) from error
        answer = tuple(loaded.tokenizer.encode_beginning(text)[:MAX_ANSWER_TOKENS])
        length = len(loaded.template.render(question, loaded.tokenizer)) + len(answer)
        if length > loaded.context_limit:
            _say_left_out(question, length)
        elif answer:
            conversations.append(Conversation(ANSWERED, True, question, text, answer))
        else:
            unanswered.append(question)
    groups = {}
    for start in range(0, len(conversations), GROUP):
        group = conversations[start : start + GROUP]
        digest = hashlib.sha256(repr(group).encode()).hexdigest()[:16]
        groups[folder / f"{start:07d}-{digest}.npy"] = group
    for path in set(folder.glob("*.npy")) - groups.keys():  # of a text before it was edited
        path.unlink()
    return groups, unanswered


def _say_left_out(text: str, tokens: int) -> None:
    log.warning(
        f"--text: the instruction {shown(text)} is left out, as its {tokens:,} tokens with an "
        "answer are more than the target's context or KV cache holds."
    )


@dataclass(slots=True, eq=False)
class _Answer:
    """An answer that the target writes to `prompt`, with a row of `Rows.states` for each token."""

    kind: str
    instruction: str
    prompt: list[int]
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)

    def grow(self, logits: Logits) -> None:
        if self.sampling.greedy:
            token = logits.row(0).best()
        else:
            token = choose(logits.rows[0], self.sampling, len(self.tokens))
        self.tokens.append(token)
        self.states.append(_states(logits))

    def conversation(self, stop_ids: Set[int], tokenizer: Tokenizer) -> Conversation:
        stopped = self.tokens[-1] in stop_ids
        text = tokenizer.decode(self.tokens[: -1 if stopped else None])
        greedy, answer = self.sampling.greedy, tuple(self.tokens)
        return Conversation(self.kind, greedy, self.instruction, text, answer)


def write_conversations(
    loaded: LoadedPair, folder: Path, settings: TrainSettings, unanswered: Sequence[str] = ()
) -> dict[Path, list[Conversation]]:
    """Let the target answer instructions, first those of the user, until the answers in `folder`
    have `settings.tokens` tokens. Gives all these conversations, by the file of their states.
    Raises ModelError, and BadInput if the user took out an instruction that has an answer there."""
    folder.mkdir(exist_ok=True)
    adapter, paths = TypeAdapter(Conversation), sorted(folder.glob("*.jsonl"))
    read = {path: [adapter.validate_json(line) for line in path.open("rb")] for path in paths}
    groups = {path.with_suffix(".npy"): group for path, group in read.items()}
    known = [conversation for group in groups.values() for conversation in group]
    asked = dict.fromkeys(old.instruction for old in known if old.kind == UNANSWERED)
    given = dict.fromkeys(unanswered)
    for text in asked:
        if text not in given:
            raise BadInput(
                f"--text no longer has the instruction {text:.80} without an answer, which the "
                f"target answered in {folder}; put it back, or name another --out."
            )
    pending = deque(text for text in unanswered if text not in asked)
    count = sum(len(conversation.answer) for conversation in known)
    if count >= settings.tokens:
        return groups
    model, longest = _opened(loaded), settings.answer_tokens

    def begin(number: int, passages: Sequence[str], by_target: str) -> _Answer:
        kind, text = instruction(number, passages, by_target)
        if pending:
            kind, text = UNANSWERED, pending.popleft()
        prompt = loaded.template.render(text, loaded.tokenizer)
        length = len(prompt) + longest
        if length > loaded.context_limit or _blocks(model, length) > model.pool.limit:
            if kind == UNANSWERED:
                _say_left_out(text, length)
            kind, text = instruction(number, ())
            prompt = loaded.template.render(text, loaded.tokenizer)
        temperature = 0.0 if number % 2 else random.Random(number).uniform(*TEMPERATURES)
        return _Answer(kind, text, prompt, Sampling(temperature, seed=number))

    with progress_bar() as report:
        while count < settings.tokens:
            passages = [old.text for old in known if len(old.answer) >= MIN_PASSAGE_TOKENS]
            wanted = -(-(settings.tokens - count) // longest)
            numbers = range(len(known), len(known) + min(GROUP, wanted))
            by_target = _write_instructions(loaded, model, numbers[len(pending) :])
            answers = [begin(number, passages, by_target.get(number, "")) for number in numbers]
            for _ in _complete(answers, model, longest, loaded.stop_ids):
                written = count + sum(len(answer.tokens) for answer in answers)  # unfinished, too
                report(Progress("Writing text", written, settings.tokens, unit="tokens"))
            path = folder / f"{len(known):07d}.npy"
            _save(path, np.concatenate([row for answer in answers for row in answer.states]))
            group = [answer.conversation(loaded.stop_ids, loaded.tokenizer) for answer in answers]
            content = "".join(json.dumps(asdict(conversation)) + "\n" for conversation in group)
            with replacing(path.with_suffix(".jsonl")) as partial:
                partial.write_text(content, encoding="utf-8")
            groups[path] = group
            known += group
            count += sum(len(conversation.answer) for conversation in group)
    return groups


def _write_instructions(loaded: LoadedPair, model: Model, numbers: range) -> dict[int, str]:
    """What the target writes in a user's place (Magpie, arXiv 2406.08464), by the numbers of the
    instructions of this kind; empty where it writes nothing. Where the template puts nothing before
    an instruction, a line break stands there."""
    tokenizer = loaded.tokenizer
    before = list(loaded.template.prefix(tokenizer)) or tokenizer.encode("\n")
    answers = {
        number: _Answer(BY_TARGET, "", before, Sampling(INSTRUCTION_TEMPERATURE, seed=number))
        for number in numbers
        if instruction(number, (), BY_TARGET)[0] == BY_TARGET
    }
    ends = loaded.stop_ids | tokenizer.special_ids
    for _ in _complete(list(answers.values()), model, INSTRUCTION_TOKENS, ends):
        pass
    read = {n: answer.conversation(ends, tokenizer) for n, answer in answers.items()}
    return {n: conversation.text.strip() for n, conversation in read.items()}


def _complete(
    answers: Sequence[_Answer], model: Model, longest: int, stop_ids: Set[int]
) -> Iterator[_Answer]:
    """Each forward adds a token to all answers that are begun, and reads prompts of others. Yields
    the answers as they end: with a stop token, or with `longest` tokens."""

    def blocks(answer: _Answer) -> int:
        return _blocks(model, len(answer.prompt) + longest)

    waiting = list(answers)
    begun: dict[_Answer, cache.KVSequence] = {}
    while waiting or begun:
        runs = [Run(sequence, answer.tokens[-1:], 1) for answer, sequence in begun.items()]
        free, read = model.pool.limit - sum(map(blocks, begun)), 0
        while waiting and len(begun) < FORWARD_ANSWERS and blocks(waiting[0]) <= free:
            if 0 < read > FORWARD_TOKENS - len(waiting[0].prompt):
                break
            answer = waiting.pop(0)
            begun[answer] = model.new_sequence()
            runs.append(Run(begun[answer], answer.prompt, 1))
            free, read = free - blocks(answer), read + len(answer.prompt)
        for answer, logits in zip(begun, model.forward(runs), strict=True):
            answer.grow(logits)
        for answer in list(begun):
            if answer.tokens[-1] in stop_ids or len(answer.tokens) == longest:
                begun.pop(answer).release()
                yield answer


@dataclass(frozen=True, slots=True)
class Rows:
    """The tokens of all answers, a row each."""

    states: np.ndarray  # float16 [n, H + 1]: hidden states, then the log-sum-exp of the logits
    tokens: np.ndarray  # int64 [n]
    weights: np.ndarray  # float32 [n]: in the loss
    ends: np.ndarray  # int64 [n]: the row after the last one of the same answer


def read_rows(loaded: LoadedPair, groups: Mapping[Path, Sequence[Conversation]]) -> Rows:
    """The rows of all answers. Those whose file has no states yet are read. Raises ModelError."""
    model = None
    with progress_bar() as report:
        for number, (path, group) in enumerate(groups.items()):
            text = "Reading the target's states"
            report(Progress(text, number, len(groups), unit="groups of answers"))
            count = sum(len(conversation.answer) for conversation in group)
            if not path.is_file() or len(np.load(path, mmap_mode="r")) != count:
                path.parent.mkdir(exist_ok=True)
                model = model or _opened(loaded)
                _save(path, _read(model, loaded, group))
    answers, weights = [], []
    for conversation in (conversation for group in groups.values() for conversation in group):
        prompt = tuple(loaded.template.render(conversation.instruction, loaded.tokenizer))
        answers.append(np.asarray(conversation.answer, np.int64))
        weights.append(lookup_weights(prompt, conversation.answer))
    lengths = list(map(len, answers))
    return Rows(
        np.concatenate([np.load(path, mmap_mode="r") for path in groups]),
        np.concatenate(answers),
        np.concatenate(weights),
        np.repeat(np.cumsum(lengths), lengths),
    )


def lookup_weights(prompt: tuple[int, ...], answer: tuple[int, ...]) -> np.ndarray:
    """The weight of each answer token, float32 [n]: 1 if the two tokens before it did not occur in
    this order earlier. Otherwise n-gram lookup drafts: 0.15 if it is right, 0.5 if not."""
    text, table = prompt + answer, NgramTable()
    weights = []
    for place in range(len(prompt), len(text)):
        table.read(text[:place])
        token, length, _ = table.find(text[:place]) or (-1, 0, False)
        weights.append(1.0 if length < 2 else 0.15 if token == text[place] else 0.5)
    return np.array(weights, np.float32)


def _opened(loaded: LoadedPair) -> Model:
    """The target with the states that a head reads, in the plugin's default numerics but for the
    KV cache, where scales of u8 depend on the other tokens in a block, and for the group of
    activations: with 64, not 32, the embedded target writes 1.2 times as fast (Zen 4)."""
    core, source = ov.Core(), loaded.target
    properties = [("KV_CACHE_PRECISION", "f16")]
    if isinstance(source, Path):
        group = numerics.activation_group(read_ir(core, source))
        properties.append((kernels.GROUP, str(group)))
    settings = ModelSettings(properties=tuple(properties), hidden=Taps(fractions=THIRDS))
    model = open_model(source, settings, core)
    model.resize_cache(CACHE_BYTES // model.block_bytes)
    return model


def _blocks(model: Model, tokens: int) -> int:
    """The most cache blocks that so many tokens of an answer and its prompt take."""
    return -(-tokens // model.block_size) + model.pool.state_blocks(tokens, 0)


def _read(model: Model, loaded: LoadedPair, group: Sequence[Conversation]) -> np.ndarray:
    """`Rows.states` of answers, [n, H + 1], FORWARD_TOKENS tokens in a forward."""
    rows: list[np.ndarray] = []
    runs: list[Run] = []

    def read() -> None:
        rows.extend(map(_states, model.forward(runs)))
        while runs:
            runs.pop().sequence.release()

    for conversation in group:
        prompt = loaded.template.render(conversation.instruction, loaded.tokenizer)
        answer = conversation.answer
        run = Run(model.new_sequence(), [*prompt, *answer[:-1]], len(answer))
        sizes = [len(other.tokens) for other in (*runs, run)]
        blocks = sum(_blocks(model, size) for size in sizes)
        if runs and (sum(sizes) > FORWARD_TOKENS or blocks > model.pool.limit):
            read()
        runs.append(run)
    read()
    return np.concatenate(rows)


def _states(logits: Logits) -> np.ndarray:
    assert logits.state is not None, "the model was compiled for a head"
    rows = np.hstack([logits.state[-len(logits.rows) :], logits.log_sum[:, None]])
    return rows.clip(-65504, 65504).astype(np.float16)


def _save(path: Path, states: np.ndarray) -> None:
    with replacing(path) as partial:
        np.save(partial, states)
