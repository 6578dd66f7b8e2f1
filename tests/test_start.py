"""What the machine and the shell change: interrupts, limits, calls that other systems lack, no
telemetry, and counters of energy."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT, python

from specdemo.machine import hardware
from specdemo.runs.session import Session

INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    "Interrupts the import of a module, in a caller that goes on as if nothing had happened."
    def find_spec(self, name, *_):
        if name == module:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000): pass
            except BaseException:
                pass

sys.meta_path.insert(0, Interrupt())
_, module, place, *arguments = sys.argv
sys.argv = [place, *arguments]
(runpy.run_path if place.endswith(".py") else runpy.run_module)(place, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["click", "numpy", "gradio"])
@pytest.mark.parametrize("program", ["app.py", "specdemo"])
def test_an_interrupt_of_an_import_is_one_word_even_where_it_is_swallowed(program, module):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    command = ["page"] if program == "specdemo" else []
    options = ["--pair", "embedded", "--port", port]
    done = python("-c", INTERRUPTED_IMPORT, module, program, *command, *options)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == f"{program}: interrupted\n"


PRINTING = """
import click, sys, threading, time
from specdemo import cli, start

@click.command()
def printing():
    print("hello")
    if sys.argv[1:] == ["with a thread"]:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

main = cli.main
cli.main = lambda name, command: main([], printing, name)
sys.exit(start.start())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "specdemo", "--help"],
        ["-m", "specdemo", "pairs", "--json", "-"],
        ["-c", PRINTING],
        ["-c", PRINTING, "with a thread"],
    ],
    ids=str,
)
def test_an_output_that_cannot_be_written_is_a_failure(arguments):
    command = shlex.join([sys.executable, *arguments])
    run = {"env": {**os.environ, "PYTHONUNBUFFERED": ""}, "capture_output": True, "timeout": 60}
    done = subprocess.run(f"{command} > /dev/full", shell=True, cwd=ROOT, text=True, **run)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "cannot be written: No space left" in done.stderr


def test_a_process_that_ignores_interrupts_still_does():
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + INTERRUPTED_IMPORT
    done = python("-c", code, "click", "specdemo", "--version")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules", ["specdemo.runs.session", "specdemo, openvino_genai, nncf, optimum.intel"]
)
def test_no_library_sends_statistics_or_leaves_a_file_in_the_home_folder(tmp_path, modules):
    code = (
        "import os, socket, sys\n"
        "socket.getaddrinfo = lambda *asked, **_: os.write(1, f'asked for {asked}'.encode())\n"
        f"import {modules}\n"
        "assert sys.modules['openvino_telemetry'] is None\n"
        "from openvino.tools.ovc.telemetry_utils import tm\n"
        "assert tm.__name__.endswith('stub'), tm\n"
        "print(os.environ['RAY_USAGE_STATS_ENABLED'], os.environ['GRADIO_ANALYTICS_ENABLED'])"
    )
    done = python("-c", code, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (done.returncode, done.stdout) == (0, "0 False\n"), done.stderr
    assert not (tmp_path / "intel").exists()


def test_statistics_are_switched_on_by_a_variable_only():
    code = "import sys, specdemo; print('openvino_telemetry' in sys.modules)"
    assert python("-c", code).stdout == "True\n"
    assert python("-c", code, SPECDEMO_TELEMETRY="1").stdout == "False\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
@pytest.mark.parametrize("megabytes", [300, 600, 1200])
def test_a_limit_of_the_shell_is_the_cause_that_is_named(embedded_pair, megabytes):
    code = (
        "import resource, sys; from specdemo.cli import main\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({megabytes * 10**6},) * 2)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = python("-c", code, "run", "hello", "--pair", "embedded", "--max-new-tokens", "2")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "memory" in last.lower() and "ulimit -v" in last


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "Memory ran out: .* are free"),
        (OSError(12, "Cannot allocate memory"), "Memory ran out"),
        (RuntimeError("Exception from src/cpp: std::bad_alloc"), "Memory ran out"),
        (ImportError("libopenvino.so: failed to map segment from shared object"), "Memory ran out"),
        (OSError(24, "Too many open files", "x"), "ulimit -n"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(2, "No such file or directory"), None),
        (ValueError("out of range"), None),
    ],
)
def test_what_a_process_lacks_is_told_from_other_failures(monkeypatch, error, words):
    monkeypatch.setattr(hardware, "_address_limit", lambda: None)
    try:
        raise RuntimeError("the model cannot be loaded") from error
    except RuntimeError as raised:
        shortage = hardware.shortage(raised)
    assert re.search(words, shortage or "") if words else shortage is None


