"""The lines that serve an export, and the gaps that are told."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from transformers import GPT2Config, LlamaConfig, T5Config

from budwood.errors import NotSupportedError
from budwood.export.serving import Served, served_rank


def served(config, revision=None) -> Served:
    return Served(Path("/x/my adapter"), "org/base", revision, 16, "CAUSAL_LM", config)


def test_vllm_gets_every_flag_it_needs():
    words = shlex.split(served(LlamaConfig(), "abc").commands("/x/my adapter")["vLLM"])
    assert words[:3] == ["vllm", "serve", "org/base"]
    assert words[words.index("--max-lora-rank") + 1] == "16"
    assert words[words.index("--lora-modules") + 1] == "my adapter=/x/my adapter"
    assert words[words.index("--revision") + 1] == "abc"


@pytest.mark.parametrize("config", [GPT2Config(), T5Config(), None])
def test_vllm_is_not_promised_where_it_has_no_lora(config):
    assert list(served(config).commands("x")) == ["PEFT"]
    assert "vLLM" in served(config).vllm_gap()


def test_the_peft_lines_are_python_and_name_the_base_at_its_revision():
    lines = served(LlamaConfig(), "abc").commands("it's")["PEFT"]
    compile(lines, "card", "exec")
    assert "AutoModelForCausalLM.from_pretrained('org/base', revision='abc')" in lines


@pytest.mark.parametrize(("largest", "rank"), [(1, 8), (8, 8), (9, 16), (33, 64), (257, 320), (512, 512)])
def test_the_rank_is_the_next_that_vllm_has(largest, rank):
    assert served_rank(largest) == rank


def test_a_rank_beyond_vllm_is_refused():
    with pytest.raises(NotSupportedError, match="513"):
        served_rank(513)
