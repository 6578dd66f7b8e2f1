"""Instructions from public datasets, for `train-draft --text`: what people ask about real texts.

The embedded draft head learned from such instructions; the target itself answered them. Clone into
one folder github.com/yizhongw/self-instruct, openai/grade-school-math,
google-research-datasets/natural-questions and rathorology/Europarl-LanguageDetection, then

    python tools/public_prompts.py CLONES BENCHMARK.jsonl > prompts.jsonl

Instructions that share eight words in a row with an instruction of the benchmark are left out.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The first words of file names of T0 prompts, and how many instructions to take of them.
T0 = {
    **{"cnn_dailymail": 1680, "xsum": 1680, "multi_news": 1000, "samsum": 600, "gigaword": 320},
    **{"adversarial_qa": 2600, "quoref": 800, "ropes": 480, "duorc": 800, "sciq_Direct": 600},
    **{"quartz_use": 240, "cosmos_qa_no": 320, "wiki_bio": 600, "kilt": 1200},
    **{"common_gen_top": 320, "commonsense": 240, "social_i_qa_Gen": 320},
}
LONGEST = 6500  # characters of a T0 prompt
RETRIEVAL = [
    "{passages}\n\nUsing the passages above, answer this question: {question}",
    "Answer the question from these documents.\n{passages}\nQuestion: {question}",
    "Here are some search results:\n{passages}\n\n{question}",
    "Question: {question}\nContext:\n{passages}\nAnswer in a few sentences.",
]
TRANSLATION = [
    "Translate German to English: {text}",
    "Translate this into English: {text}",
    "Translate the following German text to English.\n\n{text}",
    'What does this mean in English? "{text}"',
    "{text}\n\nTranslate to English.",
    "Please translate from German: {text}",
]


def instructions(clones: Path, rng: random.Random) -> Iterator[str]:
    """All instructions, source by source."""
    templates = clones / "self-instruct/data/finetuning/t0_train_50k/data_per_template"
    for begin, count in T0.items():
        prompts = [row["prompt"].strip() for row in _rows(templates, f"{begin}*.jsonl")]
        # Templates share their texts: one instruction for each text.
        texts = {text[len(text) // 2 :][:40]: text for text in prompts if len(text) <= LONGEST}
        yield from rng.sample(list(texts.values()), min(count, len(texts)))
    passages = {}
    for row in _rows(templates, "adversarial_qa*.jsonl"):
        passage = max(row["prompt"].split("\n"), key=len).strip(' "')
        if match := re.search(r'[^\n."]{20,160}\?', row["prompt"]):
            passages[passage] = match[0].strip()
    for passage, question in rng.sample(list(passages.items()), min(1800, len(passages))):
        shown = rng.sample(list(passages), rng.randint(0, 2)) + [passage]
        rng.shuffle(shown)
        numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(shown, start=1))
        yield rng.choice(RETRIEVAL).format(passages=numbered, question=question)
    languages = clones / "Europarl-LanguageDetection/europarl.test"
    for line in languages.read_text("utf-8").splitlines():
        language, _, text = line.partition("\t")
        if language == "de" and 25 < len(text) < 500:
            yield rng.choice(TRANSLATION).format(text=text.strip())
    solved = clones / "grade-school-math/grade_school_math/data"
    yield from (row["question"] for row in _rows(solved, "train.jsonl"))
    searched = _rows(clones / "natural-questions/nq_open", "NQ-open.efficientqa.test*.jsonl")
    for question in (row["question"] for row in searched):
        yield f"{question[0].upper()}{question[1:]}?"
    for row in [
        *_rows(clones / "self-instruct/data", "seed_tasks.jsonl"),
        *_rows(clones / "self-instruct/human_eval", "user_oriented_instructions.jsonl"),
    ]:
        text = row["instances"][0].get("input", "") if row["instances"] else ""
        yield f"{row['instruction']}\n\n{text}".strip()


def _rows(folder: Path, names: str) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(names)):
        yield from map(json.loads, path.read_text("utf-8").splitlines())


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[begin : begin + 8]) for begin in range(max(1, len(words) - 7))}


def main() -> None:
    clones, benchmark = map(Path, sys.argv[1:])
    kept_aside = set().union(
        *(_runs(row["instruction"]) for row in _rows(benchmark.parent, benchmark.name))
    )
    rng = random.Random(11)
    chosen = [text for text in instructions(clones, rng) if not _runs(text) & kept_aside]
    rng.shuffle(chosen)
    for text in chosen:
        print(json.dumps({"u": text}))


if __name__ == "__main__":
    main()