def test_the_kv_cache_is_sized_by_the_limit_on_addresses(monkeypatch):
    own = hardware.psutil.Process().memory_info().vms
    monkeypatch.setattr(hardware, "_address_limit", lambda: own + 50_000_000)
    assert 0 < hardware.available_bytes() < 60_000_000
    assert hardware.memory_bytes() <= own + 50_000_000


# Other systems

WITHOUT = """
import ctypes, os, pathlib, signal, sys
import psutil  # which asks the system in the way of each system

def missing(*arguments, **options):
    raise OSError(1, "a required privilege is not held by the client")

LINUX = "pread preadv setpriority fork forkpty sched_getaffinity getrusage mkfifo posix_fallocate"
for name in LINUX.split():
    if hasattr(os, name):
        delattr(os, name)
os.symlink = os.link = missing
del signal.setitimer, signal.SIGPROF
sys.modules["resource"] = None  # importing it fails
library = ctypes.CDLL.__init__
def named(self, name, *rest, **options):
    if name is None:
        raise TypeError("argument of type 'NoneType' is not iterable")
    library(self, name, *rest, **options)
ctypes.CDLL.__init__ = named
open_ = pathlib.Path.open
def elsewhere(path, *rest, **options):
    if str(path).startswith(("/proc", "/sys", "/dev")):
        raise FileNotFoundError(2, "no such file", str(path))
    return open_(path, *rest, **options)
pathlib.Path.open = elsewhere
"""

ANSWER = """
from tiny_models import embed
from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import EMBEDDED, ModelChoice, chosen_pair
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
folder = pathlib.Path(sys.argv[1])
embed(folder)
source = folder / "tiny.gguf"
own = load_pair(chosen_pair(ModelChoice(model=str(source))))
assert (own.target.parent / "source.gguf").stat().st_size == os.stat(source).st_size
for pair in (load_pair(EMBEDDED), own):
    with Session(pair) as session:
        question = Question("Count from one to five.", Settings(max_new_tokens=12), baseline=True)
        *_, trace = session.ask(question)
    assert trace.identical and len(trace.token_ids) == 12, trace
    pair.check.require()
print("answered")
"""


