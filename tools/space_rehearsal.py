"""Builds this repository as a Space is built and runs it as a Space runs, with made-up weights in
the real shapes from a Hub on 127.0.0.1: what docs/guide/deploy-a-space.md describes.

`python tools/space_rehearsal.py [COMMIT]` prints the tables of docs/results/space.md (10 GB of
disk, five minutes). As root it runs the page as an unprivileged user. `--lock` writes
requirements-space.txt anew. `--tiny` takes tiny weights and the packages that are installed here,
and adds the bad days.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

from arrival_hub import served  # noqa: E402
from hub_server import Hub, Repository, is_binary  # noqa: E402
from tiny_models import write_neox_tokenizer  # noqa: E402

# The Hub's documentation: docs/hub/spaces-config-reference, as of 2026.
COLOURS = "red yellow green blue indigo purple pink gray".split()
HARDWARE = "cpu-basic cpu-upgrade zero-a10g t4-small t4-medium l4x1 l4x4 l40sx1 a10g-small".split()
PATTERNS = {
    "title": ".{1,60}",
    "emoji": r"[^\w\s]+",
    "colorFrom": "|".join(COLOURS),
    "colorTo": "|".join(COLOURS),
    "sdk": "gradio",
    "sdk_version": r"\d+\.\d+\.\d+",
    "python_version": r"3\.\d+(\.\d+)?",
    "app_file": r"[\w./-]+\.py",
    "pinned": "True|False",
    "license": "apache-2.0",
    "short_description": ".{1,60}",
    "suggested_hardware": "|".join(HARDWARE),
    "startup_duration_timeout": r"\d+[mh]",
    "thumbnail": "https://.+",
    "models": r"[\w.-]+/[\w.-]+",
    "preload_from_hub": r"[\w.-]+/[\w.-]+( [\w./-]+(,[\w./-]+)*( [0-9a-f]{40})?)?",
    "tags": "[a-z0-9-]+",
}
"""The fields of a Space's card, each with the values that it or the items of its list may have."""

# The steps of the builder, from its public logs (2026-07). The second line is one pip call.
BASE = ("datasets", "huggingface-hub>=0.30", "hf-transfer>=0.1.4", "protobuf<4", "click<8.1")
ADDED = ("uvicorn>=0.14.0", "websockets>=10.4", "spaces")

SPACE, HOST = "somebody/demo", "somebody-demo.hf.space"
USER = 1000
QUESTION = "Explain the difference between fission and fusion"
LOCK = ROOT / "requirements-space.txt"


def card_of(readme: str) -> dict[str, Any]:
    """The fields at the top of README.md."""
    return yaml.safe_load(readme.split("---\n")[1])


def card_problems(card: dict[str, Any], files: set[str]) -> list[str]:
    """What the Hub would refuse or ignore in a card, in sentences."""
    found = [f"{name} is no field" for name in card if name not in PATTERNS]
    for name, pattern in PATTERNS.items():
        values = card.get(name, [])
        for value in values if isinstance(values, list) else [values]:
            if not re.fullmatch(pattern, str(value)):
                found.append(f"{name}: {value!r} is not allowed")
    found += [f"{name} is missing" for name in ("title", "sdk", "sdk_version") if name not in card]
    preloaded = {one.split()[0] for one in card.get("preload_from_hub", [])}
    found += [f"{name} is not in models" for name in preloaded - {*card.get("models", [])}]
    return found + [f"{card['app_file']} is no file"] * (card.get("app_file") not in files)


def builder_adds(card: dict[str, Any]) -> list[str]:
    """What the builder's pip call installs beside requirements.txt."""
    return [f"gradio[oauth,mcp]=={card['sdk_version']}", *ADDED]


