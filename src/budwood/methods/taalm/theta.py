"""θ: the trained parameters of an adapter as values outside the model, one set a row, so that nothing is ever written.

A `Point` is a list of tensors, each with one copy a row in front: (N, *shape). The model's own parameters are read to
make one and are bit for bit the same afterwards, so θ is reset by being forgotten.

`EachRow` takes any adapter: row by row, with `torch.func.functional_call`. `LoraRows` computes all rows of a batch at
once where LoRA's A and B are all that is trained: each row is multiplied with a copy of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

import torch
from jaxtyping import Float
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.func import functional_call

from budwood.errors import NotSupportedError
from budwood.training.blocks import mode
from budwood.training.forwards import replaced
from budwood.training.loss import IGNORED, Batch, Targets, target_logits

Point: TypeAlias = list[Tensor]


class Theta(Protocol):
    """The trained parameters of `model`."""

    model: nn.Module

    def start(self, rows: int) -> Point:
        """Return `rows` copies of the parameters as they are in the model; they ask for gradients."""
        ...

    def logits(self, point: Point, batch: Batch) -> tuple[Float[Tensor, "n vocabulary"], Targets]:
        """Return the logits at the targets of a batch, row i under copy i of `point`, and the targets row by row.

        Computed in evaluation mode: dropout would make two passes at one point differ.
        """
        ...


def choose_theta(model: nn.Module) -> Theta:
    """Return the fastest way that is exact for this adapter.

    Raises:
        NotSupportedError: nothing is trained.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise NotSupportedError("the model has no trained parameter", wanted="an adapter on a frozen base")
    return LoraRows(model) if _lora_linears(model) else EachRow(model)


def token_losses(theta: Theta, point: Point, batch: Batch) -> Float[Tensor, "rows T"]:
    """Return ℓ_t of each labelled token in nats, at its own place; 0 where there is no label."""
    logits, targets = theta.logits(point, batch)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    nll = nn.functional.cross_entropy(wide, targets.ids, reduction="none")
    empty = nll.new_zeros(batch["labels"].shape)
    return empty.index_put((targets.rows, targets.positions + 1), nll)


def _unweighted(batch: Batch) -> dict[str, Tensor]:
    return {**batch, "loss_weights": (batch["labels"] != IGNORED).float()}


class _Logits(nn.Module):
    """The model with `target_logits` as its forward, which is what `functional_call` can call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Tensor, Targets]:
        return target_logits(self.model, batch)


class EachRow:
    """Any adapter, one row after another."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._trained = {name: value for name, value in model.named_parameters() if value.requires_grad}

    def start(self, rows: int) -> Point:
        return [_copies(value, rows) for value in self._trained.values()]

    def logits(self, point: Point, batch: Batch) -> tuple[Tensor, Targets]:
        batch, module, found = _unweighted(batch), _Logits(self.model), []
        with mode(self.model, training=False):
            for row in range(len(batch["labels"])):
                values = {f"model.{name}": value[row] for name, value in zip(self._trained, point, strict=True)}
                one = {name: value[row : row + 1] for name, value in batch.items()}
                found.append(functional_call(module, values, (one,)))
        return torch.cat([logits for logits, _ in found]), _joined([targets for _, targets in found])


class LoraRows:
    """LoRA's A and B, all rows of a batch together."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._linears = _lora_linears(model)

    def start(self, rows: int) -> Point:
        return [_copies(linear.weight, rows) for linear in self._linears]

    def logits(self, point: Point, batch: Batch) -> tuple[Tensor, Targets]:
        with mode(self.model, training=False), self._at(point):
            return target_logits(self.model, _unweighted(batch))

    @contextlib.contextmanager
    def _at(self, point: Point) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for linear, weight in zip(self._linears, point, strict=True):
                stack.enter_context(replaced(linear, _row_by_row(weight)))
            yield


def _row_by_row(weight: Float[Tensor, "rows out in"]) -> Callable[[Tensor], Tensor]:
    return lambda hidden: torch.einsum("nti,noi->nto", hidden.to(weight.dtype), weight)


def _copies(value: Tensor, rows: int) -> Tensor:
    return value.detach().expand(rows, *value.shape).clone().requires_grad_()


def _lora_linears(model: nn.Module) -> list[nn.Linear]:
    """Return LoRA's A and B in the order of the layers if each is used by plain products only; else nothing."""
    found: list[nn.Linear] = []
    for layer in model.modules():
        if type(layer) is LoraLinear and not layer.merged:
            names = [name for name in layer.active_adapters if name in layer.lora_A]
            if any(name in layer.lora_variant or layer.lora_bias[name] for name in names):
                return []
            found += [part[name] for name in names for part in (layer.lora_A, layer.lora_B)]
    held = {id(linear.weight) for linear in found}
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    return found if held == trained and len(held) == len(found) else []


def _joined(parts: list[Targets]) -> Targets:
    rows = torch.cat([targets.rows + row for row, targets in enumerate(parts)])
    several = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("positions", "ids", "weights")}
    return dataclasses.replace(
        parts[0], rows=rows, has_targets=torch.cat([part.has_targets for part in parts]), **several
    )
