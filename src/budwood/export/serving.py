"""The command lines that serve an exported LoRA, and what must be said where a server cannot.

Read from vLLM's table of supported models and its LoRA configuration (2026); a later vLLM may serve more.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedConfig

from budwood.errors import NotSupportedError

# vLLM refuses an adapter whose rank exceeds --max-lora-rank (default 16), and that flag takes these values and 1.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)

# Architectures that vLLM serves without LoRA, by `model_type`.
VLLM_WITHOUT_LORA = frozenset(
    "bloom dbrx deepseek_v4 exaone_moe falcon falcon_mamba flex_olmo gemma3n gemma3n_text gpt2 gpt_neox gptj jais2 "
    "mamba mamba2 mpt olmoe stablelm zamba2".split()
)

AUTO_CLASSES = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
}


@dataclass(frozen=True)
class Served:
    """A LoRA folder as a server is told about it.

    Args:
        folder: where the adapter lies.
        base_id: what `from_pretrained` and `vllm serve` take for the base.
        revision: commit of the base on the hub, or None.
        rank: the one rank of all modules.
        task_type: PEFT's task type, or None.
        config: configuration of the base, or None where the base is no model of transformers.
    """

    folder: Path
    base_id: str
    revision: str | None
    rank: int
    task_type: str | None
    config: PreTrainedConfig | None

    def commands(self, path: str) -> dict[str, str]:
        """Return the lines by consumer: `PEFT` (Python), and `vLLM` (shell) where vLLM has LoRA for the base.

        Args:
            path: the adapter's folder as the lines shall name it.
        """
        lines = {"PEFT": self._peft(path)}
        if not self.vllm_gap():
            lines["vLLM"] = self._vllm(path)
        return lines

    def vllm_gap(self) -> str:
        """Return why vLLM cannot serve this adapter, or nothing."""
        if self.config is None:
            return "vLLM serves models of transformers only"
        if self.config.is_encoder_decoder:
            return f"vLLM does not serve encoder-decoder models such as {self.config.model_type}; use PEFT"
        if self.config.model_type in VLLM_WITHOUT_LORA:
            return f"vLLM lists {self.config.model_type} without LoRA; use PEFT, or merge the adapter into the base"
        return ""

    def _peft(self, path: str) -> str:
        auto = AUTO_CLASSES.get(self.task_type or "", "AutoModel")
        revision = f", revision={self.revision!r}" if self.revision else ""
        return "\n".join(
            [
                "import peft, transformers",
                f"base = transformers.{auto}.from_pretrained({self.base_id!r}{revision})",
                f"model = peft.PeftModel.from_pretrained(base, {path!r})",
            ]
        )

    def _vllm(self, path: str) -> str:
        words = ["vllm", "serve", self.base_id]
        if self.revision:
            words += ["--revision", self.revision]
        words += ["--enable-lora", "--max-lora-rank", str(self.rank)]
        words += ["--lora-modules", f"{self.folder.name}={path}"]
        return shlex.join(words)


def served_rank(largest: int) -> int:
    """Return the rank that every module is padded to: the next one that vLLM has a setting for.

    Raises:
        NotSupportedError: `largest` is more than vLLM can hold.
    """
    for rank in RANKS:
        if rank >= largest:
            return rank
    raise NotSupportedError(
        f"the adapter has rank {largest}",
        wanted=f"at most {RANKS[-1]}, the most that vLLM holds",
        action="train with a lower rank, or write the whole model with `budwood export --to merged`",
    )