def write_checkpoint(source: Any, folder: Path) -> None:
    """Write a GPT-NeoX checkpoint in the shape of `source`, made-up float16 weights."""
    from tools.rehearse import shape_of

    shape, _ = shape_of(source)
    hidden, widened, vocabulary = shape.hidden, shape.inner, shape.vocabulary
    layer = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    layer |= {
        "attention.query_key_value": (3 * hidden, hidden),
        "attention.dense": (hidden, hidden),
    }
    layer |= {"mlp.dense_h_to_4h": (widened, hidden), "mlp.dense_4h_to_h": (hidden, widened)}
    parts = {f"layers.{at}.{name}": layer[name] for at in range(shape.layers) for name in layer}
    shapes = {"gpt_neox.embed_in.weight": (vocabulary, hidden)}
    for name, size in {**parts, "final_layer_norm": (hidden,)}.items():
        shapes |= {f"gpt_neox.{name}.weight": size, f"gpt_neox.{name}.bias": size[:1]}
    shapes["embed_out.weight"] = vocabulary, hidden
    random, tensors, table, end = np.random.default_rng(0), [], {}, 0
    for name, size in shapes.items():
        tensors.append((random.standard_normal(size, np.float32) * 0.02).astype(np.float16))
        begin, end = end, end + tensors[-1].nbytes
        table[name] = {"dtype": "F16", "shape": size, "data_offsets": [begin, end]}
    write_neox_tokenizer(folder, dolly=False)
    head = json.dumps(table).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.writelines(one.tobytes() for one in tensors)
    config = {"hidden_size": hidden, "num_hidden_layers": shape.layers}
    config |= {"num_attention_heads": shape.heads, "intermediate_size": widened}
    config |= {"model_type": "gpt_neox", "vocab_size": vocabulary, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))


def write_weights(target: Path, draft: Path) -> None:
    """Write Dolly 3B and pythia-70m with made-up weights."""
    from specdemo.pairs.registry import find_pair
    from tools.made_up import write_made_up
    from tools.rehearse import shape_of

    pair = find_pair("dolly-3b")
    write_made_up(*shape_of(pair.target), target)
    write_neox_tokenizer(target, dolly=True)
    (target / "config.json").write_text('{"max_position_embeddings": 2048, "eos_token_id": 0}')
    write_checkpoint(pair.draft, draft)


def pair_folders(home: Path) -> dict[str, Path]:
    """The folders of the pair, by repository; named as in the tests' tiny models."""
    target, draft = home / "dolly-int8", home / "pythia"
    return {"OpenVINO/dolly-v2-3b-int8-ov": target, "EleutherAI/pythia-70m": draft}


def add_folders(hub: Hub, folders: dict[str, Path]) -> None:
    for name, folder in folders.items():
        files = {path.name: served(path) for path in folder.iterdir() if path.is_file()}
        hub.repositories[name] = Repository(files)
        for file in files:  # now, since it takes longer than a client waits
            hub.repositories[name].digest(file)


