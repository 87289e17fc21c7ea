"""K-Adapter as a PEFT tuner (Wang et al., 2021, https://arxiv.org/abs/2002.01808).

    h_0 = 0,        h_i = h_{i−1} + U_i g(V_i n(HS_i + h_{i−1}) + c_i) + e_i,        y = norm(HS) + h_K

HS_i is what layer i of the base hands on, n a normalisation without parameters, g GELU. U_i and e_i start at 0, so
attaching changes nothing; several active adapters add up. A hook on each layer that is read keeps its output until
the end of the same pass.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from torch import Tensor, nn
from torch.nn import functional as F

from budwood.errors import ConfigError, NotSupportedError
from budwood.methods.kadapter.config import KAdapterConfig
from budwood.training.blocks import find_blocks
from budwood.tuning.factors import LoraFactors


class SideBlock(nn.Module):
    """One step of the side path: h + U g(V n(HS + h) + c) + e."""

    def __init__(self, d: int, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(d, width), nn.Linear(width, d)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, states: Float[Tensor, "... d"], side: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        read = F.layer_norm(states + side, states.shape[-1:])
        return side + self.up(F.gelu(self.down(read)))


class SideLayer(nn.Module, BaseTunerLayer):
    """The norm behind the last layer, with the side path of each adapter added to its output."""

    adapter_layer_names: tuple[str, ...] = ("kadapter_blocks",)

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        BaseTunerLayer.__init__(self)
        self.base_layer = base_layer
        self.kadapter_blocks = nn.ModuleDict()
        self._kept: dict[tuple[int, int], Tensor] = {}  # by thread and layer: a pass is one thread's

    def add(self, adapter: str, config: KAdapterConfig) -> None:
        """Give the layer the side path of one adapter."""
        weight = self.get_base_layer().weight
        blocks = {str(layer): SideBlock(len(weight), config.width) for layer in config.reads}
        self.kadapter_blocks[adapter] = nn.ModuleDict(blocks).to(weight.device)
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def keep(self, layer: int, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Keep what a layer of the base hands on; the hook of that layer."""
        if not self.disable_adapters:
            states = output if isinstance(output, Tensor) else output[0]
            self._kept[threading.get_ident(), layer] = states.detach()

    def forward(self, hidden: Float[Tensor, "... d"], *args: Any, **kwargs: Any) -> Float[Tensor, "... d"]:
        result = self.base_layer(hidden, *args, **kwargs)
        active = [name for name in self.active_adapters if name in self.kadapter_blocks]
        if not self.disable_adapters:
            for name in active:
                result = result + self._side(name, result.device).to(result.dtype)
        for place in list(self._kept):  # only what this thread kept: another one may be in the middle of a pass
            if place[0] == threading.get_ident():
                del self._kept[place]
        return result

    def _side(self, adapter: str, device: torch.device) -> Tensor:
        side: Tensor | None = None
        for layer, block in self.kadapter_blocks[adapter].items():
            states = self._kept[threading.get_ident(), int(layer)].to(device, block.up.weight.dtype)
            side = block(states, torch.zeros_like(states) if side is None else side)
        assert side is not None
        return side

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Refuse: there is no weight that would do what the side path does.

        Raises:
            NotSupportedError: always.
        """
        raise _beside("cannot be merged")

    def lora_factors(self, adapter: str) -> LoraFactors:
        """Refuse, as `merge` does, and for the same reason.

        Raises:
            NotSupportedError: always.
        """
        raise _beside("is no LoRA")


def _beside(what: str) -> NotSupportedError:
    return NotSupportedError(
        f"a K-Adapter {what}: its blocks stand beside the base and bend",
        wanted="an adapter that changes weights, such as lora",
        action="keep it as a PEFT folder: budwood reads it, and PEFT after budwood.peft.register()",
    )


class KAdapterModel(BaseTuner):
    """Injects K-Adapter into a model; `peft.get_peft_model(model, KAdapterConfig(...))` builds it."""

    prefix: str = "kadapter_"
    tuner_layer_cls: type[SideLayer] = SideLayer
    target_module_mapping: ClassVar[dict[str, Any]] = {}

    def _prepare_adapter_config(self, peft_config: PeftConfig, model_config: dict[str, Any]) -> PeftConfig:
        if not peft_config.target_modules:
            raise ConfigError(
                "no target_modules were given",
                wanted="the name of the norm behind the last layer",
                action="for a Llama: KAdapterConfig(reads=[0, 14, 29], target_modules=['model.norm'])",
            )
        return peft_config

    def _create_and_replace(
        self,
        peft_config: PeftConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        layer = target if isinstance(target, SideLayer) else SideLayer(target)
        layer.add(adapter_name, peft_config)
        self._hook(layer, peft_config.reads)
        if layer is not target:
            if adapter_name not in self.active_adapters:
                layer.requires_grad_(False)
            self._replace_module(parent, target_name, layer, target)

    def _hook(self, layer: SideLayer, reads: list[int]) -> None:
        """Let the layer keep the outputs of the base's layers that it reads and does not keep yet."""
        _, blocks = find_blocks(self.model)
        hooked = {hook.args[0] for block in blocks for hook in block._forward_hooks.values() if _is_ours(hook)}
        for index in set(reads) - hooked:
            blocks[index].register_forward_hook(partial(layer.keep, index))

    def unload(self) -> nn.Module:
        """Return the base as it was."""
        for block in find_blocks(self.model)[1]:
            for key, hook in list(block._forward_hooks.items()):
                if _is_ours(hook):
                    del block._forward_hooks[key]
        base: nn.Module = super().unload()
        return base


def _is_ours(hook: Any) -> bool:
    return isinstance(hook, partial) and isinstance(getattr(hook.func, "__self__", None), SideLayer)
