"""How llama.cpp calls and orders the weights of a model of transformers.

The names are those of the `gguf` package. The order of rows is not in it: llama.cpp rotates neighbouring components of
a head where transformers rotates its first half with its second half, and for some architectures llama.cpp's converter
therefore interleaves the halves of each head in the rows of q and k.

Which ones do was read from llama.cpp's own converter (`conversion/*.py`, as shipped in llama-cpp-python 0.3.36): the
subclasses of `LlamaModel` that leave `undo_permute` set, and OLMo's own method. Listed here are the dense decoders
whose converter does nothing else to the matrices: it must neither split nor join nor reorder them.
"""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
from gguf import MODEL_ARCH
from torch import nn
from transformers import PreTrainedModel

from budwood.errors import NotSupportedError, nearest

Q, K = ".attn_q.weight", ".attn_k.weight"


@dataclass(frozen=True)
class Layout:
    """What llama.cpp makes of one class of transformers.

    Args:
        architecture: llama.cpp's architecture.
        interleaved: whether the rows of q and k are interleaved head by head.
    """

    architecture: MODEL_ARCH
    interleaved: bool


LAYOUTS = {
    "ArceeForCausalLM": Layout(MODEL_ARCH.ARCEE, True),
    "GraniteForCausalLM": Layout(MODEL_ARCH.GRANITE, True),
    "LlamaForCausalLM": Layout(MODEL_ARCH.LLAMA, True),
    "MistralForCausalLM": Layout(MODEL_ARCH.LLAMA, True),
    "MixtralForCausalLM": Layout(MODEL_ARCH.LLAMA, True),
    "OlmoForCausalLM": Layout(MODEL_ARCH.OLMO, True),
    "SmolLM3ForCausalLM": Layout(MODEL_ARCH.SMOLLM3, True),
    "CohereForCausalLM": Layout(MODEL_ARCH.COMMAND_R, False),
    "Gemma2ForCausalLM": Layout(MODEL_ARCH.GEMMA2, False),
    "Gemma3ForCausalLM": Layout(MODEL_ARCH.GEMMA3, False),
    "GemmaForCausalLM": Layout(MODEL_ARCH.GEMMA, False),
    "GPT2LMHeadModel": Layout(MODEL_ARCH.GPT2, False),
    "Olmo2ForCausalLM": Layout(MODEL_ARCH.OLMO2, False),
    "Phi3ForCausalLM": Layout(MODEL_ARCH.PHI3, False),
    "PhiForCausalLM": Layout(MODEL_ARCH.PHI2, False),
    "Qwen2ForCausalLM": Layout(MODEL_ARCH.QWEN2, False),
    "Qwen3ForCausalLM": Layout(MODEL_ARCH.QWEN3, False),
    "StableLmForCausalLM": Layout(MODEL_ARCH.STABLELM, False),
    "Starcoder2ForCausalLM": Layout(MODEL_ARCH.STARCODER2, False),
}

# Known to llama.cpp, but its converter changes the matrices in a way that this file does not follow.
REFUSED = {
    "BloomForCausalLM": "llama.cpp reorders its joined q, k and v",
    "FalconForCausalLM": "llama.cpp reorders its joined q, k and v",
    "GPTNeoXForCausalLM": "llama.cpp reorders its joined q, k and v",
    "Llama4ForCausalLM": "llama.cpp splits its joined experts",
    "Qwen2MoeForCausalLM": "llama.cpp splits its joined experts",
    "Qwen3MoeForCausalLM": "llama.cpp splits its joined experts",
}


class GgufNames:
    """The names and the order of rows that llama.cpp has for one model.

    Args:
        model: the base; only its class and configuration are read.

    Raises:
        NotSupportedError: llama.cpp does not have its architecture, or changes its weights in another way.
    """

    def __init__(self, model: nn.Module) -> None:
        kind = type(model).__name__
        if kind not in LAYOUTS or not isinstance(model, PreTrainedModel):
            reason = REFUSED.get(kind, "its layout in llama.cpp is not known here")
            raise NotSupportedError(
                f"no GGUF LoRA for {kind}: {reason}",
                wanted=nearest(kind, LAYOUTS),
                action="export it as a portable LoRA (lora), or merged into the base (merged)",
            )
        self.layout = LAYOUTS[kind]
        self.architecture = gguf.MODEL_ARCH_NAMES[self.layout.architecture]
        config = model.config
        self._heads = {}
        if self.layout.interleaved:
            self._heads = {Q: config.num_attention_heads, K: config.num_key_value_heads}
        self._map = gguf.get_tensor_name_map(self.layout.architecture, config.num_hidden_layers)

    def tensor(self, name: str) -> str:
        """Return llama.cpp's name of a parameter, such as `blk.0.attn_q.weight`.

        Raises:
            NotSupportedError: llama.cpp has none.
        """
        found = self._map.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise NotSupportedError(
                f"{name}: llama.cpp has no tensor for it in the architecture {self.architecture!r}",
                wanted="an adapter of layers that llama.cpp has one by one",
                action="export it as a portable LoRA (lora), or merged into the base (merged)",
            )
        return found

    def to_gguf(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return a weight (d_out, d_in), a bias (d_out,) or a factor B (d_out, r) with its rows in llama.cpp's order.

        Args:
            name: llama.cpp's name of the weight or bias.
            rows: in transformers' order.
        """
        heads = self._heads_of(name)
        if not heads:
            return rows
        halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))

    def from_gguf(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return `rows` in transformers' order: the inverse of `to_gguf`."""
        heads = self._heads_of(name)
        if not heads:
            return rows
        pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))

    def _heads_of(self, name: str) -> int:
        """Return how many heads the rows of a tensor hold if they are to be interleaved, else 0."""
        return self._heads.get("." + ".".join(name.split(".")[-2:]).replace(".bias", ".weight"), 0)