@dataclass
class Space:
    """A Space in the folder `root`: `app` is read-only, `home` and `data` are the user's. `log`
    holds what the page printed. `python` runs it; `build` makes one of its own."""

    root: Path
    hub: Hub
    python: Path = Path(sys.executable)
    card: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen | None = None
    began: float = 0.0
    port: int = 7860

    def __post_init__(self) -> None:
        self.app, self.home, self.data, self.log = (
            self.root / name for name in ("app", "home/user", "data", "log")
        )
        for folder in (self.app, self.home, self.data):
            folder.mkdir(parents=True)
        self.root.chmod(0o755)

    def upload(self, commit: str) -> None:
        """`make space` and `hf upload` of the commit; `app` is what the Hub then holds."""
        source = self.root / "source"
        run("git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, source)
        run("git", "-C", source, "checkout", "--quiet", commit)
        run("make", "--silent", "-C", source, "space")
        command = re.search(r"hf (upload .*build/space \. .*)", space_workflow(source))[1]
        variables = {"HF_SPACE": SPACE, "HF_TOKEN": "hf_made_up", "HF_HUB_DISABLE_XET": "1"}
        shell = f"{self.hf} {command}"
        run(
            "sh",
            "-c",
            shell,
            cwd=source,
            env=self.environment() | os.environ | self.hubs | variables,
        )
        for name, content in self.hub.space.items():
            path = self.app / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.card = card_of((self.app / "README.md").read_text(encoding="utf-8"))

    def install(self) -> None:
        """The builder's steps with pip, in an environment of its own."""
        run(sys.executable, "-m", "venv", self.root / "python")
        self.python = self.root / "python" / "bin" / "python"
        pip = [self.python, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        run(*pip, "--upgrade", "pip")
        run(*pip, *BASE)
        run(*pip, "-r", self.app / "requirements.txt", *builder_adds(self.card))

    def preload(self) -> None:
        """Carries out `preload_from_hub`; then `home` is that of the image."""
        for entry in self.card["preload_from_hub"]:
            repo, files, revision = (*entry.split(), "", "")[:3]
            more = ["--revision", revision] if revision else []
            names = files.split(",") if files else []
            run(self.hf, "download", repo, *names, *more, env=self.environment())
        self.image = {*self.home.rglob("*")}
        self.own(self.home, self.data)

    def own(self, *folders: Path) -> None:
        if os.getuid() == 0:
            run("chown", "-R", f"{USER}:{USER}", *folders)

    @property
    def hf(self) -> Path:
        return self.python.parent / "hf"

    @property
    def hubs(self) -> dict[str, str]:
        """Variables that a Space does not have: what is downloaded comes from the loopback Hub, or
        is counted there."""
        index = {"PIP_INDEX_URL": f"{self.hub.url}/simple", "PIP_CONFIG_FILE": os.devnull}
        return {"HF_ENDPOINT": self.hub.url, "NO_PROXY": "127.0.0.1", **index}

    def environment(self) -> dict[str, str]:
        """The variables of a Space, and no others but `hubs`."""
        author, name = SPACE.split("/")
        gradio = {"SERVER_NAME": "0.0.0.0", "SERVER_PORT": "7860", "NUM_PORTS": "1"}
        gradio |= {"ALLOW_FLAGGING": "never", "THEME": "huggingface", "SSR_MODE": "true"}
        return {
            "HOME": str(self.home),
            "PATH": f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin",
            "SYSTEM": "spaces",
            "SPACE_ID": SPACE,
            "SPACE_HOST": HOST,
            "SPACE_AUTHOR_NAME": author,
            "SPACE_REPO_NAME": name,
            "SPACE_TITLE": "demo",
            "SPACE_CREATOR_USER_ID": "0123456789abcdef01234567",
            "CPU_CORES": "2",
            "MEMORY": "16Gi",
            "PYTHONUNBUFFERED": "1",
            "TQDM_POSITION": "-1",
            "TQDM_MININTERVAL": "1",
            **{f"GRADIO_{key}": value for key, value in gradio.items()},
            **self.hubs,
        }

    @contextlib.contextmanager
    def running(self, **variables: str) -> Iterator[None]:
        """Runs the page as an unprivileged user until the block ends, as when a Space sleeps."""
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", 7860 if self.port == 7860 else 0))
            self.port = probe.getsockname()[1]
        if self.port != 7860:
            variables["SPECDEMO_PORT"] = str(self.port)
        command = [str(self.python), self.card["app_file"]]
        if os.getuid() == 0:  # it may read everything, since Python itself may be root's
            rights = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
            who = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
            command = ["setpriv", *who, *rights, *command]
        self.hub.requests.clear()
        self.hub.served.clear()
        self.began = time.monotonic()
        environment = self.environment() | variables
        with (
            open(self.log, "wb") as log,
            subprocess.Popen(
                command, cwd=self.app, env=environment, stdout=log, stderr=log
            ) as self.process,
        ):
            try:
                yield
            finally:
                self.process.send_signal(signal.SIGTERM)
                self.process.wait(60)

    @property
    def seconds(self) -> float:
        """Since the page's process was started."""
        return time.monotonic() - self.began

    def wait_until_up(self) -> float:
        """Waits for the page's first answer; gives its time."""
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self.seconds
            except OSError:
                if self.process.poll() is not None or self.seconds > 120:
                    raise RuntimeError(self.log.read_text()) from None
                time.sleep(0.02)

    def sleep(self) -> None:
        """What a stopped container leaves: `home` as in the image, and `data`."""
        for path in sorted({*self.home.rglob("*")} - self.image):
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)

    @property
    def downloaded(self) -> str:
        """What the page fetched since it was started."""
        size = sum(one.sent for one in self.hub.served)
        asked = sum(path.startswith("/simple") for path in self.hub.requests)
        asked = f", {asked} requests to the package index" if asked else ""
        return f"{size / 1e6:.0f} MB{asked}" if size or self.hub.requests else "nothing"


def space_workflow(source: Path) -> str:
    return (source / ".github" / "workflows" / "space.yml").read_text(encoding="utf-8")


def run(*command: Any, **options: Any) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if done.returncode:
        said = f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        raise RuntimeError(said)


class Front:
    """The Hub's proxy on 127.0.0.1: TLS for every name. https://huggingface.co shows the Space in
    an iframe; requests for HOST go to `space`, with the Hub's headers; others are `refused`."""

    STATE = json.dumps({"id": SPACE, "runtime": {"stage": "RUNNING"}}).encode()
    FRAME = (
        f'<!doctype html><title>{SPACE}</title><body style="margin:0"><iframe src="https://{HOST}/'
        '?max_new_tokens=24&__theme=light" style="border:0;width:100%;height:100vh"></iframe>'
    ).encode()

    def __init__(self, space: Space):
        self.space, self.refused = space, set()
        pair = space.root / "key.pem", space.root / "certificate.pem"
        names = f"subjectAltName=DNS:{HOST},DNS:huggingface.co"
        options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={HOST}"]
        options += ["-addext", names, "-keyout", pair[0], "-out", pair[1]]
        run("openssl", "req", "-x509", *options)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair[1], pair[0])
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            client = self._context.wrap_socket(connection, server_side=True)
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(65536)
                if not piece:
                    return
                head += piece
            name = re.search(rb"(?i)\r\nhost: ([^\r:]+)", head)[1].decode()
            if name == "huggingface.co":  # Gradio asks its API about the Space
                api = head.startswith(b"GET /api/")
                body, kind = (self.STATE, "application/json") if api else (self.FRAME, "text/html")
                head = f"Content-Type: {kind}\r\nAccess-Control-Allow-Origin: *\r\n"
                head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                client.sendall(b"HTTP/1.1 200 OK\r\n" + head.encode() + body)
            elif name != HOST:
                self.refused.add(name)
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            else:
                self._pass_on(client, head)

    def _pass_on(self, client: ssl.SSLSocket, head: bytes) -> None:
        """One request a connection: the answer ends with the server's side."""
        added = b"\r\nX-Forwarded-For: 203.0.113.7, 10.0.0.1\r\nX-Forwarded-Proto: https"
        head = re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head)
        head = head.replace(b"\r\n\r\n", added + b"\r\nConnection: close\r\n\r\n", 1)
        with socket.create_connection(("127.0.0.1", self.space.port)) as server:
            server.sendall(head)
            threading.Thread(target=_copy, args=[client, server], daemon=True).start()
            _copy(server, client)


