"""Ten clients of OpenAI's API against `serve`: unmodified, each by its own defaults. They are in
environments of their own:

    /tmp/clients/bin/pip install openai litellm langchain-openai instructor llm lm_eval \
        transformers "pydantic-ai-slim[openai]"
    npm install --prefix /tmp/clients-node openai ai @ai-sdk/openai-compatible zod
    python tools/clients.py --python /tmp/clients/bin/python --node /tmp/clients-node

Prints a table: clients by chat, stream, structured output and tools. The model is the embedded
target with a chat template that has calls of tools."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

CASES = "chat", "stream", "structured", "tools"
QUESTION = "What is the weather in Paris?"
TEMPLATE = """{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one as <tool_call>
{...}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


class City(BaseModel, extra="forbid"):  # an open schema lets a small model add fields to its limit
    city: str


SCHEMA = City.model_json_schema()
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TOOLS = {"tools": [TOOL], "tool_choice": "required"}
Cases = dict[str, Callable[[], Any]]


def of_messages(create: Callable[..., Any]) -> Cases:
    def message(**more: Any) -> Any:
        return create(**more).choices[0].message

    return {
        "chat": lambda: message().content,
        "stream": lambda: [chunk.choices[0].delta.content for chunk in create(stream=True)],
        "structured": lambda: City.model_validate_json(message(response_format=City).content),
        "tools": lambda: message(**TOOLS).tool_calls[0].function.arguments,
    }


def openai(url: str, model: str, request: dict[str, Any]) -> Cases:
    from openai import OpenAI

    chat = OpenAI(base_url=url, api_key="unused").chat.completions
    parsed = {"structured": lambda: chat.parse(**request, response_format=City).choices[0].message}
    return of_messages(partial(chat.create, **request)) | parsed


def litellm(url: str, model: str, request: dict[str, Any]) -> Cases:
    from litellm import completion

    how = {**request, "model": f"openai/{model}", "api_base": url, "api_key": "unused"}
    return of_messages(partial(completion, **how))


def langchain(url: str, model: str, request: dict[str, Any]) -> Cases:
    from langchain_openai import ChatOpenAI, OpenAI

    chat = ChatOpenAI(base_url=url, api_key="unused", model=model)
    text = OpenAI(base_url=url, api_key="unused", model=model)
    return {
        "chat": lambda: chat.invoke(QUESTION).content and text.generate([QUESTION, "One, two,"]),
        "stream": lambda: "".join(chunk.content for chunk in chat.stream(QUESTION)),
        "structured": lambda: chat.with_structured_output(City).invoke(QUESTION),
        "tools": lambda: chat.bind_tools([TOOL], tool_choice="any").invoke(QUESTION).tool_calls,
    }


def instructor(url: str, model: str, request: dict[str, Any]) -> Cases:
    import instructor as library
    from openai import OpenAI

    client = library.from_openai(OpenAI(base_url=url, api_key="unused")).chat.completions
    how = {"mode": library.Mode.JSON_SCHEMA}
    by_schema = library.from_openai(OpenAI(base_url=url, api_key="unused"), **how)
    return {
        "chat": lambda: client.create(**request, response_model=None).choices[0].message.content,
        "stream": lambda: list(client.create_partial(**request, response_model=City))[-1].city,
        "structured": lambda: by_schema.chat.completions.create(**request, response_model=City),
        "tools": lambda: client.create(**request, response_model=City),
    }


def pydantic_ai(url: str, model: str, request: dict[str, Any]) -> Cases:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    served = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key="unused"))
    return {
        "chat": lambda: Agent(served).run_sync(QUESTION).output,
        "stream": lambda: list(Agent(served).run_stream_sync(QUESTION).stream_text()),
        "structured": lambda: Agent(served, output_type=NativeOutput(City)).run_sync(QUESTION),
        "tools": lambda: Agent(served, output_type=City).run_sync(QUESTION).output,
    }


