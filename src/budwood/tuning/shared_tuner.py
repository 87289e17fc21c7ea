"""A PEFT tuner whose parameters are shared over groups of layers: attach, save once, load.

A method subclasses `SharedTuner` and says how a map is made. Each group is saved once, under
`base_model.<prefix>shared.<group>.<parameter>`, whatever the number of layers that use it.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any, ClassVar

from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, _maybe_include_all_linear_layers
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from peft.utils.quantization_utils import get_quantization_kwargs, resolve_quantization_backend
from torch import Tensor, nn

from budwood.errors import AdapterError, ConfigError
from budwood.tuning.edits import Place
from budwood.tuning.groups import Grouping, Member, check_members, check_ranks, check_share, kind_of, rank_of
from budwood.tuning.linear import layer_sizes, refuse_unless_linear, refuse_unless_readable
from budwood.tuning.shared_layer import BASE, AdapterSpec, SharedLayer, SharedMap, share_inputs


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
                if self.needs_weight(config):
                    refuse_unless_readable(name, module)
                found[name], sizes = kind_of(name, config.target_modules), layer_sizes(module)
                for place in self.places(config, found[name]):
                    members.append(_member(name, found[name], place, sizes))
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
        default, ranks = self.ranks(config)
        grouping = self.grouping(config)
        rank = rank_of(grouping, kind, ranks, default)
        sizes = (layer.in_features, layer.out_features)
        maps, groups = {}, {}
        for place in self.places(config, kind):
            group = grouping.name(_member(name, kind, place, sizes))
            groups[place] = group
            maps[place] = self._existing(adapter, place, group) or self.make_map(config, place, sizes, rank)
        scale, dropout, edits_bias = self.spec_values(config, rank)
        return AdapterSpec(maps, groups, scale, dropout, edits_bias)

    def _existing(self, adapter: str, place: Place, group: str) -> SharedMap | None:
        """Return the group's map from a layer that has it already; the layers themselves are the only record."""
        for layer in self.model.modules():
            if isinstance(layer, self.tuner_layer_cls) and layer.groups.get(adapter, {}).get(place) == group:
                return layer.map_at(place, adapter)
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
        for own, canonical in cls._key_pairs(model, adapter_name):
            if own in saved:
                saved[f"{canonical}.{adapter_name}"] = saved.pop(own)
        return saved

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: PeftConfig, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        pairs = list(cls._key_pairs(model, adapter_name))
        prefix = f"base_model.{cls.prefix}shared."
        stored = {key: tensor for key, tensor in state_dict.items() if key.startswith(prefix)}
        _check_groups({canonical for _, canonical in pairs}, set(stored), prefix)
        shapes = dict(model.named_parameters(remove_duplicate=False))
        expanded = {key: tensor for key, tensor in state_dict.items() if key not in stored}
        for own, canonical in pairs:
            if stored[canonical].shape != shapes[own].shape:
                raise AdapterError(
                    f"{canonical.removeprefix(prefix)} has shape {tuple(stored[canonical].shape)} in the file",
                    wanted=f"{tuple(shapes[own].shape)}, as adapter_config.json and the base say",
                    action="use the base and the config that this adapter was made with",
                )
            expanded[own] = stored[canonical]
        return expanded

    @classmethod
    def _key_pairs(cls, model: nn.Module, adapter: str) -> Iterator[tuple[str, str]]:
        """Yield (key in the model, key in the file) for each parameter of each layer that uses the adapter."""
        for name, layer in model.named_modules():
            if not isinstance(layer, cls.tuner_layer_cls):
                continue
            for place, group in layer.groups.get(adapter, {}).items():
                shared = layer.map_at(place, adapter)
                for parameter, _ in shared.named_parameters() if shared is not None else ():
                    own = f"{name}.{layer.attribute_of[place]}.{adapter}.{parameter}"
                    yield own, f"base_model.{cls.prefix}shared.{group}.{parameter}"

    # --- a batch that mixes adapters ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        names = kwargs.get("adapter_names")
        if names is None:
            yield
            return
        if self.training:
            raise ValueError("adapter_names works at inference only; call model.eval() first")
        unknown = sorted(set(names) - {BASE} - set(self.peft_config))
        if unknown:
            raise ValueError(f"adapter_names holds {', '.join(unknown)}; loaded are: {', '.join(self.peft_config)}")
        layers = [module for module in self.modules() if isinstance(module, self.tuner_layer_cls)]
        hook = partial(_pass_names, names=_per_beam(names, kwargs.get("num_beams")))
        handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _per_beam(names: list[str], beams: int | None) -> list[str]:
    return [name for name in names for _ in range(beams or 1)]


def _pass_names(module: nn.Module, args: tuple, kwargs: dict, names: list[str]) -> tuple[tuple, dict]:
    return args, {**kwargs, "adapter_names": names}


def _check_groups(wanted: set[str], stored: set[str], prefix: str) -> None:
    missing = sorted(key.removeprefix(prefix) for key in wanted - stored)
    if missing:
        raise AdapterError(
            f"the file lacks {', '.join(missing)}",
            wanted=f"every group that the config asks for; the file has "
            f"{', '.join(sorted(key.removeprefix(prefix) for key in stored)) or 'none'}",
            action="use the adapter_config.json that was saved with this file",
        )


def _member(name: str, kind: str, place: Place, sizes: tuple[int, int]) -> Member:
    if place == "parallel":
        return Member(name, kind, place, *sizes)
    return Member(name, kind, place, sizes[place == "output"])
