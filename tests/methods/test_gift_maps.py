"""Maps of what GIFT's components look at: golden case E, and its edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from budwood.errors import UsageError
from budwood.methods.gift.maps import image_maps, token_maps


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    source = np.random.RandomState(4)
    return torch.from_numpy(source.standard_normal((3, 2))), torch.from_numpy(source.standard_normal((5, 3)))


def test_golden_e():
    maps = image_maps(*drawn())
    wanted = [[[0, 0.781250], [0.589319, 1]], [[0.541267, 1], [0, 0.934691]]]
    torch.testing.assert_close(maps, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-6)


def test_tokens_and_pictures_agree_and_pictures_stretch():
    directions, outputs = drawn()
    torch.testing.assert_close(token_maps(directions, outputs[1:]), image_maps(directions, outputs).flatten(1))
    large = image_maps(directions, outputs, size=(6, 8))
    assert large.shape == (2, 6, 8) and large.amin((1, 2)).tolist() == [0, 0] and large.amax((1, 2)).tolist() == [1, 1]


def test_a_constant_map_is_zero_and_a_grid_must_be_square():
    directions, outputs = drawn()
    assert not image_maps(directions, torch.ones_like(outputs)).any()
    with pytest.raises(UsageError, match="4 tokens"):
        image_maps(directions, outputs[:4])