def llm(url: str, model: str, request: dict[str, Any]) -> Cases:
    os.environ["LLM_USER_PATH"] = folder = tempfile.mkdtemp()
    entry: dict[str, Any] = {"model_id": "here", "model_name": model, "api_base": url}
    entry |= {"supports_schema": True, "supports_tools": True}
    Path(folder, "extra-openai-models.yaml").write_text(json.dumps([entry]))
    options = [["--no-stream"], [], ["--schema", json.dumps(SCHEMA)], ["-T", "llm_version"]]
    command = [sys.executable, "-m", "llm", QUESTION, "-m", "here", "--key", "unused"]
    commands = [partial(output, command + more) for more in options]
    return dict(zip(CASES, commands, strict=True))


def lm_eval(url: str, model: str, request: dict[str, Any]) -> Cases:
    """A multiple-choice task, by the likelihood of echoed prompts."""
    folder = Path(tempfile.mkdtemp())
    rows = [{"q": f"{n} + 1 =", "choices": [f" {n + 1}", " x"], "answer": 0} for n in range(4)]
    (folder / "rows.json").write_text(json.dumps(rows))
    task: dict[str, Any] = {
        "task": "sums",
        "dataset_path": "json",
        "output_type": "multiple_choice",
    }
    task |= {"dataset_kwargs": {"data_files": {"test": f"{folder}/rows.json"}}}
    task |= {"doc_to_text": "{{q}}", "doc_to_target": "answer", "doc_to_choice": "choices"}
    (folder / "sums.yaml").write_text(json.dumps({**task, "test_split": "test"}))
    how = f"model={model},base_url={url}/completions,tokenizer={os.environ['TOKENIZER']}"
    command = [sys.executable, "-m", "lm_eval", "--tasks", "sums", "--include_path", str(folder)]
    command += ["--model", "local-completions", "--model_args", how]
    return {"chat": lambda: "|acc " in output(command)}


def curl(url: str, model: str, request: dict[str, Any]) -> Cases:
    def post(**more: Any) -> str:
        command = ["curl", "-sS", "--fail-with-body", f"{url}/chat/completions"]
        command += ["-H", "Content-Type: application/json", "-d", json.dumps({**request, **more})]
        return output(command)

    def message(**more: Any) -> Any:
        return json.loads(post(**more))["choices"][0]["message"]

    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    return {
        "chat": lambda: message()["content"],
        "stream": lambda: "data: [DONE]" in post(stream=True),
        "structured": lambda: City.model_validate_json(message(response_format=wanted)["content"]),
        "tools": lambda: message(**TOOLS)["tool_calls"],
    }


def output(command: list[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if "rror" in line]
        raise RuntimeError((lines or ["it failed"])[-1])
    return done.stdout


def tried(command: list[str], env: dict[str, str]) -> str:
    try:
        output(command, env)
        return "yes"
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"no: {error}"[:200]


@click.command()
@click.option("--python", default=sys.executable, help="Of the environment with the clients.")
@click.option("--node", help="Folder with the node_modules of the clients in JavaScript.")
@click.option("--case", nargs=4, hidden=True)
def main(python: str, node: str | None, case: tuple[str, str, str, str] | None) -> None:
    if case:
        client, name, url, model = case
        request = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
        assert globals()[client](url, model, request)[name](), "empty"
        return
    from specdemo.machine.server_process import started
    from specdemo.pairs.loading import load_pair
    from specdemo.pairs.registry import EMBEDDED

    folder = Path(tempfile.mkdtemp(), "model")
    target = load_pair(EMBEDDED).target
    assert isinstance(target, Path)
    shutil.copytree(target.parent, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    environment = {**os.environ, "PYTHONPATH": "", "TOKENIZER": str(folder)}
    serve = "-m", "specdemo", "serve", "--no-ray", "--model", str(folder), "--max-new-tokens", "200"
    clients = openai, litellm, langchain, instructor, pydantic_ai, llm, lm_eval, curl
    runs = {client.__name__: [python, __file__, "--case", client.__name__] for client in clients}
    if node:
        script = shutil.copy(Path(__file__).with_suffix(".mjs"), node)
        runs |= {f"{client} (node)": ["node", script, client] for client in ("openai", "vercel")}
    print(f"| client | {' | '.join(CASES)} |\n{'|---' * 5}|")
    with started(*serve) as server:
        address = f"{server.url}/v1", folder.name
        for client, run in runs.items():
            cases = CASES[:1] if client == "lm_eval" else CASES
            cells = [tried([*run, case, *address], environment) for case in cases]
            print(f"| {client} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
