"""Measures what rounding changes: greedy answers to short questions by a model from a GGUF file,
compared with those of the file's own weights and float32 activations in PyTorch.

python -m tools.rounding --model FILE.gguf --ways kernels,llama-cpp --prompts FILE --rows ROWS.jsonl
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate, product
from os.path import commonprefix
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import click
import gguf
import torch
from pydantic.dataclasses import dataclass
from torch.nn.functional import linear

from specdemo.audit import engines
from specdemo.bench.prompts import read_prompts
from specdemo.cli import main
from specdemo.commands.shared import json_option, load_pair, options_of, write_report
from specdemo.convert import gguf_file, model_files
from specdemo.convert.weights import BLOCK, FOURS
from specdemo.engine.backends import numerics
from specdemo.errors import BadInput
from specdemo.options import CONFIG, SPLIT, option
from specdemo.pairs.loading import LoadedPair
from specdemo.pairs.registry import NO_DRAFT, ModelChoice
from specdemo.runs.settings import Settings
from tools.agreement import choices

TOKENS = 20  # of an answer
TOGETHER = 32  # answers that are computed at once
LONGEST = 160  # characters of a question from a file
SHORT_QUESTIONS = Path(__file__).with_name("short_questions.json")
"""Templates of questions, and lists of what their blanks stand for."""

REFERENCE, KERNELS = "reference", "kernels"


class Rounding(NamedTuple):
    """Weights are the `file`'s, `int8`, or as `auto` converts them. Those of 8 bits have a scale
    for each row, or if `grouped` for each group of activations. Activations have 8 bits in groups
    of `group` (0: those of the kernels; None: float32). `wide` ones have 16 bits: those of
    "prompts", of the "output" matrix, of the first and the last layer ("ends"), or of matrices in
    "int8"."""

    weights: str
    group: int | None = 0
    wide: str = ""
    grouped: bool = False


EXACT = Rounding("file", None)
WIDE = "prompts", "ends", "output", "int8"
ROUNDINGS = {"file": Rounding("file")}
for _name in ("auto", "int8"):
    ROUNDINGS |= {
        _name: Rounding(_name),
        f"{_name}-float": Rounding(_name, None),
        f"{_name}-32": Rounding(_name, 32),
        f"{_name}-grouped": Rounding(_name, grouped=True),
        f"{_name}-grouped-float": Rounding(_name, None, grouped=True),
        **{f"{_name}-{wide}": Rounding(_name, wide=wide) for wide in WIDE},
    }


def questions(file: str) -> list[str]:
    """Short questions as visitors type them, from SHORT_QUESTIONS and a `file` of prompts, if any;
    in the same order each time."""
    known = json.loads(SHORT_QUESTIONS.read_text("utf-8"))
    asked = [
        template.format(*values)
        for template, names in known["templates"].items()
        for values in product(*(known["lists"].get(name, name).split(", ") for name in names))
    ]
    if file:
        texts = (prompt.instruction for prompt in read_prompts(file))
        asked += [text for text in texts if len(text) <= LONGEST]
    random.Random(0).shuffle(asked)
    return list(dict.fromkeys(asked))


def rounded(values: torch.Tensor, group: int, bits: int) -> torch.Tensor:
    """Activations [..., columns] as the kernels round them: each `group` of columns shares a scale,
    with which the largest becomes the largest integer of `bits`."""
    groups, largest = values.unflatten(-1, (-1, group)), 2 ** (bits - 1) - 1
    scales = groups.abs().amax(-1, keepdim=True) / largest
    integers = (groups / scales.clamp(min=torch.finfo(torch.float32).tiny)).round()
    return (integers * scales).flatten(-2)


def rounded_weights(weights: torch.Tensor, group: int) -> torch.Tensor:
    """Weights [rows, columns] in int8, as `convert.weights.quantized`: each `group` of columns
    shares a scale."""
    groups = weights.unflatten(-1, (-1, group))
    lowest, highest = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = torch.where(-lowest >= highest, lowest, highest) / -128
    integers = (groups / torch.where(scales == 0, 1, scales)).round().clamp(-128, 127)
    return (integers * scales.half().float()).flatten(-2)


def interval(count: int, total: int, deviations: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share, of 95 % (doi.org/10.2307/2276774)."""
    share, squared = count / total, deviations**2
    middle, scale = share + squared / 2 / total, 1 + squared / total
    half = deviations * math.sqrt(share * (1 - share) / total + squared / 4 / total**2)
    return max(middle - half, 0) / scale, (middle + half) / scale


