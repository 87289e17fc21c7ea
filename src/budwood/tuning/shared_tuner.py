"""A PEFT tuner whose parameters are shared over groups of layers: attach, save once, load.

A method subclasses `SharedTuner` and says how a map is made. Each group is saved once, under
`base_model.<prefix>shared.<group>.<parameter>`, whatever the number of layers that use it.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, _maybe_include_all_linear_layers
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from peft.utils.quantization_utils import get_quantization_kwargs, resolve_quantization_backend
from torch import Tensor, nn

from budwood.errors import ConfigError
from budwood.models.quantised import keep_differentiable
from budwood.tuning.edits import Place
from budwood.tuning.groups import (
    Grouping,
    Member,
    check_members,
    check_ranks,
    check_share,
    check_slices,
    kind_of,
    rank_of,
    split_slice,
)
from budwood.tuning.linear import layer_sizes, refuse_unless_linear, refuse_unless_readable
from budwood.tuning.mixed_batch import adapters_by_row
from budwood.tuning.shared_layer import SharedLayer, share_inputs
from budwood.tuning.shared_map import AdapterSpec, SharedMap
from budwood.tuning.shared_state import expanded, key_pairs
from budwood.tuning.slices import SlicedMap


class SharedTuner(BaseTuner):
    """Skeleton of a tuner with shared low-rank maps."""

    tuner_layer_cls: type[SharedLayer] = SharedLayer
    target_module_mapping: ClassVar[dict[str, Any]] = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    # --- what a method says ---------------------------------------------------------------------------------------

    @abstractmethod
    def make_map(self, config: PeftConfig, place: Place, sizes: tuple[int, int], rank: int) -> SharedMap:
        """Return a new map at `place` of a layer with `sizes` (d_in, d_out)."""

    @abstractmethod
    def places(self, config: PeftConfig, kind: str) -> tuple[Place, ...]:
        """Return the places that a module of this kind edits."""

    @abstractmethod
    def grouping(self, config: PeftConfig) -> Grouping:
        """Return the rule of sharing."""

    @abstractmethod
    def ranks(self, config: PeftConfig) -> tuple[int, dict[str, int]]:
        """Return the default rank and the ranks by group."""

    @abstractmethod
    def spec_values(self, config: PeftConfig, rank: int) -> tuple[float, float, bool]:
        """Return scale, dropout and whether the output edit includes the bias."""

    def needs_weight(self, config: PeftConfig) -> bool:
        """Whether the edited layers have to give their weight."""
        return False

    def check_kinds(self, config: PeftConfig, kinds: set[str]) -> None:
        """Refuse settings that name a module which is not adapted; `kinds` are those that are."""

    # --- attach ---------------------------------------------------------------------------------------------------

    def inject_adapter(self, model: nn.Module, adapter_name: str, **kwargs: Any) -> None:
        """Check the whole plan against the model before any module is replaced, then let PEFT inject."""
        config = self._prepare_adapter_config(self.peft_config[adapter_name], self.get_model_config(model))
        config = _maybe_include_all_linear_layers(config, model)
        self._plans[adapter_name] = self._plan(model, config)
        keep_differentiable(model)
        targets = config.target_modules
        super().inject_adapter(model, adapter_name, **kwargs)
        config.target_modules = targets  # PEFT shortens long lists, and kinds are named after the targets
        share_inputs(model, adapter_name)

    @cached_property
    def _plans(self) -> dict[str, dict[str, str]]:
        """For each adapter, the kind of each module that it adapts, by the module's name."""
        return {}

    def _plan(self, model: nn.Module, config: PeftConfig) -> dict[str, str]:
        """Return the kind of each targeted module.

        Raises:
            ConfigError: groups, sides or ranks that cannot be.
            NotSupportedError: a target is not a linear layer.
        """
        grouping = self.grouping(config)
        check_share(grouping.share)
        found: dict[str, str] = {}
        members = []
        for name, module in model.named_modules():
            if name and self._check_target_module_exists(config, name):
                refuse_unless_linear(name, module, model)
                kind, sizes = kind_of(name, config.target_modules), layer_sizes(module)
                places, parts = self.places(config, kind), grouping.parts(kind)
                if self.needs_weight(config) or (parts != (kind,) and "input" in places):
                    refuse_unless_readable(name, module)
                check_slices(name, parts, sizes[1])
                self._check_scales(config, grouping, parts)
                members += [_member(name, part, place, _sizes_of(part, sizes)) for place in places for part in parts]
                found[name] = kind
        check_members(grouping, members)
        self.check_kinds(config, set(found.values()))
        self._check_ranks(config, grouping, members)
        return found

    def _check_ranks(self, config: PeftConfig, grouping: Grouping, members: list[Member]) -> None:
        default, ranks = self.ranks(config)
        check_ranks(grouping, {member.kind for member in members}, ranks)
        for member in members:
            rank = rank_of(grouping, member.kind, ranks, default)
            width = min(member.width, member.written or member.width)
            if rank > width:
                raise ConfigError(
                    f"rank {rank} is larger than the width {width} of {member.module} ({member.place} side)",
                    wanted=f"a rank of at most {width}",
                    action="lower r, or the rank of this group",
                )

    def _check_scales(self, config: PeftConfig, grouping: Grouping, parts: Sequence[str]) -> None:
        default, ranks = self.ranks(config)
        if len({self.spec_values(config, rank_of(grouping, part, ranks, default))[0] for part in parts}) > 1:
            raise ConfigError(
                f"{' and '.join(parts)} lie in one layer and have different scales",
                wanted="one scale a layer",
                action="give them one rank, or no alpha",
            )

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
        layer = target if isinstance(target, SharedLayer) else self._wrap(target)
        layer.add(adapter_name, self._spec(peft_config, adapter_name, layer, current_key), peft_config.inference_mode)
        if layer is not target:
            if adapter_name not in self.active_adapters:
                layer.requires_grad_(False)
            self._replace_module(parent, target_name, layer, target)

    def _wrap(self, target: nn.Module) -> SharedLayer:
        backend = resolve_quantization_backend(target, **get_quantization_kwargs(self.model))
        return self.tuner_layer_cls(target, *layer_sizes(target), backend)

    def _spec(self, config: PeftConfig, adapter: str, layer: SharedLayer, name: str) -> AdapterSpec:
        kind = self._plans[adapter][name]
        grouping, (default, ranks) = self.grouping(config), self.ranks(config)
        made = {place: self._map(config, adapter, layer, name, place) for place in self.places(config, kind)}
        maps = {place: shared for place, (_, shared) in made.items()}
        groups = {place: names for place, (names, _) in made.items()}
        rank = rank_of(grouping, grouping.parts(kind)[0], ranks, default)
        return AdapterSpec(maps, groups, *self.spec_values(config, rank))

    def _map(
        self, config: PeftConfig, adapter: str, layer: SharedLayer, name: str, place: Place
    ) -> tuple[tuple[str, ...], SharedMap]:
        """Return the layer's map at `place`, made of parts where it is sliced, and the group of each part."""
        grouping, (default, ranks) = self.grouping(config), self.ranks(config)
        parts = grouping.parts(self._plans[adapter][name])
        groups, made = [], dict[str, SharedMap]()
        for part in parts:
            sizes = _sizes_of(part, (layer.in_features, layer.out_features))
            group = grouping.name(_member(name, part, place, sizes))
            groups.append(group)
            if group not in made:
                rank = rank_of(grouping, part, ranks, default)
                made[group] = self._existing(adapter, place, group) or self.make_map(config, place, sizes, rank)
        rows = [rows for part in parts if (rows := split_slice(part)[1]) is not None]
        maps = [made[group] for group in groups]
        return tuple(groups), SlicedMap(place, maps, rows, layer.out_features) if rows else maps[0]

    def _existing(self, adapter: str, place: Place, group: str) -> SharedMap | None:
        """Return the group's map from a layer that has it already; the layers themselves are the only record."""
        for layer in self.model.modules():
            if isinstance(layer, self.tuner_layer_cls):
                for name, _, shared in layer.parts_at(place, adapter):
                    if name == group:
                        return shared
        return None

    def _unload_and_optionally_merge(self, *args: Any, **kwargs: Any) -> nn.Module:
        layers = [module for module in self.model.modules() if isinstance(module, SharedLayer)]
        plain = super()._unload_and_optionally_merge(*args, **kwargs)
        for scope in {layer.input_scope for layer in layers if layer.input_scope is not None}:
            scope.remove()
        return plain

    # --- save once, load everywhere -------------------------------------------------------------------------------

    @classmethod
    def _get_adapter_state_dict(
        cls,
        model: nn.Module,
        config: PeftConfig,
        adapter_name: str,
        state_dict: dict[str, Tensor],
        unwanted_adapter_names: list[str],
    ) -> dict[str, Tensor]:
        saved = super()._get_adapter_state_dict(
            model=model,
            config=config,
            adapter_name=adapter_name,
            state_dict=state_dict,
            unwanted_adapter_names=unwanted_adapter_names,
        )
        for own, canonical in cls._pairs(model, adapter_name).items():
            if own in saved:
                saved[f"{canonical}.{adapter_name}"] = saved.pop(own)
        return saved

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: PeftConfig, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        return expanded(cls._pairs(model, adapter_name), state_dict, model, f"base_model.{cls.prefix}shared.")

    @classmethod
    def _pairs(cls, model: nn.Module, adapter: str) -> dict[str, str]:
        return key_pairs(model, cls.tuner_layer_cls, adapter, f"base_model.{cls.prefix}shared.")

    # --- a batch that mixes adapters ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        names = kwargs.get("adapter_names")
        if names is None:
            yield
            return
        if self.training:
            raise ValueError("adapter_names works at inference only; call model.eval() first")
        layers = [module for module in self.modules() if isinstance(module, self.tuner_layer_cls)]
        with adapters_by_row(layers, names, self.peft_config, kwargs.get("num_beams")):
            yield


def _member(module: str, kind: str, place: Place, sizes: tuple[int, int]) -> Member:
    if place == "parallel":
        return Member(module, kind, place, *sizes)
    return Member(module, kind, place, sizes[place == "output"])


def _sizes_of(part: str, sizes: tuple[int, int]) -> tuple[int, int]:
    """Return (d_in, rows written) of a part of a layer with `sizes`."""
    rows = split_slice(part)[1]
    return sizes if rows is None else (sizes[0], rows[1] - rows[0])