def test_setup_conversion_and_an_answer_need_no_call_of_posix(tiny_home, tmp_path):
    own = {"SPECDEMO_HOME": str(tmp_path / "home"), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests"}
    done = python("-c", WITHOUT + ANSWER, str(tiny_home / "embedded"), **own)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "answered\n"


# The counters of energy


def add_zones(folder: Path, *zones: tuple[str, str, int]) -> None:
    """Writes the number, the name and the microjoules of each zone."""
    for number, name, used in zones:
        zone = folder / f"intel-rapl:{number}"
        zone.mkdir(exist_ok=True)
        for file, value in {"name": name, "energy_uj": used, "max_energy_range_uj": 999}.items():
            (zone / file).write_text(f"{value}\n")


def test_the_joules_of_all_packages_are_counted_once_and_across_the_end_of_a_counter(tmp_path):
    names = [("0", "package-0"), ("1", "package-1"), ("0:0", "core"), ("2", "psys")]
    add_zones(tmp_path, *((*zone, 900) for zone in names))
    meter = hardware.EnergyMeter(tmp_path)
    assert meter.joules == 0
    used = 950, 50, 990, 990
    add_zones(tmp_path, *((*zone, count) for zone, count in zip(names, used, strict=True)))
    assert meter.joules == pytest.approx((50 + 150) * 1e-6)


@pytest.mark.parametrize("trouble", ["no folder", "no package", "not allowed"])
def test_where_the_counters_cannot_be_read_there_are_no_joules(tmp_path, trouble):
    if trouble != "no folder":
        add_zones(tmp_path, ("0", "psys" if trouble == "no package" else "package-0", 1))
    if trouble == "not allowed":
        (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
        (tmp_path / "intel-rapl:0" / "energy_uj").mkdir()  # root may read every file
    assert hardware.EnergyMeter(tmp_path).joules is None


# What a container may use


def in_groups(monkeypatch, tmp_path, membership: str, files: dict[str, str]) -> None:
    """Let this process be in control groups, whose `files` are by their paths."""
    for name, text in files.items():
        (path := tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "membership").write_text(membership)
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(hardware, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(hardware, "visible_processors", lambda: 4)


UNLIMITED = {"cpu.max": "max 100000", "memory.max": "max"}
SERVICE, SLICE = "0::/a.slice/b.service\n", {"a.slice/cpu.max": "200000 100000"}
V1 = "3:cpu,cpuacct:/docker/abc\n2:memory:/docker/abc\n1:name=systemd:/docker/abc\n"


def quota(group: str, microseconds: int) -> dict[str, str]:
    """The files of a group of version 1."""
    values = {"quota": microseconds, "period": 100_000}
    return {f"{group}/cpu.cfs_{name}_us": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("membership", "files", "threads", "share"),
    [
        ("0::/\n", UNLIMITED, 4, 1.0),
        ("0::/\n", {}, 4, 1.0),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1, 0.5),  # docker run --cpus=0.5
        ("0::/\n", {"cpu.max": "100000 100000"}, 1, 1.0),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1, 1.0),
        ("0::/\n", {"cpu.max": "800000 100000"}, 4, 1.0),
        # systemd's CPUQuota of a service, and a tighter one of the slice that contains it
        (SERVICE, {"a.slice/b.service/cpu.max": "20000 100000"}, 1, 0.2),
        (SERVICE, {"a.slice/b.service/cpu.max": "300000 100000", **SLICE}, 2, 1.0),
        ("0::/docker/of/the/host\n", {"cpu.max": "200000 100000"}, 2, 1.0),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "50000"}, 4, 1.0),  # without a period: no limit
        (V1, quota("cpu,cpuacct", 50_000), 1, 0.5),
        (V1, quota("cpu/docker/abc", 200_000) | quota("cpu", -1), 2, 1.0),
        ("nonsense", {"cpu.max": "50000 100000"}, 4, 1.0),
    ],
)
def test_threads_are_as_many_as_a_quota_pays_for(
    monkeypatch, tmp_path, membership, files, threads, share
):
    in_groups(monkeypatch, tmp_path, membership, files)
    assert hardware.processors() == threads
    assert f", {threads} processor{'s' * (threads > 1)}, " in hardware.describe()
    assert hardware.usual_share() == pytest.approx(share)


def test_a_process_that_waits_for_a_processor_lowers_the_share_of_the_one_that_started_it(
    monkeypatch,
):
    waited, clock = iter([0, 9 * 10**9]), iter([0.0, 10.0])
    monkeypatch.setattr(hardware, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(hardware, "processors", lambda: 1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:

        def waiting_times(process):
            return Counter(thread=next(waited)) if process == child.pid else Counter()

        monkeypatch.setattr(hardware, "waiting_times", waiting_times)
        result, share = hardware.measured_share(lambda: "done")
        child.communicate(b"\n")
    assert result == "done" and share < 0.5


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/\n", "memory.max"),
        ("0::/a/b\n", "a/memory.max"),
        (V1, "memory/docker/abc/memory.limit_in_bytes"),
        (V1, "memory/memory.limit_in_bytes"),
    ],
)
def test_memory_is_limited_by_every_group_that_contains_the_process(
    monkeypatch, tmp_path, membership, file
):
    in_groups(monkeypatch, tmp_path, membership, {file: "1000000000\n", "x/memory.max": "5"})
    assert hardware.memory_bytes() == 1_000_000_000


def test_a_session_has_the_threads_that_a_quota_pays_for(monkeypatch, tmp_path, tiny_llama_pair):
    in_groups(monkeypatch, tmp_path, "0::/\n", {"cpu.max": "100000 100000"})
    with Session(tiny_llama_pair, background=False) as session:
        assert session.engine.core.get_property("CPU", "INFERENCE_NUM_THREADS") == 1
