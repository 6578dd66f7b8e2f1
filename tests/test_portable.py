"""Setup, conversion and an answer where the calls that Windows and macOS lack are taken away."""

from __future__ import annotations

import os

from conftest import ROOT, python

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
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.question import Question
from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import EMBEDDED, chosen_pair
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
folder = pathlib.Path(sys.argv[1])
embed(folder)
source = folder / "tiny.gguf"
choice = ModelChoice(model=str(source))
own = load_pair(chosen_pair(choice))
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
