"""What can be done to the weights of a scorer before they are used: does their exact size matter, or which is largest?

All start from w_t = exp(f_t − max f). With a loss normalised over each sequence, dividing by the largest weight
changes nothing; where it is normalised over tokens it does: a text in which one token stands out counts less.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from budwood.methods.taalm.heuristics import top_share
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.scorer import scored_mask
from budwood.methods.taalm.settings import WeightSettings
from budwood.methods.taalm.weights import token_weights
from budwood.training.settings import Normalisation

Shape = Literal["as_used", "as_is", "light_dropped", "top_tenth", "binarised", "max_normalised"]

LIGHT, TOP, HALF = 0.2, 0.1, 0.5
_PLAIN = WeightSettings(cut_off=0.0, floor=0.0)


def shaped(
    passage: Passage, scores: Float[Tensor, " T"], settings: WeightSettings, shape: Shape
) -> Float[Tensor, " T"]:
    """Return the weights of a text's tokens; "as_used" is what `settings` make of the scores."""
    if shape == "as_used":
        return token_weights(passage, scores, settings)
    weights = token_weights(passage, scores, _PLAIN)
    if shape == "as_is":
        return weights
    if shape == "light_dropped":
        return torch.where(weights < LIGHT * weights.max(), 0, weights)
    if shape == "top_tenth":
        return weights * top_share(weights, scored_mask([passage])[0], TOP)
    if shape == "binarised":
        return (weights >= HALF * weights.max()).float()
    return weights / weights.max()


def normalisation(shape: Shape) -> Normalisation:
    """Return how the loss of a step is normalised under weights of this shape."""
    return "token" if shape == "max_normalised" else "sequence"
