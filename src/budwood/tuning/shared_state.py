"""The names under which shared maps are saved: each group once, whatever the number of layers that use it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from budwood.errors import AdapterError
from budwood.tuning.shared_layer import SharedLayer


def key_pairs(model: nn.Module, layer_class: type[SharedLayer], adapter: str, prefix: str) -> dict[str, str]:
    """Return {key in the model: key in the file} for each parameter of each layer that uses the adapter.

    Args:
        prefix: what every key of a group begins with in the file.
    """
    pairs = {}
    for name, layer in model.named_modules():
        if isinstance(layer, layer_class):
            for place in layer.groups.get(adapter, {}):
                for group, path, part in layer.parts_at(place, adapter):
                    for parameter, _ in part.named_parameters():
                        pairs[f"{name}.{path}{parameter}"] = f"{prefix}{group}.{parameter}"
    return pairs


def expanded(
    pairs: Mapping[str, str], state_dict: Mapping[str, Tensor], model: nn.Module, prefix: str
) -> dict[str, Tensor]:
    """Return a file's tensors with each group under the key of every layer that uses it.

    Args:
        pairs: from `key_pairs`.

    Raises:
        AdapterError: a group is missing, or has another shape than in the model.
    """
    stored = {key: tensor for key, tensor in state_dict.items() if key.startswith(prefix)}
    _check_groups(set(pairs.values()), set(stored), prefix)
    shapes = dict(model.named_parameters(remove_duplicate=False))
    result = {key: tensor for key, tensor in state_dict.items() if key not in stored}
    for own, canonical in pairs.items():
        if stored[canonical].shape != shapes[own].shape:
            raise AdapterError(
                f"{canonical.removeprefix(prefix)} has shape {tuple(stored[canonical].shape)} in the file",
                wanted=f"{tuple(shapes[own].shape)}, as adapter_config.json and the base say",
                action="use the base and the config that this adapter was made with",
            )
        result[own] = stored[canonical]
    return result


def _check_groups(wanted: set[str], stored: set[str], prefix: str) -> None:
    missing = sorted(key.removeprefix(prefix) for key in wanted - stored)
    if missing:
        raise AdapterError(
            f"the file lacks {', '.join(missing)}",
            wanted=f"every group that the config asks for; the file has "
            f"{', '.join(sorted(key.removeprefix(prefix) for key in stored)) or 'none'}",
            action="use the adapter_config.json that was saved with this file",
        )
