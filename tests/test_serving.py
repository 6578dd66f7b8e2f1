"""The API over toy models: every shape and error that OpenAI's clients rely on. A token is a
character."""

import asyncio
import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial, reduce
from http.client import HTTPConnection
from itertools import product
from operator import getitem
from pathlib import Path
from unittest.mock import Mock

import httpx
import openai
import pytest
from helpers import CHATML, paths, served, until
from pydantic import ValidationError
from tokenizers import normalizers
from toy_session import LOGIT, TOKENIZER, ToySession, byte_pair

from specdemo.engine import scheduler
from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.machine.terminal import Progress
from specdemo.pairs.registry import PairInfo
from specdemo.runs.saved_run import from_json
from specdemo.server import openai_api, schema
from specdemo.server.backend import LocalBackend
from specdemo.server.schema import DEFAULTS, ChatRequest, CompletionRequest
from specdemo.server.server_options import ServeOptions
from specdemo.text.templates import Template
from specdemo.text.tokenizer import Tokenizer

QUESTION = [{"role": "user", "content": "Count, please."}]


INFO = PairInfo("scripted", "Scripted-1", None, "abc123", "def456")
TEXT = "One two three four five six "  # the answer, over and over
UNDRAFTED = {"speculative": {"drafter": "none"}}


def scripted(kind: type[ToySession] = ToySession) -> ToySession:
    loaded = replace(byte_pair(), template=CHATML)
    return kind(TEXT, loaded=loaded, info=INFO, context_limit=512)


@pytest.fixture(scope="module")
def toy():
    with scripted() as toy:
        yield toy


@pytest.fixture(scope="module")
def encode(toy):
    return partial(toy.loaded.tokenizer.encode, special=False, bos=True)


@pytest.fixture(scope="module")
def server(toy):
    with served(toy) as running:
        yield running


def client_of(server, key: str = "unused") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(scope="module")
def complete(client):
    return partial(client.completions.create, model="Scripted-1")


def prompt_of(toy: ToySession) -> tuple[int, ...]:
    """The latest."""
    return toy.questions[-1].prompt


def chat(client, **more):
    return client.chat.completions.create(**{"model": "Scripted-1", "messages": QUESTION, **more})


def streamed(client, **more) -> list:
    return list(chat(client, stream=True, **more))


