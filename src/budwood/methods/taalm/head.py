"""The default body: a small head on hidden states that the base computes anyway, and on features of the tokens.

    u_t = dropout [h_t / rms(h_t); x_t]
    f_t = c · GELU(W u_t + Σ_k V_k u_{t+k} + M mean_s u_s)

h_t are the states that enter the chosen layers, by default the lowest that an adapter in the top layers changes; x_t
are `features.FEATURES`; k runs over the neighbours on both sides. The base is causal: h_t knows what came before, the
neighbours after t and the mean over the text bring in what follows. Learned: W, V_k, M and c of each member.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from budwood.methods.taalm.features import FEATURES, surface
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.reading import Reading, read
from budwood.methods.taalm.scorer import TrainableScorer
from budwood.methods.taalm.settings import HeadSettings
from budwood.training.loss import language_model


class HeadScorer(TrainableScorer):
    """Several heads on one reading of the base.

    Args:
        model: the base, frozen; bare, or with an adapter that is switched off while it is read.
        settings: with `layers` given.
        seed: of the members' starts.
    """

    def __init__(self, model: nn.Module, settings: HeadSettings, *, seed: int) -> None:
        super().__init__()
        width = int(language_model(model).config.get_text_config().hidden_size)
        self._read: Callable[[Sequence[Passage]], list[Reading]] = functools.partial(
            read, model, layers=settings.layers
        )
        self._layers = len(settings.layers)
        self.members = nn.ModuleList()
        with torch.random.fork_rng(devices=()):
            for member in range(settings.members):
                torch.manual_seed(seed + member)
                self.members.append(_Head(width * self._layers + len(FEATURES), settings))

    def prepare(self, passages: Sequence[Passage]) -> list[Float[Tensor, "T inputs"]]:
        """Return [h / rms(h); x] of each token; states of several layers are scaled one by one."""
        return [self._inputs(passage, reading) for passage, reading in zip(passages, self._read(passages))]

    def forward(self, prepared: Sequence[Tensor]) -> Float[Tensor, "members rows T"]:
        device = next(self.parameters()).device
        inputs = pad_sequence(list(prepared), batch_first=True).to(device)
        lengths = torch.tensor([len(one) for one in prepared], device=device)
        return torch.stack([member(inputs, lengths) for member in self.members])

    def _inputs(self, passage: Passage, reading: Reading) -> Float[Tensor, "T inputs"]:
        hidden = reading.hidden.unflatten(1, (self._layers, -1))
        scaled = hidden / hidden.square().mean(dim=-1, keepdim=True).add(1e-6).sqrt()
        return torch.cat([scaled.flatten(1), surface(passage, reading)], dim=1)


class _Head(nn.Module):
    def __init__(self, inputs: int, settings: HeadSettings) -> None:
        super().__init__()
        self._reach = settings.neighbours
        self.dropout = nn.Dropout(settings.dropout)
        self.token = nn.Linear(inputs, settings.width)
        self.near = nn.ModuleList(nn.Linear(inputs, settings.width, bias=False) for _ in self._offsets())
        self.whole = nn.Linear(inputs, settings.width, bias=False)
        self.out = nn.Linear(settings.width, 1)

    def forward(self, inputs: Float[Tensor, "rows T inputs"], lengths: Tensor) -> Float[Tensor, "rows T"]:
        u = self.dropout(inputs)  # pads are 0 and stay so
        v = self.token(u) + self.whole(u.sum(dim=1) / lengths[:, None])[:, None]
        for offset, near in zip(self._offsets(), self.near, strict=True):
            v = v + near(_shifted(u, offset))
        return self.out(nn.functional.gelu(v))[..., 0]

    def _offsets(self) -> list[int]:
        return [offset for offset in range(-self._reach, self._reach + 1) if offset]


def _shifted(u: Float[Tensor, "rows T inputs"], offset: int) -> Float[Tensor, "rows T inputs"]:
    """Return u_{t + offset}, 0 beyond the ends."""
    padded = nn.functional.pad(u, (0, 0, max(-offset, 0), max(offset, 0)))
    return padded[:, max(offset, 0) : max(offset, 0) + u.shape[1]]