def _copy(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        while piece := source.recv(65536):
            to.sendall(piece)


BLOCKED = """const stores = ["localStorage", "sessionStorage", "indexedDB", "caches"];
if (self !== top) for (const name of stores) {
  const refuse = () => { throw new DOMException("Access is denied.", "SecurityError"); };
  Object.defineProperty(window, name, { get: refuse });
}
if (self !== top) Object.defineProperty(document, "cookie", { get: () => "", set: () => {} });"""
"""Third-party storage as browsers block it: names that throw, cookies that are dropped."""

PHASE = "document.querySelector('[data-phase]')?.dataset.phase"
TEXT = "name => document.querySelector(name)?.textContent ?? ''"


class Visit:
    """A Chromium that opens the Space's page on the Hub. `notes` are what was shown while a
    question waited, `errors` those of the console."""

    def __init__(self, front: Front, browser: Any):
        self.front, self.notes, self.errors = front, [], []
        context = browser.new_context(
            ignore_https_errors=True, viewport={"width": 1280, "height": 1000}
        )
        context.add_init_script(BLOCKED)
        self.page = context.new_page()
        self.page.set_default_timeout(120_000)
        note = lambda one: self.errors.append(one.text) if one.type == "error" else None  # noqa: E731
        self.page.on("console", note)
        self.page.on("pageerror", lambda one: self.errors.append(str(one)))

    def open(self) -> float:
        """Opens the page; gives the time at which the recorded race moves."""
        self.page.goto(f"https://huggingface.co/spaces/{SPACE}", wait_until="commit")
        self.page.wait_for_selector("iframe")
        self.frame = self.page.frame_locator("iframe").locator("body")
        self.frame.wait_for()
        self.frame = next(one for one in self.page.frames if HOST in one.url)
        self.frame.wait_for_function(f"{PHASE} === 'opened'")
        self.frame.wait_for_function(
            "document.querySelector('.sd-play').textContent.includes('Pause')"
        )
        return self.front.space.seconds

    def playing(self) -> None:
        """Waits until the recorded race plays; plays it again if it is over."""
        if "Replay" in self.frame.evaluate(TEXT, ".sd-play"):
            self.frame.evaluate("document.querySelector('.sd-play').click()")
        self.frame.wait_for_function(
            "document.querySelector('.sd-play').textContent.includes('Pause')"
        )

    def ask(self) -> tuple[float, float | None]:
        """Asks; gives the times of the question and of the first live token, None if a sentence
        came instead, which `notes` then ends with."""
        self.frame.fill("#sd-question textarea", QUESTION)
        self.frame.get_by_role("button", name="Run", exact=True).click()
        asked, phase = self.front.space.seconds, ""
        while phase not in ("speculative", "baseline", "done", "error"):
            phase = self.frame.evaluate(PHASE)
            said = self.frame.evaluate(
                TEXT, ".sd-state .sd-error" if phase == "error" else ".sd-status"
            )
            if phase in ("loading", "waiting", "error") and said not in self.notes:
                self.notes.append(said)
            self.page.wait_for_timeout(50)
        return asked, None if phase == "error" else self.front.space.seconds

    def trace(self) -> dict[str, Any]:
        """The trace of the race, once it has ended."""
        self.frame.wait_for_function(f"['done', 'stopped', 'error'].includes({PHASE})")
        self.frame.wait_for_function("document.querySelector('[data-settled]')")
        return self.frame.evaluate("window.specdemo.race.trace")

    @property
    def status(self) -> str:
        return self.frame.evaluate(TEXT, "#sd-models").strip()


@contextlib.contextmanager
def visited(front: Front) -> Iterator[Visit]:
    from playwright.sync_api import sync_playwright

    names = "chromium", "chromium-browser", "google-chrome"
    path = next(filter(None, map(shutil.which, names)), None)
    # Also the browser's own setting, so that cookies of the frame are not sent.
    rules = f"--host-resolver-rules=MAP * 127.0.0.1:{front.port}"
    blocking = "--test-third-party-cookie-phaseout"
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", rules, blocking, "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield Visit(front, browser)
        finally:
            browser.close()


def visit(
    space: Space, front: Front, picture: Path | None = None, **variables: str
) -> dict[str, Any]:
    """Starts the Space, opens it and asks at once; gives what happened, times in seconds."""
    with space.running(**variables), visited(front) as there:
        row = {"page up": space.wait_until_up(), "recorded race plays": there.open()}
        row["asked"], row["first live token"] = there.ask()
        if picture:
            there.page.screenshot(path=picture)
        trace = there.trace()
        row["race over"] = space.seconds
        row |= {"pair": trace["pair"]["name"], "identical": trace["identical"]}
        row |= {"downloaded": space.downloaded, "notes": there.notes, "status": there.status}
        return row | {"console errors": there.errors, "other hosts": sorted(front.refused)}


def bad_days(space: Space, front: Front) -> Iterator[tuple[str, str, str]]:
    """What happened, the sentence on the page, and the pair that answers after a restart."""
    blobs = next(space.home.glob(".cache/huggingface/hub/models--OpenVINO*")) / "blobs"
    largest = max(blobs.iterdir(), key=lambda path: path.stat().st_size)
    kept, cache = space.root / "kept", space.home / ".cache"

    def lose() -> None:
        largest.rename(kept)
        space.hub.lost = True

    def find() -> None:
        space.hub.lost = False  # the next start fetches what is missing

    def lose_all() -> None:
        find()
        (cache / "huggingface").rename(kept)
        space.hub.lost = True

    def fill() -> None:
        (cache / "specdemo").mkdir()
        space.own(cache / "specdemo")
        run("mount", "-t", "tmpfs", "-o", "size=4m", "none", cache / "specdemo")
        (cache / "specdemo").chmod(0o777)

    days: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "a preload that was cut (a blob is missing), the Hub unreachable": (lose, find),
        "nothing was preloaded, the Hub unreachable": (lose_all, find),
    }
    if os.getuid() == 0:
        days["a disk too full for the conversion"] = fill, lambda: run("umount", cache / "specdemo")
        closed = lambda: run("chown", "-R", "root:root", space.home)  # noqa: E731
        days["a read-only HOME"] = closed, lambda: space.own(space.home)
    for name, (breaks, mends) in days.items():
        if kept.exists():
            shutil.rmtree(cache, ignore_errors=True) if kept.is_dir() else kept.unlink()
            if kept.is_dir():
                cache.mkdir()
                kept.rename(cache / "huggingface")
        space.sleep()
        space.own(space.home)
        breaks()
        with space.running(), visited(front) as there:
            space.wait_until_up()
            there.open()
            _, token = there.ask()
            said = there.notes[-1] if token is None else "(it answered)"
            there.playing()
        mends()
        with space.running(), visited(front) as there:
            space.wait_until_up()
            there.open()
            for _ in range(60):  # a pair that is fetched answers once it is here
                if there.ask()[1] is not None:
                    break
                time.sleep(1)
            pair = there.trace()["pair"]["name"]
        yield name, said, pair


