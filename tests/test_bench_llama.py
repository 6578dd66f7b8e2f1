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
    """Answers 1, 2, 3, ..., from the draft length on where there is one."""

    draft_model = None

    def __init__(self, path, **options):
        pass

    def set_seed(self, seed):
        pass

    def generate(self, tokens, **options):
        drafted = self.draft_model.num_pred_tokens if self.draft_model else 0
        yield from range(drafted + 1, 1000)


@pytest.fixture
def found(tiny_llama_pair, tmp_path, monkeypatch):
    """The pipelines of a pair with a GGUF file."""
    package, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    package.Llama, package.__version__ = FakeLlama, "1"
    speculative.LlamaPromptLookupDecoding = lambda **options: SimpleNamespace(**options)
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)
    with pytest.raises(BadInput, match="--pair embedded"):
        list(peers.peers_of(["llama-cpp"], tiny_llama_pair, {}))
    (tmp_path / peers.SOURCE).touch()
    changes = {"target_xml": tmp_path / "openvino_model.xml", "stop_ids": frozenset({9})}
    return list(peers.peers_of(["llama-cpp"], dataclasses.replace(tiny_llama_pair, **changes), {}))


def test_both_modes_run_and_end_at_the_stop_token_or_the_limit(found):
    assert [(peer.name, peer.variant) for peer in found] == [
        ("llama-cpp/autoregressive", "Q4_1"),
        ("llama-cpp/prompt-lookup", "K=3"),
        ("llama-cpp/prompt-lookup", "K=5"),
    ]
    assert found[0].answer("hello", Settings(max_new_tokens=3))[0] == (1, 2, 3)
    for peer, first in ((found[1], 4), (found[2], 6)):
        tokens, seconds = peer.answer("hello", Settings(max_new_tokens=30))
        assert tokens == tuple(range(first, 10)) and seconds >= 0


def test_a_pipeline_without_room_is_left_out_and_one_of_each_mode_is_audited(
    found, monkeypatch, capsys
):
    monkeypatch.setattr(peers, "available_bytes", lambda: 10)
    first, *lookups = found
    large = [dataclasses.replace(one, memory=10.0) for one in lookups]
    assert list(peers.fitting([first, *large])) == [first]
    assert "prompt-lookup (Q4_1) was left out" in capsys.readouterr().err
    default = dataclasses.replace(lookups[0], name=f"{lookups[0].name}/default")
    audited = peers.to_audit([*found, default], 4)
    assert [peer.variant for peer in audited] == ["Q4_1", "K=4"]


def test_where_llama_cpp_is_not_installed_the_error_says_how(monkeypatch, tiny_llama_pair):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingPackage, match="pip install llama-cpp-python"):
        list(peers.peers_of(["llama-cpp"], tiny_llama_pair, {}))
