"""llama.cpp as a peer, with a stand-in for its package."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest

from specdemo.bench import llama_peers
from specdemo.errors import BadInput, MissingPackage
from specdemo.settings import Settings


class FakeLlama:
    """Answers 1, 2, 3, ..."""

    def __init__(self, path, **options):
        self.options = options

    def generate(self, tokens, **options):
        self.asked = options
        yield from range(1, 1000)


@pytest.fixture
def llama_cpp(monkeypatch):
    package, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    package.Llama, package.__version__ = FakeLlama, "1"
    speculative.LlamaPromptLookupDecoding = lambda **options: SimpleNamespace(**options)
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)


@pytest.fixture
def with_gguf(tiny_llama_pair, tmp_path):
    (tmp_path / llama_peers.SOURCE).touch()
    return dataclasses.replace(
        tiny_llama_pair, target_xml=tmp_path / "openvino_model.xml", stop_ids=frozenset({5})
    )


def test_both_modes_run_and_end_at_the_stop_token_or_the_limit(llama_cpp, with_gguf):
    peers, left_out = llama_peers.open_all(with_gguf, {})
    assert not left_out
    assert [(peer.name, peer.variant) for peer in peers] == [
        ("llama-cpp/autoregressive", "Q4_1"),
        ("llama-cpp/prompt-lookup", "K=3"),
        ("llama-cpp/prompt-lookup", "K=5"),
    ]
    assert peers[0].model.options["draft_model"] is None
    assert peers[2].model.options["draft_model"].num_pred_tokens == 5
    assert peers[0].answer("hello", Settings(max_new_tokens=3))[0] == (1, 2, 3)
    tokens, seconds = peers[1].answer("hello", Settings(max_new_tokens=30))
    assert tokens == (1, 2, 3, 4, 5) and seconds >= 0


def test_a_pair_without_a_gguf_file_is_refused(llama_cpp, tiny_llama_pair):
    with pytest.raises(BadInput, match="--pair embedded"):
        llama_peers.open_all(tiny_llama_pair, {})


def test_where_llama_cpp_is_not_installed_the_error_says_how(monkeypatch, with_gguf):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingPackage, match="pip install llama-cpp-python"):
        llama_peers.open_all(with_gguf, {})
