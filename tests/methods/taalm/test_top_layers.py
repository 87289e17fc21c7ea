"""Which layers are adapted."""

from __future__ import annotations

import pytest

from budwood.errors import ConfigError
from budwood.methods.taalm.top_layers import at_the_top, top_count
from budwood.tuning.registry import find_tuner


@pytest.mark.parametrize(("depth", "wanted", "count"), [(30, None, 6), (12, None, 4), (2, None, 2), (30, 1, 1)])
def test_a_fifth_and_at_least_four(depth, wanted, count):
    assert top_count(depth, wanted) == count
    lora = at_the_top(find_tuner("lora").settings(), depth, wanted)
    assert lora.layers == list(range(depth - count, depth))


def test_what_the_user_chose_and_tuners_without_layers_stay():
    chosen = find_tuner("lora").settings(layers=[0])
    assert at_the_top(chosen, 30, None) is chosen
    prompt = find_tuner("prompt").settings()
    assert at_the_top(prompt, 30, None) is prompt
    with pytest.raises(ConfigError, match="the top 31 of 30"):
        top_count(30, 31)
