"""Builds this repository as a Space is built and runs it as a Space runs, with made-up weights in
the real shapes from a Hub on 127.0.0.1: what docs/guide/deploy-a-space.md describes.

`python tools/space_rehearsal.py [COMMIT]` prints the figures of docs/results/space.md (10 GB of
disk, five minutes). As root it runs the page as an unprivileged user. `--lock` writes
requirements-space.txt anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from hub_server import Hub  # noqa: E402
from tiny_models import write_neox_tokenizer  # noqa: E402

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


def builder_adds(card: dict[str, Any]) -> list[str]:
    """What the builder's pip call installs beside requirements.txt."""
    return [f"gradio[oauth,mcp]=={card['sdk_version']}", *ADDED]


def run(*command: Any, **options: Any) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if done.returncode:
        output = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        raise RuntimeError(f"{' '.join(map(str, command))}\n{output}")


def write_weights(target: Path, draft: Path) -> None:
    """Writes Dolly 3B as IR and pythia-70m as a checkpoint, with made-up weights."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    from specdemo.pairs.registry import find_pair
    from tools.rehearse import shape_of, write_made_up

    pair = find_pair("dolly-3b-int4")
    write_made_up(*shape_of(pair.target), target)
    (target / "config.json").write_text('{"max_position_embeddings": 2048, "eos_token_id": 0}')
    shape, _ = shape_of(pair.draft)
    config = GPTNeoXConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        intermediate_size=shape.inner,
        vocab_size=shape.vocabulary,
        eos_token_id=0,
    )
    GPTNeoXForCausalLM(config).half().save_pretrained(draft)
    for folder in (target, draft):
        write_neox_tokenizer(folder, dolly=folder is target)


def pair_folders(home: Path) -> dict[str, Path]:
    """The folders of the pair, by repository; named as in the tests' tiny models."""
    target, draft = home / "dolly-int8", home / "pythia"
    return {"OpenVINO/dolly-v2-3b-int4-ov": target, "EleutherAI/pythia-70m": draft}


@dataclass
class Space:
    """A Space in the folder `root`: `app` is read-only, `home` and `data` are the user's. `log`
    holds what the page printed. `python` runs it; `install` makes one of its own."""

    root: Path
    hub: Hub
    python: Path = Path(sys.executable)
    card: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0

    def __post_init__(self) -> None:
        names = "app", "home/user", "data", "log"
        self.app, self.home, self.data, self.log = (self.root / name for name in names)
        for folder in (self.app, self.home, self.data):
            folder.mkdir(parents=True)
        self.root.chmod(0o755)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]

    def upload(self, commit: str) -> None:
        """`make space` and `hf upload` of the commit; `app` is what the Hub then holds."""
        source = self.root / "source"
        run("git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, source)
        run("git", "-C", source, "checkout", "--quiet", commit)
        run("make", "--silent", "-C", source, "space")
        workflow = (source / ".github" / "workflows" / "space.yml").read_text(encoding="utf-8")
        command = re.search(r"hf (upload .*build/space \. .*)", workflow)[1]
        variables = {"HF_SPACE": SPACE, "HF_TOKEN": "hf_made_up", "HF_HUB_DISABLE_XET": "1"}
        variables |= {"HF_ENDPOINT": self.hub.url, "NO_PROXY": "127.0.0.1"}
        environment = os.environ | variables
        run("sh", "-c", f"{self.hf} {command}", cwd=source, env=environment)
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
            names = [name for name in files.split(",") if name]
            names += ["--revision", revision] if revision else []
            run(self.hf, "download", repo, *names, env=self.environment)
        self.image = {*self.home.rglob("*")}
        if os.getuid() == 0:
            run("chown", "-R", f"{USER}:{USER}", self.home, self.data)

    @property
    def hf(self) -> Path:
        return self.python.parent / "hf"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a Space, and of where this machine's Hub and page are."""
        return {
            "HOME": str(self.home),
            "PATH": f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin",
            "SYSTEM": "spaces",
            "SPACE_ID": SPACE,
            "SPACE_HOST": HOST,
            "CPU_CORES": "2",
            "MEMORY": "16Gi",
            "PYTHONUNBUFFERED": "1",
            "TQDM_POSITION": "-1",
            "GRADIO_SERVER_NAME": "0.0.0.0",
            "GRADIO_SERVER_PORT": "7860",
            "SPECDEMO_PORT": str(self.port),
            "GRADIO_SSR_MODE": "true",
            "HF_ENDPOINT": self.hub.url,
            "NO_PROXY": "127.0.0.1",
        }

    @contextlib.contextmanager
    def running(self, **variables: str) -> Iterator[None]:
        """Runs the page as an unprivileged user until the block ends, as when a Space sleeps."""
        command = [str(self.python), self.card["app_file"]]
        if os.getuid() == 0:  # it may read everything, since Python itself may be root's
            rights = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
            user = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
            command = ["setpriv", *user, *rights, *command]
        self.hub.requests.clear()
        self.hub.served.clear()
        self.began = time.monotonic()
        environment = self.environment | variables
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
        while socket.socket().connect_ex(("127.0.0.1", self.port)):
            if self.process.poll() is not None or self.seconds > 120:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.02)
        return self.seconds

    def sleep(self) -> None:
        """What a stopped container leaves: `home` as in the image, and `data`."""
        for path in sorted({*self.home.rglob("*")} - self.image, reverse=True):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()

    @property
    def downloaded(self) -> str:
        """What the page fetched since it was started."""
        size = sum(file.sent for file in self.hub.served)
        return f"{size / 1e6:.0f} MB" if size or self.hub.requests else "nothing"