class TorchDecoder:
    """A GGUF file's decoder in PyTorch, float32, whose products can be rounded."""

    def __init__(self, file: Path):
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
        self._model = model.eval().requires_grad_(False)
        self._prompt_rows = torch.zeros(0)  # which rows of activations belong to prompts
        self.rounding = EXACT
        header = gguf_file.read(file)
        layers = model.config.num_hidden_layers
        known = gguf.MODEL_ARCH_NAMES.items()
        kind = next(key for key, architecture in known if architecture == header.architecture)
        names = gguf.get_tensor_name_map(kind, layers)
        for path, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                name = names.get_name(path) or ""
                tensor = header.tensors.get(f"{name}.weight")
                own = bool(tensor and tensor.type in FOURS and name.startswith("blk."))
                ends = name.startswith(("blk.0.", f"blk.{layers - 1}."))
                place = "ends" if ends else name
                module.forward = partial(self._product, module, place, own)
        model.get_input_embeddings().register_forward_hook(self._embedded)

    def _embedded(self, _: Any, __: Any, rows: torch.Tensor) -> torch.Tensor:
        return rows if self.rounding.weights == "file" else self._int8(rows)

    def _int8(self, weights: torch.Tensor) -> torch.Tensor:
        columns = weights.shape[-1]
        group = math.gcd(columns, numerics.MAX_GROUP) if self.rounding.grouped else columns
        return rounded_weights(weights, group)

    def _product(
        self, module: torch.nn.Linear, place: str, own: bool, x: torch.Tensor
    ) -> torch.Tensor:
        way, weights = self.rounding, module.weight
        blocks = way.weights == "file" or own and way.weights == "auto"
        if not blocks:
            weights = self._int8(weights)
        if way.group is not None:
            group = way.group or math.gcd(x.shape[-1], BLOCK if blocks else numerics.MAX_GROUP)
            places = (place,) if blocks else (place, "int8")
            values = rounded(x, group, 16 if way.wide in places else 8)
            if way.wide == "prompts":
                values = torch.where(self._prompt_rows[..., None], rounded(x, group, 16), values)
            x = values
        return linear(x, weights, module.bias)

    def answers(self, prompts: Sequence[list[int]], stop_ids: Collection[int]) -> list[list[int]]:
        """Greedy answers of at most TOKENS tokens, with the stop token, of EXACT."""
        self.rounding = EXACT
        shared, beginning = self._beginning(prompts)
        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        ids = [
            [*prompt[:shared], *[0] * count, *prompt[shared:]]
            for prompt, count in zip(prompts, padding, strict=True)
        ]
        places = torch.arange(longest) - shared
        out = self._model.generate(
            torch.tensor(ids),
            attention_mask=((places < 0) | (places >= torch.tensor(padding)[:, None])).long(),
            past_key_values=beginning,
            max_new_tokens=TOKENS,
            do_sample=False,
            repetition_penalty=1.0,
            eos_token_id=list(stop_ids),
            pad_token_id=0,
        )
        return [_ended(row, stop_ids) for row in out[:, longest:].tolist()]

    def _beginning(self, prompts: Sequence[list[int]]) -> tuple[int, Any]:
        """How many tokens all the prompts begin with, and a cache that has read them."""
        shared = min(len(commonprefix(list(prompts))), min(map(len, prompts)) - 1)
        if not shared:
            return 0, None
        self._prompt_rows = torch.ones(1, shared, dtype=torch.bool)
        ids = torch.tensor([prompts[0][:shared]])
        cache = self._model.model(ids, use_cache=True).past_key_values
        cache.batch_repeat_interleave(len(prompts))
        return shared, cache

    def logits(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> torch.Tensor:
        """Those of each answer's tokens, one answer after the other: [tokens, vocabulary]."""
        shared, beginning = self._beginning(prompts)
        read = [[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers, strict=True)]
        longest = max(map(len, read))
        ids = torch.tensor([each + [0] * (longest - len(each)) for each in read])
        places = torch.arange(longest)[None]
        in_prompt = places < torch.tensor([[len(prompt)] for prompt in prompts])
        self._prompt_rows = in_prompt[:, shared:]
        states = self._model.model(ids[:, shared:], past_key_values=beginning).last_hidden_state
        wanted = places[:, shared:] >= torch.tensor([[len(prompt) - 1] for prompt in prompts])
        wanted &= places[:, shared:] < torch.tensor([[len(each)] for each in read])
        self._prompt_rows = self._prompt_rows[wanted]
        logits: torch.Tensor = self._model.lm_head(states[wanted])
        return logits


def _ended(tokens: Sequence[int], stop_ids: Collection[int]) -> list[int]:
    """The tokens up to a stop token, and it."""
    ends = [index + 1 for index, token in enumerate(tokens) if token in stop_ids]
    return list(tokens[: min(ends, default=len(tokens))])


Difference = dict[str, Any]
"""Whether the `first` token, and any token of the `answer`, is another than the reference's; of
simulations also the mean KL divergence from the reference, `nats` per token."""


def _difference(tokens: Sequence[int], answer: Sequence[int]) -> Difference:
    return {"first": tokens[0] != answer[0], "answer": list(tokens) != list(answer)}


def simulated(
    decoder: TorchDecoder,
    ways: Sequence[str],
    prompts: Sequence[list[int]],
    answers: Sequence[list[int]],
) -> Iterator[tuple[str, list[Difference]]]:
    """Of each way, what it changes in each answer."""
    decoder.rounding = EXACT
    ends = [*accumulate(map(len, answers))][:-1]
    exact = decoder.logits(prompts, answers).tensor_split(ends)
    for way in ways:
        decoder.rounding = ROUNDINGS[way]
        differences = []
        both = zip(
            exact,
            decoder.logits(prompts, answers).tensor_split(ends),
            answers,
            strict=True,
        )
        for expected, logits, answer in both:
            p, q = expected.log_softmax(-1), logits.log_softmax(-1)
            nats = float((p.exp() * (p - q)).sum(-1).mean())
            tokens = logits.argmax(-1).tolist()
            differences.append(_difference(tokens, answer) | {"nats": nats})
        yield way, differences


def of_peer(
    name: str, loaded: LoadedPair, texts: Iterable[str], answers: Iterable[list[int]]
) -> Iterator[Difference]:
    """What another engine, with its own properties, changes in each answer."""
    settings = Settings(max_new_tokens=TOKENS, temperature=0.0)
    peer, *_ = engines.peers_of(name, loaded, {})
    for text, answer in zip(texts, answers, strict=True):
        [(tokens, _)] = peer.answers([(text,)], settings)
        yield _difference(_ended(tokens, loaded.stop_ids), answer)
    peer.close()


@dataclass(frozen=True, slots=True, config=CONFIG)
class RoundingOptions:
    rows: str = option("rounding.jsonl", "file to which results are appended", metavar="FILE")
    prompts: str = option("", "JSONL whose short instructions are asked too", metavar="FILE")
    count: int = option(100, "questions to ask")
    ways: Annotated[tuple[str, ...], SPLIT] | None = option(
        None,
        "kernels, llama-cpp, openvino-genai, or roundings to simulate",
        metavar="NAME[,NAME]",
    )


@click.command()
@options_of(RoundingOptions, "options", variables=False)
@json_option
@options_of(ModelChoice, "choice")
def command(options: RoundingOptions, json_file: str | None, choice: ModelChoice) -> None:
    """Count greedy answers of 20 tokens, and their first tokens, that are not those of the file's
    own weights with float32 activations. Computes what the file of rows lacks, then prints the
    shares of all its ways."""
    ways = options.ways or ()
    known = (KERNELS, *engines.ADAPTERS, *ROUNDINGS)
    if unknown := set(ways) - {*known}:
        names = ", ".join(sorted(unknown))
        raise BadInput(f"--ways {names} is unknown; choose among {', '.join(known)}.")
    texts = questions(options.prompts)[: options.count]
    loaded = load_pair(replace(choice, assistant_model=NO_DRAFT if choice.pair else ""))
    target, name = loaded.target, loaded.info.target
    if not isinstance(target, Path) or not target.with_name(model_files.SOURCE).is_file():
        raise BadInput(f"{name} was not converted from a GGUF file; choose --model FILE.gguf.")
    rows = Rows(Path(options.rows), name)
    prompts = {text: list(loaded.template.render(text, loaded.tokenizer)) for text in texts}
    texts.sort(key=lambda text: len(prompts[text]))
    decoder = cache(lambda: TorchDecoder(target.with_name(model_files.SOURCE)))
    for batch in _batches(rows.missing(texts, REFERENCE)):
        given = decoder().answers([prompts[text] for text in batch], loaded.stop_ids)
        for text, answer in zip(batch, given, strict=True):
            rows.add(REFERENCE, text, {"ids": answer})
    answers = {text: rows.done[REFERENCE, text]["ids"] for text in texts}
    for way in (way for way in ways if way not in ROUNDINGS):
        left = rows.missing(texts, way)
        expected = [answers[text] for text in left]
        if way == KERNELS:
            tokens = choices(loaded, [prompts[text] for text in left], expected)
            differences: Iterator[Difference] = map(_difference, tokens, expected)
        else:
            differences = of_peer(way, loaded, left, expected)
        for text, difference in zip(left, differences, strict=True):
            rows.add(way, text, difference)
    simulations = [way for way in ways if way in ROUNDINGS]
    for batch in _batches(rows.missing(texts, *simulations)):
        read, expected = (
            [prompts[text] for text in batch],
            [answers[text] for text in batch],
        )
        for way, changed in simulated(decoder(), simulations, read, expected):
            for text, difference in zip(batch, changed, strict=True):
                rows.add(way, text, difference)
    summary = rows.summary()
    write_report(summary, json_file, {f"Answers of {name} that differ": summary})


def _batches(texts: list[str]) -> Iterator[list[str]]:
    return (texts[begin : begin + TOGETHER] for begin in range(0, len(texts), TOGETHER))


class Rows:
    """What was measured of a model, by way and question, in a file to which it is appended."""

    def __init__(self, path: Path, model: str):
        self._path, self._model = path, model
        self.done: dict[tuple[str, str], dict[str, Any]] = {}
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        for row in map(json.loads, lines):
            if row["model"] == model:
                self.done[row["way"], row["text"]] = row

    def add(self, way: str, text: str, result: dict[str, Any]) -> None:
        row = {"model": self._model, "way": way, "text": text, **result}
        self.done[way, text] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def missing(self, texts: Iterable[str], *ways: str) -> list[str]:
        """Those of which one of the ways is not measured."""
        return [text for text in texts if any((way, text) not in self.done for way in ways)]

    def summary(self) -> list[dict[str, Any]]:
        """Shares in percent with their intervals, and nats per token, of each way."""
        summary = []
        for way in dict.fromkeys(way for way, _ in self.done if way != REFERENCE):
            rows = [row for (name, _), row in self.done.items() if name == way]
            figures: dict[str, Any] = {"way": way, "n": len(rows)}
            for key in ("first", "answer"):
                count = sum(row[key] for row in rows)
                low, high = interval(count, len(rows))
                figures[key] = f"{count / len(rows):.1%} ({low:.1%} to {high:.1%})"
            nats = [row["nats"] for row in rows if "nats" in row]
            summary.append(figures | {"nats": f"{sum(nats) / len(nats):.4f}" if nats else ""})
        return summary


if __name__ == "__main__":
    sys.exit(main(command=command, name="rounding"))
