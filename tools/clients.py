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
from functools import partial
from pathlib import Path

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


class City(BaseModel):
    city: str


SCHEMA = City.model_json_schema()
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TOOLS = {"tools": [TOOL], "tool_choice": "required"}


def of_messages(create):
    def message(**more):
        return create(**more).choices[0].message

    return {
        "chat": lambda: message().content,
        "stream": lambda: [chunk.choices[0].delta.content for chunk in create(stream=True)],
        "structured": lambda: City.model_validate_json(message(response_format=City).content),
        "tools": lambda: message(**TOOLS).tool_calls[0].function.arguments,
    }


def openai(url, model, asked):
    from openai import OpenAI

    chat = OpenAI(base_url=url, api_key="unused").chat.completions
    parsed = {"structured": lambda: chat.parse(**asked, response_format=City).choices[0].message}
    return of_messages(partial(chat.create, **asked)) | parsed


def litellm(url, model, asked):
    from litellm import completion

    how = {**asked, "model": f"openai/{model}", "api_base": url, "api_key": "unused"}
    return of_messages(partial(completion, **how))


def langchain(url, model, asked):
    from langchain_openai import ChatOpenAI, OpenAI

    chat = ChatOpenAI(base_url=url, api_key="unused", model=model)
    text = OpenAI(base_url=url, api_key="unused", model=model)
    return {
        "chat": lambda: chat.invoke(QUESTION).content and text.generate([QUESTION, "One, two,"]),
        "stream": lambda: "".join(chunk.content for chunk in chat.stream(QUESTION)),
        "structured": lambda: chat.with_structured_output(City).invoke(QUESTION),
        "tools": lambda: chat.bind_tools([TOOL], tool_choice="any").invoke(QUESTION).tool_calls,
    }


def instructor(url, model, asked):
    import instructor as library
    from openai import OpenAI

    client = library.from_openai(OpenAI(base_url=url, api_key="unused")).chat.completions
    how = {"mode": library.Mode.JSON_SCHEMA}
    by_schema = library.from_openai(OpenAI(base_url=url, api_key="unused"), **how)
    return {
        "chat": lambda: client.create(**asked, response_model=None).choices[0].message.content,
        "stream": lambda: list(client.create_partial(**asked, response_model=City))[-1].city,
        "structured": lambda: by_schema.chat.completions.create(**asked, response_model=City),
        "tools": lambda: client.create(**asked, response_model=City),
    }


def pydantic_ai(url, model, asked):
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


def llm(url, model, asked):
    os.environ["LLM_USER_PATH"] = folder = tempfile.mkdtemp()
    about = {"model_id": "here", "model_name": model, "api_base": url}
    about |= {"supports_schema": True, "supports_tools": True}
    Path(folder, "extra-openai-models.yaml").write_text(json.dumps([about]))
    options = [["--no-stream"], [], ["--schema", json.dumps(SCHEMA)], ["-T", "llm_version"]]
    command = [sys.executable, "-m", "llm", QUESTION, "-m", "here", "--key", "unused"]
    asks = [partial(output, command + more) for more in options]
    return dict(zip(CASES, asks, strict=True))


def lm_eval(url, model, asked):
    """A multiple-choice task, by the likelihood of echoed prompts."""
    folder = Path(tempfile.mkdtemp())
    rows = [{"q": f"{n} + 1 =", "choices": [f" {n + 1}", " x"], "answer": 0} for n in range(4)]
    (folder / "rows.json").write_text(json.dumps(rows))
    task = {"task": "sums", "dataset_path": "json", "output_type": "multiple_choice"}
    task |= {"dataset_kwargs": {"data_files": {"test": f"{folder}/rows.json"}}}
    task |= {"doc_to_text": "{{q}}", "doc_to_target": "answer", "doc_to_choice": "choices"}
    (folder / "sums.yaml").write_text(json.dumps({**task, "test_split": "test"}))
    how = f"model={model},base_url={url}/completions,tokenizer={os.environ['TOKENIZER']}"
    command = [sys.executable, "-m", "lm_eval", "--tasks", "sums", "--include_path", str(folder)]
    command += ["--model", "local-completions", "--model_args", how]
    return {"chat": lambda: "|acc " in output(command)}


def curl(url, model, asked):
    def post(**more) -> str:
        command = ["curl", "-sS", "--fail-with-body", f"{url}/chat/completions"]
        command += ["-H", "Content-Type: application/json", "-d", json.dumps({**asked, **more})]
        return output(command)

    def message(**more) -> dict:
        return json.loads(post(**more))["choices"][0]["message"]

    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    return {
        "chat": lambda: message()["content"],
        "stream": lambda: "data: [DONE]" in post(stream=True),
        "structured": lambda: City.model_validate_json(message(response_format=wanted)["content"]),
        "tools": lambda: message(**TOOLS)["tool_calls"],
    }


def output(command: list[str], **more) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **more)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if "rror" in line]
        raise RuntimeError((lines or ["it failed"])[-1])
    return done.stdout


def tried(command: list[str], **more) -> str:
    try:
        output(command, **more)
        return "yes"
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"no: {error}"[:200]


@click.command()
@click.option("--python", default=sys.executable, help="Of the environment with the clients.")
@click.option("--node", help="Folder with the node_modules of the clients in JavaScript.")
@click.option("--case", nargs=4, hidden=True)
def main(python, node, case):
    if case:
        client, name, url, model = case
        asked = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
        assert globals()[client](url, model, asked)[name](), "empty"
        return
    from specdemo.bench.load_test import started
    from specdemo.pairs.loading import load_pair
    from specdemo.pairs.registry import EMBEDDED

    folder = Path(tempfile.mkdtemp(), "model")
    shutil.copytree(load_pair(EMBEDDED).target.parent, folder)
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
        about = f"{server.url}/v1", folder.name
        for client, run in runs.items():
            cases = CASES[:1] if client == "lm_eval" else CASES
            cells = [tried([*run, case, *about], env=environment) for case in cases]
            print(f"| {client} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