class Front:
    """The Hub's proxy on 127.0.0.1: TLS for every name. https://huggingface.co shows the Space in
    an iframe; requests for HOST go to `space`, with the Hub's headers; others are `refused`."""

    FRAME = (
        f'<!doctype html><title>{SPACE}</title><body style="margin:0"><iframe src="https://{HOST}/'
        '?max_new_tokens=24&__theme=light" style="border:0;width:100%;height:100vh"></iframe>'
    )

    def __init__(self, space: Space):
        self.space, self.refused = space, set()
        key, certificate = space.root / "key.pem", space.root / "certificate.pem"
        names = f"subjectAltName=DNS:{HOST},DNS:huggingface.co"
        options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={HOST}"]
        options += ["-addext", names, "-keyout", key, "-out", certificate]
        run("openssl", "req", "-x509", *options)
        self._client = httpx.AsyncClient(timeout=None)
        methods = ["GET", "POST", "HEAD", "DELETE", "PUT"]
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=methods)])
        listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = listening.getsockname()[1]
        options = {"ssl_keyfile": key, "ssl_certfile": certificate, "log_level": "error"}
        server = uvicorn.Server(uvicorn.Config(app, **options))
        threading.Thread(target=server.run, args=[[listening]], daemon=True).start()

    async def _answer(self, request: Request) -> Response:
        name = request.url.hostname
        if name == "huggingface.co":  # Gradio asks its API about the Space
            if request.url.path.startswith("/api/"):
                state = {"id": SPACE, "runtime": {"stage": "RUNNING"}}
                return JSONResponse(state, headers={"Access-Control-Allow-Origin": "*"})
            return HTMLResponse(self.FRAME)
        if name != HOST:
            self.refused.add(name)
            return Response(status_code=502)
        url = request.url.replace(scheme="http", hostname="127.0.0.1", port=self.space.port)
        headers = [(key, value) for key, value in request.headers.items() if key != "connection"]
        headers += [("X-Forwarded-For", "203.0.113.7, 10.0.0.1"), ("X-Forwarded-Proto", "https")]
        sent = self._client.build_request(
            request.method, str(url), headers=headers, content=await request.body()
        )
        answer = await self._client.send(sent, stream=True)
        close = BackgroundTask(answer.aclose)
        whole = StreamingResponse(answer.aiter_raw(), answer.status_code, background=close)
        whole.raw_headers = answer.headers.raw
        return whole


BLOCKED = """const stores = ["localStorage", "sessionStorage", "indexedDB", "caches"];
if (self !== top) for (const name of stores) {
  const refuse = () => { throw new DOMException("Access is denied.", "SecurityError"); };
  Object.defineProperty(window, name, { get: refuse });
}
if (self !== top) Object.defineProperty(document, "cookie", { get: () => "", set: () => {} });"""
"""Third-party storage as browsers block it: names that throw, cookies that are dropped."""

