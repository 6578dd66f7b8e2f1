"""llama.cpp as a peer, with a stand-in for its package; which pipelines are opened."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest

from specdemo.bench import peers
from specdemo.errors import BadInput, MissingPackage
from specdemo.settings import Settings


class FakeLlama:
    """Answers 1, 2, 3, ..."""

    draft_model = None

    def __init__(self, path, **options):
        pass

    def generate(self, tokens, **options):
        drafted = self.draft_model.num_pred_tokens if self.draft_model else 0
        yield from range(drafted + 1, 1000)


@pytest.fixture
def llama_cpp(monkeypatch):
    package, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    package.Llama, package.__version__ = FakeLlama, "1"
    speculative.LlamaPromptLookupDecoding = lambda **options: SimpleNamespace(**options)
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)


@pytest.fixture
def with_gguf(tiny_llama_pair, tmp_path):
    (tmp_path / peers.SOURCE).touch()
    return dataclasses.replace(
        tiny_llama_pair, target_xml=tmp_path / "openvino_model.xml", stop_ids=frozenset({9})
    )


def test_both_modes_run_and_end_at_the_stop_token_or_the_limit(llama_cpp, with_gguf):
    found = peers.pipelines(["llama-cpp"], with_gguf, {})
    opened = peers.open_all(found)
    assert [(peer.name, peer.variant) for peer in opened] == [
        ("llama-cpp/autoregressive", "Q4_1"),
        ("llama-cpp/prompt-lookup", "K=3"),
        ("llama-cpp/prompt-lookup", "K=5"),
    ]
    assert opened[0].answer("hello", Settings(max_new_tokens=3))[0] == (1, 2, 3)
    for peer, first in ((opened[1], 4), (opened[2], 6)):
        tokens, seconds = peer.answer("hello", Settings(max_new_tokens=30))
        assert tokens == tuple(range(first, 10)) and seconds >= 0


def test_a_pipeline_without_room_is_left_out_and_one_of_each_mode_is_audited(
    llama_cpp, with_gguf, monkeypatch, capsys
):
    monkeypatch.setattr(peers, "available_bytes", lambda: 10)
    first, lookup = peers.pipelines(["llama-cpp"], with_gguf, {})
    large = dataclasses.replace(lookup, memory=10.0)
    assert [peer.name for peer in peers.open_all([first, large])] == [first.name]
    assert "prompt-lookup (Q4_1) was left out" in capsys.readouterr().err
    default = dataclasses.replace(lookup, name=f"{lookup.name}/default")
    audited = peers.to_audit([first, lookup, default], 4)
    variants = {name: [peer.variant for peer in opening()] for name, opening in audited.items()}
    assert variants == {first.name: ["Q4_1"], lookup.name: ["K=4"]}


def test_a_pair_without_a_gguf_file_is_refused(llama_cpp, tiny_llama_pair):
    with pytest.raises(BadInput, match="--pair embedded"):
        peers.pipelines(["llama-cpp"], tiny_llama_pair, {})


def test_where_llama_cpp_is_not_installed_the_error_says_how(monkeypatch, with_gguf):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingPackage, match="pip install llama-cpp-python"):
        peers.pipelines(["llama-cpp"], with_gguf, {})
