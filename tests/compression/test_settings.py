"""Settings: defaults by what there is, refusals, and what weights cost in theory."""

from __future__ import annotations

import pytest

from budwood.compression.settings import Compression, Pattern
from budwood.errors import UsageError


@pytest.mark.parametrize(
    ("settings", "has_text", "method"),
    [
        (Compression(bits=4), False, "rtn"),
        (Compression(bits=4), True, "gptq"),
        (Compression(sparsity=0.5), False, "magnitude"),
        (Compression(sparsity=0.5), True, "sparsegpt"),
        (Compression("wanda", sparsity=0.5), True, "wanda"),
        (Compression("rtn", bits=4), True, "rtn"),
    ],
)
def test_the_method_is_the_best_that_needs_no_more_than_there_is(settings, has_text, method):
    assert settings.settled(has_text=has_text).method == method


def test_gptq_orders_by_activation_unless_told_not_to():
    assert Compression(bits=4).settled(has_text=True).act_order is True
    assert Compression(bits=4, act_order=False).settled(has_text=True).act_order is False
    assert Compression("rtn", bits=4).settled(has_text=True).act_order is False
    assert Compression(sparsity=0.5).settled(has_text=True).act_order is False


def test_a_pattern_stands_for_its_share():
    settled = Compression(pattern=Pattern.parse("2:4")).settled(has_text=False)
    assert settled.sparsity == 0.5 and settled.pattern == (2, 4)
    assert settled.to_dict()["pattern"] == "2:4"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (Compression(), "neither --bits nor --sparsity"),
        (Compression(bits=4, sparsity=0.5), "compress twice"),
        (Compression(bits=4, pattern=Pattern(2, 4)), "compress twice"),
        (Compression(bits=1), "2 to 8"),
        (Compression(bits=9), "2 to 8"),
        (Compression(bits=4, group=0), "--group 0"),
        (Compression(sparsity=0.0), "between 0 and 1"),
        (Compression(sparsity=1.0), "between 0 and 1"),
        (Compression(sparsity=0.5, group=64), "without --bits"),
        (Compression(sparsity=0.5, symmetric=True), "without --bits"),
        (Compression(sparsity=0.6, pattern=Pattern(2, 4)), "0.5, or none"),
        (Compression("gtpq", bits=4), "did you mean 'gptq'"),
        (Compression("wanda", bits=4), "--sparsity, or one of rtn, gptq"),
        (Compression("gptq", bits=4), "take --method rtn"),
        (Compression("wanda", sparsity=0.5), "take --method magnitude"),
        (Compression("rtn", bits=4, act_order=True), "--act-order with the method rtn"),
        (Compression(bits=4, damping=0.0), "--damping 0.0"),
        (Compression(bits=4, samples=0), "--samples 0"),
    ],
)
def test_what_cannot_be_is_refused_with_what_was_wanted(settings, told):
    with pytest.raises(UsageError) as error:
        settings.settled(has_text=False)
    assert told in str(error.value)


@pytest.mark.parametrize("text", ["2", "4:2", "2:2", "0:4", "a:b", "2:4:8", ""])
def test_a_pattern_keeps_some_and_drops_some(text):
    with pytest.raises(UsageError, match="KEPT:OF"):
        Pattern.parse(text)


def test_widths_that_the_group_does_not_divide_are_answered_with_the_divisors():
    settled = Compression(bits=4, group=128).settled(has_text=False)
    settled.check_widths([256, 1024])
    with pytest.raises(UsageError) as error:
        settled.check_widths([576, 1536])
    assert "--group 128 does not divide a layer of 576 inputs" in str(error.value)
    assert "576, 1536: 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 192" in str(error.value)
    with pytest.raises(UsageError, match="--pattern 2:4 does not divide a layer of 6 inputs"):
        Compression(pattern=Pattern(2, 4)).settled(has_text=False).check_widths([6, 8])


@pytest.mark.parametrize(
    ("settings", "bits"),
    [
        (Compression(bits=4), 4 + (16 + 4) / 64),
        (Compression(bits=3, group=32, symmetric=True), 3 + 16 / 32),
        (Compression(sparsity=0.5), 9.0),
        (Compression(pattern=Pattern(2, 4)), 9.0),
    ],
)
def test_bits_per_weight(settings, bits):
    assert settings.settled(has_text=False).bits_per_weight == bits