def text_of(chunks) -> str:
    """The text of a stream."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


# What clients read


def test_the_client_lists_the_model_and_gets_it_by_either_name_and_no_other(client, toy):
    [model] = client.models.list().data
    figures = {"context_length": 512, "max_answer_tokens": 511, "vocabulary_size": 258}
    names = {"id": "Scripted-1", "object": "model", "owned_by": "specdemo", "pair": "scripted"}
    names |= {"draft": None, "target_revision": "abc123", "draft_revision": "def456"}
    names |= {"numerics_found": toy.info.numerics_found}
    assert model.model_dump(exclude={"created", "shutdown_date"}) == names | figures
    assert client.models.retrieve("Scripted-1") == model
    assert chat(client, model="scripted", max_tokens=1).model == "Scripted-1"
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, model="gpt-9")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_a_chat_answer_has_text_usage_finish_reason_and_what_speculation_did(
    client, toy, monkeypatch
):
    monkeypatch.setattr(toy.draft, "right", (1, 2))
    drafting = {"speculative": {"drafter": "model", "draft_tokens": 2}}
    ask = partial(chat, client, max_tokens=8, temperature=0, extra_body=drafting)
    answer = ask()
    choice, usage = answer.choices[0], answer.usage
    assert (choice.message.content, choice.finish_reason) == ("One two ", "length")
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt_of(toy)), 8)
    assert usage.total_tokens == usage.prompt_tokens + 8
    figures = answer.model_extra["speculative"]
    counts = {"rounds": 5, "tokens": 8, "draft_tokens": 7, "accepted_tokens": 3}
    counts |= {"acceptance_rate": 3 / 6, "tokens_per_round": 7 / 4}
    assert {name: value for name, value in figures.items() if name in counts} == counts
    assert "trace" not in figures
    assert ask().usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens


def test_a_stream_begins_with_the_role_joins_to_the_answer_and_ends_with_usage(client, server):
    options = {"max_tokens": 6, "stream_options": {"include_usage": True}}
    options |= {"tools": [], "logprobs": False, "user": "x", "response_format": {"type": "text"}}
    options |= {"temperature": 0, "extra_body": UNDRAFTED}
    first, *middle, last, usage = chunks = streamed(client, **options)
    roles = [chunk.choices[0].delta.role for chunk in (first, *middle, last)]
    assert roles == ["assistant", *[None] * (len(middle) + 1)]
    assert text_of([first, *middle]) == TEXT[:6]
    assert last.choices[0].finish_reason == "length"
    assert last.model_extra["speculative"]["rounds"] == 6
    assert len({chunk.id for chunk in chunks}) == 1
    assert usage.choices == [] and usage.usage.completion_tokens == 6
    assert not any(chunk.usage for chunk in [*middle, last, *streamed(client, max_tokens=3)])
    body = {"model": "Scripted-1", "messages": QUESTION, "max_tokens": 2, "stream": True}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no", "nginx holds no part of it back"
    assert response.text.endswith("\n\ndata: [DONE]\n\n")


def test_a_stream_ends_with_the_trace_and_its_baseline_if_asked_for(client):
    options = {"baseline": True, "trace": True}
    chunks = streamed(client, max_tokens=3, extra_body={"speculative": options})
    trace = from_json(json.dumps(chunks[-1].model_extra["speculative"]["trace"]))
    assert [token.text for token in trace.baseline.tokens] == [*TEXT[:3]] and trace.identical
    assert text_of(chunks) == TEXT[:3], "the answer's text is in the stream once"


def test_a_completion_goes_on_from_a_text_or_from_tokens(complete, toy, encode):
    for prompt, tokens in (("Hi there", tuple(encode("Hi there"))), ([5, 6, 7], (5, 6, 7))):
        answer = complete(prompt=prompt, max_tokens=2)
        assert answer.choices[0].text == TEXT[:2] and answer.object == "text_completion"
        assert prompt_of(toy) == tokens


# Several answers


def test_prompts_of_a_list_are_answered_each_n_times_in_order(complete, toy, encode):
    for prompt in (["Hi", "Ho"], [encode("Hi"), encode("Ho")], ["Hi", encode("Ho")]):
        begun = len(toy.questions)
        options = {"prompt": prompt, "n": 2, "max_tokens": 3, "seed": 7}
        answer = complete(**options)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert {choice.text for choice in answer.choices} == {TEXT[:3]}
        questions = sorted((q.prompt, q.settings.seed) for q in toy.questions[begun:])
        both = sorted(tuple(encode(text)) for text in ("Hi", "Ho"))
        assert questions == [(prompt, seed) for prompt in both for seed in (7, 8)]
        assert answer.usage.prompt_tokens == sum(map(len, both)), "each prompt counts once"
        assert answer.usage.completion_tokens == 12
        assert len(answer.model_extra["speculative"]) == 4
        *chunks, usage = complete(**options, stream=True, stream_options={"include_usage": True})
        for index in range(4):
            own = [c.choices[0] for c in chunks if c.choices[0].index == index]
            assert "".join(choice.text for choice in own) == TEXT[:3]
            assert [choice.finish_reason for choice in own if choice.finish_reason] == ["length"]
        assert usage.usage.completion_tokens == 12 and not any(chunk.usage for chunk in chunks)


class Recording(ToySession):
    """Records the forwards and the active requests at the beginning of each answer."""

    def ask(self, question):
        # One call of a list, since two threads ask.
        vars(self).setdefault("begun", []).append((self.forwards, self.activity.active))
        return super().ask(question)


@pytest.mark.parametrize(("options", "answers"), [({"n": 3}, 3), ({"prompt": [*"abcdef"]}, 6)])
def test_one_answer_reads_the_prompt_and_half_the_places_are_left_to_others(options, answers):
    toy = scripted(Recording)
    toy.target.fault = lambda batch: time.sleep(0.01)
    with served(toy, max_ongoing=4, max_waiting=4) as server:
        create = partial(client_of(server).completions.create, model="Scripted-1")
        forwards = toy.forwards
        answer = create(**{"prompt": "a", "max_tokens": 2, **options})
        for many in ({"prompt": [*"abcdefghi"]}, {"prompt": "a", "n": 9}):
            with pytest.raises(openai.BadRequestError, match="9 answers are wanted; .* room for 8"):
                create(**many)  # which would be refused at any time
    assert len(answer.choices) == len(toy.begun) == answers
    # The limit is two, this one included; one that has ended may still count.
    assert max(active for _, active in toy.begun) <= 2
    assert "prompt" in options or all(made > forwards for made, _ in toy.begun[1:])


def test_several_answers_are_those_of_single_requests(session):
    both = ["Explain the difference between fission and fusion", "List five fruits."]
    how = {"model": "tiny-llama", "max_tokens": 12, "temperature": 1}
    with served(session) as server:
        complete = partial(client_of(server).completions.create, **how)
        together = complete(prompt=both, n=2, seed=3).choices
        alone = [complete(prompt=text, seed=seed).choices[0] for text in both for seed in (3, 4)]
    assert [choice.text for choice in together] == [choice.text for choice in alone]


# Log-probabilities and echoes


CERTAIN, UNLIKELY = pytest.approx(0, abs=1e-4), pytest.approx(-LOGIT, abs=1e-4)


def test_a_chat_has_the_log_probabilities_of_its_tokens(client):
    def read(logprobs) -> str:
        """The text, if all is as it must be."""
        for token in logprobs.content:
            first, second = token.top_logprobs
            assert (first.token, first.logprob) == (token.token, CERTAIN)
            assert token.logprob == CERTAIN and second.logprob == UNLIKELY
            assert token.bytes == [*token.token.encode()]
        return "".join(token.token for token in logprobs.content)

    options = {"logprobs": True, "top_logprobs": 2, "max_tokens": 3, "temperature": 0}
    assert read(chat(client, **options).choices[0].logprobs) == TEXT[:3]
    parts = [chunk.choices[0].logprobs for chunk in streamed(client, **options)]
    assert "".join(read(part) for part in parts if part) == TEXT[:3]
    assert chat(client, max_tokens=3).choices[0].logprobs is None
    # Tokens after the stop string are not part of the answer.
    stopped = chat(client, **options | {"max_tokens": 12}, stop="two").choices[0]
    assert stopped.message.content == read(stopped.logprobs) == "One "


def test_streamed_log_probabilities_stand_beside_their_text(client):
    for chunk in streamed(client, logprobs=True, max_tokens=5, temperature=0):
        choice = chunk.choices[0]
        entries = choice.logprobs.content if choice.logprobs else []
        assert (choice.delta.content or "") == "".join(entry.token for entry in entries)


@pytest.mark.parametrize("trace", [False, True])
def test_many_log_probabilities_are_written_in_pieces_by_other_threads(client, monkeypatch, trace):
    def written(token):
        threads.add(threading.current_thread().name)
        return write(token)

    threads, write = set(), openai_api.chat_token
    monkeypatch.setattr(openai_api, "chat_token", written)
    options = {"logprobs": True, "top_logprobs": 20, "max_tokens": 100, "n": 2, "temperature": 0}
    options |= {"model": "Scripted-1", "extra_body": {"speculative": {"trace": trace}}}
    raw = client.chat.completions.with_raw_response.create(messages=QUESTION, **options)
    assert "content-length" not in raw.headers and raw.headers["content-type"] == "application/json"
    assert threads and all(name.startswith("AnyIO worker") for name in threads)
    for choice in raw.parse().choices:
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    for figures in raw.parse().model_extra["speculative"]:
        assert ("trace" in figures) == trace


def test_what_a_long_response_holds_goes_with_its_client(server, monkeypatch):
    closed = []

    def complete(writer):
        try:
            while True:
                yield b" " * 100_000
        finally:
            closed.append(True)

    monkeypatch.setattr(openai_api.ResponseWriter, "complete", complete)
    body = {"model": "Scripted-1", "messages": QUESTION, "logprobs": True, "max_tokens": 1}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
        pieces = response.iter_raw()  # which ends the connection when it is collected
        next(pieces)
        assert not closed
    gc.disable()
    try:
        until(lambda: closed)
    finally:
        gc.enable()


def test_a_long_echo_is_written_by_another_thread_in_a_stream_too(complete, monkeypatch):
    def written(token):
        threads.append(threading.current_thread().name)

    threads = []
    monkeypatch.setattr(openai_api, "likeliest", written)
    list(complete(prompt=[5] * 200, echo=True, logprobs=1, max_tokens=1, stream=True))
    assert sum(name.startswith("AnyIO worker") for name in threads) >= 200


def test_of_a_long_list_one_item_is_made_at_a_time():
    made = []
    items = (made.append(number) or [number, float("nan")] for number in (1, 2))
    pieces = openai_api.json_list(items)
    assert next(pieces) == b"[[1,null]" and made == [1]
    assert b"".join(pieces) == b",[2,null]]"


def test_a_completion_echoes_its_prompt_with_log_probabilities(complete, toy):
    ids, tokenizer = [15, 1, 16], toy.loaded.tokenizer
    options = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 2, "temperature": 0}
    [choice] = complete(**options).choices
    prompt, logprobs = tokenizer.decode(ids), choice.logprobs
    assert choice.text == prompt + TEXT[:2]
    assert logprobs.tokens == [*choice.text]
    assert logprobs.token_logprobs == [None, UNLIKELY, UNLIKELY, CERTAIN, CERTAIN]
    assert logprobs.top_logprobs[0] is None
    assert logprobs.top_logprobs[1] == {prompt[1]: UNLIKELY, TEXT[0]: CERTAIN}
    assert logprobs.text_offset == [*range(5)]
    chunks = [chunk.choices[0] for chunk in complete(**options, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == choice.text
    parts = [chunk.logprobs for chunk in chunks if chunk.logprobs]
    assert [lp for part in parts for lp in part.token_logprobs] == logprobs.token_logprobs
    assert [offset for part in parts for offset in part.text_offset] == logprobs.text_offset
    for count in (0, 1):
        short = complete(**options | {"max_tokens": count, "logprobs": None})
        assert (short.choices[0].text, short.choices[0].logprobs) == (prompt + TEXT[:count], None)
        assert short.choices[0].finish_reason == "length"
        assert short.usage.completion_tokens == count and short.usage.prompt_tokens == 3


def test_tokens_that_are_parts_of_a_character_have_their_own_bytes_and_true_offsets():
    """A token is a byte: "\u00e9" is spelled by two."""
    how = {"max_tokens": 4, "temperature": 0, "model": "Scripted-1"}
    loaded = replace(byte_pair(), template=CHATML)
    with ToySession("a\u00e9b", loaded=loaded, info=INFO) as toy, served(toy) as server:
        client = client_of(server)
        answer = client.chat.completions.create(messages=QUESTION, logprobs=True, **how).choices[0]
        entries = answer.logprobs.content
        completed = client.completions.create(
            prompt="\u00e9", echo=True, logprobs=3, **how | {"max_tokens": 2}
        ).choices[0]
    assert answer.message.content == "a\u00e9b"
    assert [entry.bytes for entry in entries] == [[97], [0xC3], [0xA9], [98]]
    assert completed.logprobs.tokens[:2] == ["bytes:\\xc3", "bytes:\\xa9"]
    offsets, text = completed.logprobs.text_offset, completed.text
    assert offsets == [0, 0, 1, 2][: len(offsets)] and text.startswith("\u00e9")
    assert all(len(likely) >= 3 for likely in completed.logprobs.top_logprobs[1:])


def test_offsets_are_of_the_text_that_is_sent_back_where_characters_are_composed():
    """The prompt has an e and an accent, of which the tokenizer makes one character."""
    pair, path = byte_pair(), TOKENIZER.with_name("composing")
    library = Tokenizer(TOKENIZER)._parsing
    library.normalizer = normalizers.NFC()
    library.save(str(path))
    pair = replace(pair, tokenizer=Tokenizer(path))
    how = {"echo": True, "logprobs": 0, "max_tokens": 2, "temperature": 0, "model": "Scripted-1"}
    with ToySession("ab", loaded=pair, info=INFO) as toy, served(toy) as server:
        answer = client_of(server).completions.create(prompt="e\u0301 x e\u0301y", **how)
    [choice] = answer.choices
    assert choice.text == "\u00e9 x \u00e9yab"
    offsets = choice.logprobs.text_offset
    for token, begin in zip(choice.logprobs.tokens, offsets, strict=True):
        part = choice.text[begin]
        assert token == part or (token.startswith("bytes:") and part in "\u00e9 y")


@pytest.fixture(scope="module")
def filling():
    """A vocabulary with the markers to fill in text."""
    pair = byte_pair()
    library = Tokenizer(TOKENIZER)._parsing
    library.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
    library.save(str(TOKENIZER.with_name("filling")))
    tokenizer = Tokenizer(TOKENIZER.with_name("filling"))
    with ToySession(TEXT, loaded=replace(pair, tokenizer=tokenizer), info=INFO) as toy:
        yield toy


def test_special_tokens_of_a_raw_prompt_are_parsed_and_suffix_makes_them(filling):
    encode, how = filling.loaded.tokenizer.encode, {"max_tokens": 1, "model": "Scripted-1"}
    written = "<|fim_prefix|>a(<|fim_suffix|>)<|fim_middle|>"
    with served(filling) as server:
        complete = client_of(server).completions.create
        complete(prompt=written, **how)
        complete(prompt="a(", suffix=")", **how)
        first, second = (question.prompt for question in filling.questions)
    assert first == second == tuple(encode(written)) and len(first) == 6
    assert filling.questions[0].continues and not filling.questions[1].continues


def test_an_answer_that_has_ended_waits_for_slower_ones(client, toy, monkeypatch):
    monkeypatch.setattr("specdemo.server.backend.PING", 0.001)
    monkeypatch.setattr(toy.target, "fault", lambda batch: time.sleep(0.02))
    finished = [choice.finish_reason for choice in chat(client, n=20, max_tokens=2).choices]
    assert finished == ["length"] * 20


def test_a_prediction_is_tokenised_once_and_drafted(client, toy):
    tokens = tuple(toy.loaded.tokenizer.encode("One two", special=False))
    parts = [{"type": "text", "text": "One "}, {"type": "text", "text": "two"}]
    for content in ("One two", parts):
        options = {"prediction": {"type": "content", "content": content}, "n": 3}
        answer = chat(client, extra_body={"speculative": {"drafter": "lookup"}}, **options)
        assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0
        predicted = [question.prediction for question in toy.questions[-3:]]
        assert predicted == [tokens] * 3 and len(set(map(id, predicted))) == 1


def test_limits_and_sampling_reach_the_engine(client, toy):
    extension = {"drafter": "lookup", "draft_tokens": 3, "temperature": 4}
    vllm = {"top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True}
    sampling = {"temperature": 0.5, "top_p": 0.9, "seed": 2**63 - 1}
    penalties = {"presence_penalty": 1, "frequency_penalty": -0.5, "logit_bias": {"17": -100}}
    more = {**vllm, "speculative": extension}
    chat(client, max_completion_tokens=5, **sampling, **penalties, extra_body=more)
    options = toy.questions[-1].settings
    assert (options.max_new_tokens, options.top_p, options.top_k) == (5, 0.9, 7)
    assert (options.seed, options.drafter, options.draft_tokens) == (2**63 - 1, "lookup", 3)
    assert {name: getattr(options, name) for name in vllm} == vllm
    assert (options.presence_penalty, options.frequency_penalty) == (1, -0.5)
    assert options.logit_bias == ((17, -100),)
    assert options.temperature == 4, "a setting in the extension goes before the API's own"
    chat(client)
    first = toy.questions[-1].settings
    chat(client)
    assert (first.temperature, first.top_p, first.max_new_tokens) == (1.0, 1.0, 8)
    assert toy.questions[-1].settings.seed != first.seed, "without a seed answers vary"
    chat(client, seed=-7, top_p=0)
    settings = toy.questions[-1].settings
    assert (settings.seed, settings.top_p) == (2**63 - 7, 0)
    chat(client, seed=-1, extra_body={"top_k": -1})
    assert toy.questions[-1].settings.seed != first.seed and toy.questions[-1].settings.top_k == 0


# Stop strings


@pytest.mark.parametrize(
    ("stop", "expected"),
    [("three", "One two "), ("o three", "One tw"), (["three", "two three"], "One ")],
)
def test_an_answer_and_decoding_end_with_a_stop_string(client, toy, monkeypatch, stop, expected):
    def fault(batch):
        """What follows the stop string waits until it is noticed."""
        if toy.forwards - before > 13:
            until(lambda: all(handle.left for handle in toy.engine.scheduler._active))

    slept, before = [], toy.forwards
    monkeypatch.setattr(scheduler, "sleep", slept.append)
    monkeypatch.setattr(toy.target, "fault", fault)
    options = {"temperature": 0, "extra_body": UNDRAFTED}
    answer = chat(client, max_tokens=300, stop=stop, **options).choices[0]
    assert toy.forwards - before <= 15 and not slept
    monkeypatch.undo()
    assert (answer.message.content, answer.finish_reason) == (expected, "stop")
    assert text_of(streamed(client, max_tokens=16, stop=stop)) == expected
    unfinished = streamed(client, max_tokens=12, stop="three fo")
    assert text_of(unfinished) == TEXT[:12], "what was uncertain comes in the end"


# Conversations


def test_a_conversation_goes_through_the_chat_template(client, toy, encode):
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")]
    chat(client, messages=[{"role": role, "content": text} for role, text in turns], max_tokens=1)
    prompt = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    assert prompt_of(toy) == tuple(encode(prompt + "<|im_start|>assistant\n"))


def test_a_request_has_variables_of_the_template(client, toy, monkeypatch):
    jinja = "{{ messages[0].content }}{{ ' ' + mode }}{{ ' ' + reasoning_effort }}"
    monkeypatch.setattr(toy, "loaded", replace(toy.loaded, template=Template("toy", jinja)))
    more = {"reasoning_effort": "low", "chat_template_kwargs": {"mode": "brief"}}
    chat(client, max_tokens=1, extra_body=more)
    assert toy.loaded.tokenizer.decode(prompt_of(toy)) == "Count, please. brief low"


def test_the_assistants_last_message_is_continued_where_asked_for(client, toy):
    last = {"role": "assistant", "content": "One two"}
    options = {"continue_final_message": True, "add_generation_prompt": False}
    chat(client, messages=[*QUESTION, last], max_tokens=1, extra_body=options)
    prompt = toy.loaded.tokenizer.decode(prompt_of(toy), special=True)
    assert prompt.endswith("<|im_start|>assistant\nOne two")


def test_harmless_parameters_are_accepted_and_named_in_the_reference(client, complete, toy):
    reference = (Path(__file__).parents[1] / "docs" / "reference" / "api.md").read_text("utf-8")
    accepted = {name: values[0] for name, values in DEFAULTS.items()}
    harmless = {**dict.fromkeys(schema.IGNORED, "x"), **accepted}
    harmless |= {"reasoning_effort": "low", "verbosity": "high"}
    assert [name for name in harmless if f"`{name}`" not in reference] == []
    chosen = {name: value for name, value in harmless.items() if name != "parallel_tool_calls"}
    chat(client, max_tokens=1, extra_body=chosen)
    del chosen["add_special_tokens"]
    complete(prompt="One", max_tokens=1, extra_body=chosen)
    for name in DEFAULTS.keys() - schema.ChatRequest.model_fields.keys():
        with pytest.raises(openai.BadRequestError, match=f"{name} is 'other'; this server takes"):
            chat(client, extra_body={name: "other"})
    for name, other in (("functions", "tools"), ("grammar", "response_format")):
        with pytest.raises(openai.BadRequestError, match=f"this server takes only .*; use {other}"):
            chat(client, extra_body={name: ["x"]})
    for name in ("reasoning_effort", "verbosity"):
        with pytest.raises(openai.BadRequestError, match=f"{name} is 'silly'; it must be"):
            chat(client, extra_body={name: "silly"})


def test_a_result_belongs_to_a_call_before_it(client):
    function = {"name": "f", "arguments": "{}"}
    call = {"role": "assistant", "tool_calls": [{"id": "a1", "function": function}]}
    result = {"role": "tool", "content": "3", "tool_call_id": "a1"}
    with pytest.raises(openai.BadRequestError, match="messages.2: there is no call 'b2' before it"):
        chat(client, messages=[*QUESTION, call, {**result, "tool_call_id": "b2"}])
    with pytest.raises(openai.BadRequestError, match="messages.1: there is no call 'a1' before it"):
        chat(client, messages=[*QUESTION, result, call, *QUESTION])
    with pytest.raises(openai.BadRequestError, match="response_format.json_schema.schema is missi"):
        form = {"type": "json_schema", "json_schema": {"name": "s"}}
        chat(client, response_format=form)


# Errors


IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
CALLED = {"name": "f", "arguments": 5}
NESTED = {"role": "assistant", "tool_calls": [{"function": CALLED}]}
TWO = [{"role": "system", "content": "Be brief."}, *QUESTION]
LONG = [{"role": "user", "content": "x" * 600}]
VALUE = "invalid_value"
REFUSED = [
    ("temperature", VALUE, {"temperature": 6}),
    ("top_p", VALUE, {"top_p": True}),
    ("seed", VALUE, {"seed": 2**63}),
    ("max_tokens", VALUE, {"max_tokens": 5000}),
    ("max_tokens", "max_tokens is 512; this model answers with at most", {"max_tokens": 512}),
    ("web_search_options", "takes only null", {"web_search_options": {}}),
    ("max_tokens", VALUE, {"max_tokens": 3, "max_completion_tokens": 5}),
    ("stop", "stop is 5; it must be a string or a list.", {"stop": 5}),
    ("stop", "; it must have at most 16 items, not 17.", {"stop": ["x"] * 17}),
    ("n", "n is 33; it must be less than or equal to 32.", {"n": 33}),
    ("n", "so 34 answers are wanted; this server gives 32 at", {"n": 17, "prompt": ["a", "b"]}),
    ("n", VALUE, {"n": True}),
    ("best_of", "best_of is 2; it must be n, or left out.", {"best_of": 2}),
    ("top_logprobs", VALUE, {"top_logprobs": 2}),
    ("top_logprobs", VALUE, {"logprobs": True, "top_logprobs": 21}),
    ("logit_bias", VALUE, {"logit_bias": {"one": 1}}),
    ("presence_penalty", VALUE, {"presence_penalty": 3}),
    ("tool_choice", "'any'; it must be 'none', 'auto' or 'required'.", {"tool_choice": "any"}),
    ("chat_template_kwargs", "is 'x'; it must be an object.", {"chat_template_kwargs": "x"}),
    ("suffix", "unsupported_parameter", {"suffix": "x"}),
    ("min_tokens", "is 5; this server takes only 0; leave it out.", {"min_tokens": 5}),
    ("messages", "messages is null; it must be a list.", {"messages": None}),
    ("messages", VALUE, {"messages": []}),
    ("messages", ".0.content.0.type is 'image_url'; it must be 'text'.", {"messages": [IMAGE]}),
    ("messages", VALUE, {"messages": [*QUESTION, NESTED]}),
    ("messages", VALUE, {"messages": [*QUESTION, {"role": "assistant", "content": "One"}]}),
    ("messages", VALUE, {"messages": [*QUESTION, {"role": "user", "content": []}]}),
    ("messages", VALUE, {"continue_final_message": True}),
    ("messages", "context_length_exceeded The prompt is too long", {"messages": LONG}),
    ("add_generation_prompt", VALUE, {"add_generation_prompt": False}),
    ("speculative", VALUE, {"n": 2, "speculative": {"baseline": True}}),
    ("speculative", VALUE, {"speculative": {"drafter": "oracle"}}),
    ("speculative", VALUE, {"messages": TWO, "speculative": {"baseline": True}}),
    ("temprature", "unknown_parameter temprature is not known; leave it out.", {"temprature": 1}),
    ("prompt", "context_length_exceeded", {"prompt": "x" * 600}),
    ("prompt", "tokens must be from 0 to ", {"prompt": [10**6]}),
    ("prompt", "tokens must be from 0 to ", {"prompt": [2**33]}),
    ("echo", VALUE, {"prompt": "a", "suffix": "b", "echo": True}),
    ("prompt", "The prompt is empty", {"prompt": ""}),
    ("prompt", "prompt.0", {"prompt": [-1]}),  # the list is not in one where it was sent
    ("prompt", "prompt.0", {"prompt": [[-1]]}),
    ("prompt", "prompt.0", {"prompt": [1, "a"]}),
    ("prompt", "prompt.0", {"prompt": [["a"]]}),
    ("prompt", "prompt.0 is null; it must be", {"prompt": [None]}),
    ("functions", "functions is [null, true]; this", {"functions": [None, True]}),
]


@pytest.mark.parametrize(("param", "words", "more"), REFUSED)
def test_bad_values_are_refused_by_name_before_a_stream_begins(client, param, words, more):
    create = partial(client.completions.create, prompt="")
    if "prompt" not in more:
        create = partial(client.chat.completions.create, messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="Scripted-1", stream=True, extra_body=more)
    refused = caught.value
    assert refused.param == param and refused.type == "invalid_request_error"
    assert words in f"{refused.code} {refused.body['message']}"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", b"{not json", 400),
        ("POST", "/v1/chat/completions", b"{}", 400),
        ("POST", "/v1/chat/completions", b'{"model": "\xff"}', 400),
        ("POST", "/v1/chat/completions", b'{"model": "\\ud800", "messages": []}', 400),
        ("POST", "/v1/completions", b'{"model": "\\ud800", "prompt": "hi"}', 400),
        ("POST", "/v1/completions", b'{"model": "embedded", "prompt": "\\udfff"}', 400),
        ("POST", "/v1/completions", b"[" * 100_000, 400),
        ("POST", "/v1/completions", b"x" * 4_000_001, 413),
        ("POST", "/v1/nothing", b"{}", 404),
        ("GET", "/v1/chat/completions", b"", 405),
    ],
)
def test_every_error_has_the_apis_form(server, method, path, body, status):
    headers = {"Content-Type": "application/json"}
    response = httpx.request(method, server.url + path, content=body, headers=headers)
    assert response.status_code == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["message"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize("path", ["/v1/responses", "/chat/completions", "/x" * 500])
def test_an_unknown_address_names_those_that_there_are(server, path):
    response = httpx.post(server.url + path, json={})
    message = response.json()["error"]["message"]
    assert response.status_code == 404 and f"There is no POST {path[:100]} here" in message
    assert len(message) < 500
    assert "POST /v1/chat/completions, POST /v1/completions" in message


@pytest.mark.parametrize(("ask", "more"), [(streamed, {}), (chat, {}), (chat, {"n": 3})])
def test_a_failure_inside_is_an_error_without_its_words(server, toy, monkeypatch, ask, more):
    def failing(question):
        yield next(events(question))
        raise RuntimeError("kernel panic in row 7")

    events = toy.ask
    monkeypatch.setattr(toy, "ask", failing)
    with pytest.raises(openai.APIError, match="had an error") as caught:
        ask(client_of(server), **more)  # the server closes the client's connection
    assert "kernel panic" not in str(caught.value), "what went wrong inside is for the log"
    until(lambda: not toy.activity.active)  # of several answers all end


def test_a_key_is_asked_for_where_one_is_set_but_for_the_schema(toy):
    with served(toy, key="s3cret") as server:
        for key in ("wrong", "s3cret2"):
            with pytest.raises(openai.AuthenticationError) as caught:
                client_of(server, key).models.list()
            assert caught.value.code == "invalid_api_key"
        assert client_of(server, "s3cret").models.list().data
        for header, status in (("bearer s3cret", 200), ("Basic s3cret", 401), ("s3cret", 401)):
            response = httpx.get(f"{server.url}/v1/models", headers={"Authorization": header})
            assert response.status_code == status
        assert httpx.get(f"{server.url}/health").json() == {"status": "ready"}
        assert httpx.get(f"{server.url}/metrics").status_code == 401
        described = httpx.get(f"{server.url}/openapi.json").json()
    paths, options = described["paths"], described["components"]["schemas"]["ChatRequest"]
    assert {"/health", "/metrics", "/v1/models", "/v1/completions"} < paths.keys()
    assert "security" in paths["/v1/chat/completions"]["post"]
    assert options["properties"].keys() > {"messages", "temperature", "speculative"}


def test_while_the_model_loads_requests_get_503_and_when_to_come_again(toy):
    go_on = threading.Event()

    def load(options, report):
        report(Progress("Downloading"))
        go_on.wait(600)
        return toy

    with served(toy, load=load) as server:
        client, health = client_of(server), f"{server.url}/health"
        until(lambda: "Downloading" in httpx.get(health).text)
        assert httpx.get(health).status_code == 503
        with pytest.raises(openai.InternalServerError, match="ready yet: Downloading") as caught:
            chat(client)
        assert caught.value.status_code == 503 and caught.value.code == "model_not_ready"
        assert int(caught.value.response.headers["retry-after"]) > 0
        go_on.set()
        until(lambda: httpx.get(health).status_code == 200)
        assert chat(client).choices


# What a request costs is bounded before the work begins


WHOLE = {
    "model": "Scripted-1",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ],
    "stop": ["x"],
    "stream_options": {"include_usage": True},
    "speculative": {"trace": True},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
    "metadata": {},
    "logit_bias": {"1": 1},
    "chat_template_kwargs": {"enable_thinking": False},
    "prediction": {"type": "content", "content": [{"type": "text", "text": "Hi"}]},
}
MANY = 20_000
WRONG = [*([value] * MANY for value in (1, True, {}, [])), dict.fromkeys(map(str, range(MANY)), 1)]


@pytest.mark.parametrize("wrong", WRONG, ids=["ints", "bools", "objects", "lists", "fields"])
@pytest.mark.parametrize(
    ("kind", "whole"),
    [(ChatRequest, WHOLE), (CompletionRequest, {"model": "Scripted-1", "prompt": [[1], "a"]})],
)
def test_many_wrong_values_are_few_errors_wherever_they_are(kind, whole, wrong):
    for *path, key in paths(whole):
        body = json.loads(json.dumps(whole))
        reduce(getitem, path, body)[key] = wrong
        with suppress(BadInput):
            try:
                kind.model_validate(body)
            except ValidationError as error:
                assert error.error_count() < 150, (path, key)


@pytest.mark.parametrize("prompt", ["a b " * 20_000, "\u00e9" * 50_000])
def test_a_text_that_cannot_fit_is_refused_before_it_is_read(complete, monkeypatch, prompt):
    monkeypatch.setattr(Tokenizer, "encode", Mock(side_effect=AssertionError))
    with pytest.raises(openai.BadRequestError, match="prompt is too long: "):
        complete(prompt=prompt)


def test_a_text_that_is_read_leaves_other_threads_running(embedded_pair):
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(embedded_pair.tokenizer.encode, "a b " * 80_000)
        turns = 0
        while not reading.done():
            time.sleep(0.001)
            turns += 1
    assert turns > 5


def test_a_body_holds_what_the_context_can_need(server, client):
    client.models.list()
    size = 500_000 + 32 * 512
    for length, status in ((size, 400), (size + 1, 413)):
        body = b"{" + b" " * (length - 2) + b"}"
        headers = {"Content-Type": "application/json"}
        response = httpx.post(f"{server.url}/v1/completions", content=body, headers=headers)
        assert response.status_code == status


def test_requests_beyond_the_queue_are_refused_before_they_are_read(monkeypatch):
    toy = scripted()
    toy.pause()
    with served(toy, max_ongoing=1, max_waiting=1) as server, ThreadPoolExecutor(2) as pool:
        client = client_of(server)
        answers = [pool.submit(chat, client, max_tokens=2) for _ in range(2)]
        until(lambda: len(toy.questions) == 2)
        with monkeypatch.context() as patch:
            patch.setattr(Tokenizer, "encode", Mock(side_effect=AssertionError))
            with pytest.raises(openai.RateLimitError, match="wait already"):
                chat(client)
        toy.resume()
        assert all(answer.result(60).choices for answer in answers)
        monkeypatch.setattr(toy, "ask", Mock(side_effect=Busy("The queue is full.")))
        for stream in (True, False):
            with pytest.raises(openai.RateLimitError) as caught:
                chat(client, stream=stream)
            assert caught.value.response.headers["retry-after"]
            assert caught.value.code == "rate_limit_exceeded"
        metrics = httpx.get(f"{server.url}/metrics").text
    assert 'specdemo_requests_total{kind="answer",outcome="refused"} 3.0' in metrics


# Clients that leave


@pytest.mark.slow
def test_a_client_that_leaves_frees_its_place_within_a_round():
    toy = scripted()
    gate = toy.target.gate
    toy.target.fault = lambda batch: time.sleep(0.02)
    options = {"model": "Scripted-1", "messages": QUESTION, "max_tokens": 300, **UNDRAFTED}
    with served(toy) as server:
        for number, (waits, stream) in enumerate(product((True, False), repeat=2), 1):
            (gate.clear if waits else gate.set)()
            with closing(HTTPConnection(httpx.URL(server.url).netloc.decode())) as leaving:
                body = json.dumps(options | {"stream": stream})
                headers = {"Content-Type": "application/json"}
                leaving.request("POST", "/v1/chat/completions", body, headers)
                until(lambda number=number: len(toy.questions) == number)
                if stream and not waits:
                    assert leaving.getresponse().readline()
            until(toy.questions[-1].stop.is_set)
            at_leaving = toy.forwards
            gate.set()
            until(lambda: toy.activity.active == 0)
            assert toy.forwards - at_leaving <= 3, (waits, stream)
        until(lambda: not httpx.get(f"{server.url}/health").json()["in_flight"])
        metrics = httpx.get(f"{server.url}/metrics").text
    assert 'specdemo_requests_total{kind="answer",outcome="cancelled"} 4.0' in metrics
    assert len(toy.questions) == 4


def test_an_answer_that_a_closing_server_cuts_says_so_whatever_it_met(monkeypatch):
    def close(question):
        backend.close()
        raise Busy("The models have been closed.")

    options, toy = ServeOptions(max_new_tokens=8), scripted()
    monkeypatch.setattr(toy, "ask", close)
    backend = LocalBackend(options, lambda *_: toy)
    backend.load(options).result()

    async def answer():
        return [piece async for piece in backend.answer(CompletionRequest(model="x", prompt="a"))]

    with pytest.raises(RequestFailed, match="the server is being stopped"):
        asyncio.run(answer())