def size_of(folder: Path) -> str:
    total = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    return f"{total / 1e6:,.0f} MB"


def rehearse(space: Space, folders: dict[str, Path], commit: str, *, install: bool) -> None:
    """The build and the four starts; prints a table."""

    def timed(what: str, work: Callable[[], None], size: Callable[[], str] = str) -> None:
        began = time.monotonic()
        work()
        print(f"| {what} | {time.monotonic() - began:.1f} | {size()} |", flush=True)

    add_folders(space.hub, folders)
    print("| build | seconds | on the disk |\n|---|---|---|")
    timed("`make space`, `hf upload`", lambda: space.upload(commit), lambda: size_of(space.app))
    if problems := card_problems(space.card, {*space.hub.space}):
        raise RuntimeError(f"README.md: {'; '.join(problems)}")
    if install:
        packages = lambda: size_of(space.root / "python")  # noqa: E731
        timed("pip, as the builder calls it", space.install, packages)
    timed("`preload_from_hub`", space.preload, lambda: size_of(space.home))
    binary = sorted(name for name, content in space.hub.space.items() if is_binary(content))
    print(f"\nBinary files, which `hf upload` stored apart: {', '.join(binary)}.\n")
    front, data = Front(space), str(space.data / ".huggingface")
    starts = {"first start": {}, "after sleeping": {}}
    starts |= {"with HF_HOME=/data/.huggingface": {"HF_HOME": data}}
    starts |= {"the same, after sleeping": {"HF_HOME": data}}
    rows = {}
    for name, variables in starts.items():
        space.sleep()
        picture = space.root.parent / f"space-{name.split()[0]}.png"
        rows[name] = visit(space, front, picture, **variables)
    columns = ["page up", "recorded race plays", "asked", "first live token", "race over"]
    columns += ["pair", "identical", "downloaded"]
    print(f"| seconds since the process began | {' | '.join(columns)} |")
    print(f"|{'---|' * (1 + len(columns))}")
    for name, row in rows.items():
        cells = [f"{row[one]:.1f}" if isinstance(row[one], float) else row[one] for one in columns]
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)
    print("\nShown while the question waited, first start:")
    print("\n".join(f"- {note}" for note in rows["first start"]["notes"]))
    for name, row in rows.items():
        print(
            f"{name}: {row['status']}; errors {row['console errors']}; hosts {row['other hosts']}"
        )
    if space.python == Path(sys.executable):
        print("\n| bad day | sentence on the page | after a restart |\n|---|---|---|")
        for cells in bad_days(space, front):
            print(f"| {' | '.join(cells)} |", flush=True)