PHASES = "phases => phases.includes(document.querySelector('[data-phase]')?.dataset.phase)"
PLAYS = "document.querySelector('.sd-play').textContent.includes('Pause')"


def visit(space: Space, front: Front, **variables: str) -> dict[str, Any]:
    """Starts the Space, opens it in Chromium and asks at once; gives what happened, times in
    seconds since the start."""
    from playwright.sync_api import sync_playwright

    names = "chromium", "chromium-browser", "google-chrome"
    path = next(filter(None, map(shutil.which, names)), None)
    # Also the browser's own setting, so that cookies of the frame are not sent.
    options = ["--no-sandbox", f"--host-resolver-rules=MAP * 127.0.0.1:{front.port}"]
    options += ["--test-third-party-cookie-phaseout", "--disable-background-networking"]
    errors: list[str] = []
    with space.running(**variables), sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=options)
        window = {"width": 1280, "height": 1000}
        context = browser.new_context(ignore_https_errors=True, viewport=window)
        context.add_init_script(BLOCKED)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        row: dict[str, Any] = {"page up": space.wait_until_up()}
        page.goto(f"https://huggingface.co/spaces/{SPACE}", wait_until="commit")
        page.frame_locator("iframe").locator("body").wait_for()
        frame = next(frame for frame in page.frames if HOST in frame.url)
        frame.wait_for_function(PHASES, arg=["opened"])
        frame.wait_for_function(PLAYS)
        row["recorded race plays"] = space.seconds
        frame.fill("#sd-question textarea", QUESTION)
        frame.get_by_role("button", name="Run", exact=True).click()
        row["question asked"] = space.seconds
        frame.wait_for_function(PHASES, arg=["speculative", "baseline", "done", "error"])
        row["first live token"] = space.seconds
        frame.wait_for_function(PHASES, arg=["done", "stopped", "error"])
        frame.wait_for_function("document.querySelector('[data-settled]')")
        row["race over"] = space.seconds
        trace = frame.evaluate("window.specdemo.race.trace")
        browser.close()
    row |= {"pair": trace["pair"]["name"], "identical": trace["identical"]}
    row |= {"downloaded": space.downloaded, "console errors": errors}
    return row | {"other hosts": sorted(front.refused)}


def rehearse(space: Space, commit: str) -> None:
    """The build and the four starts; prints their figures."""
    steps = {
        "`make space` and the upload": (lambda: space.upload(commit), space.app),
        "pip": (space.install, space.root / "python"),
        "`preload_from_hub`": (space.preload, space.home),
    }
    for name, (work, folder) in steps.items():
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
        size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
        print(f"{name}: {seconds:.1f} s, {size / 1e6:,.0f} MB", flush=True)
    front, data = Front(space), {"HF_HOME": str(space.data / ".huggingface")}
    starts = {"first start": {}, "after sleeping": {}}
    starts |= {"HF_HOME in /data": data, "the same, after sleeping": data}
    for name, variables in starts.items():
        space.sleep()
        print(f"{name}: {json.dumps(visit(space, front, **variables))}", flush=True)


def write_lock() -> None:
    """Resolves the builder's pip line and writes the versions."""
    card = card_of((ROOT / "README.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        run(sys.executable, "-m", "venv", f"{folder}/python")
        options = ["--quiet", "--dry-run", "--report", report, "-r", ROOT / "requirements.txt"]
        run(f"{folder}/python/bin/pip", "install", *options, *builder_adds(card))
        packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    lines = {f"{re.sub('[-_.]+', '-', one['name']).lower()}=={one['version']}" for one in packages}
    head = [line for line in LOCK.read_text().splitlines() if line.startswith("#")]
    LOCK.write_text("\n".join([*head, *sorted(lines)]) + "\n")


def main(argument: str = "HEAD") -> None:
    if argument == "--lock":
        write_lock()
        return
    with tempfile.TemporaryDirectory(prefix="space-") as home, Hub() as hub:
        Path(home).chmod(0o755)
        folders = pair_folders(Path(home, "weights"))
        write_weights(*folders.values())
        for name, folder in folders.items():
            hub.add_folder(name, folder)
        rehearse(Space(Path(home, "space"), hub), argument)


if __name__ == "__main__":
    main(*sys.argv[1:])