def write_lock() -> None:
    """Resolve the builder's pip line and write the versions."""
    card = card_of((ROOT / "README.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        run(sys.executable, "-m", "venv", f"{folder}/python")
        options = ["--quiet", "--dry-run", "--report", report, "-r", ROOT / "requirements.txt"]
        run(f"{folder}/python/bin/pip", "install", *options, *builder_adds(card))
        found = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    lines = {f"{re.sub('[-_.]+', '-', one['name']).lower()}=={one['version']}" for one in found}
    head = [line for line in LOCK.read_text().splitlines() if line.startswith("#")]
    LOCK.write_text("\n".join([*head, *sorted(lines)]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--lock", action="store_true")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="with dolly-int8 and pythia")
    parser.add_argument("--root", type=Path, help="where to build; the system's temporary folder")
    options = parser.parse_args()
    if options.lock:
        return write_lock()
    home = Path(tempfile.mkdtemp(prefix="space-", dir=options.root))
    home.chmod(0o755)
    try:
        with Hub() as hub:
            space = Space(home / "space", hub)
            folders = pair_folders(options.tiny or home / "weights")
            if not options.tiny:
                write_weights(*folders.values())
            rehearse(space, folders, options.commit, install=not options.tiny)
    finally:
        for picture in home.glob("*.png"):
            shutil.copy(picture, tempfile.gettempdir())
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
