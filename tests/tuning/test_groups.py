"""From settings and module names to groups."""

from __future__ import annotations

import pytest

from budwood.errors import ConfigError
from budwood.tuning.groups import Grouping, Member, check_members, check_ranks, check_share, kind_of, rank_of


def member(layer: int, leaf: str, place: str = "input", width: int = 8) -> Member:
    return Member(f"model.layers.{layer}.attn.{leaf}", leaf, place, width)


def names(grouping: Grouping, leaves=("q", "v"), layers: int = 5) -> set[str]:
    return {grouping.name(member(layer, leaf)) for layer in range(layers) for leaf in leaves}


@pytest.mark.parametrize(
    ("grouping", "count"),
    [
        (Grouping(), 2),
        (Grouping("all"), 1),
        (Grouping("none"), 10),
        (Grouping([["q", "v"]]), 1),
        (Grouping([["q"]]), 2),
        (Grouping(depth=False), 10),
        (Grouping(depth=2), 6),
        (Grouping("all", depth=2), 3),
        (Grouping([["q", "v"]], depth=5), 1),
    ],
)
def test_number_of_groups(grouping: Grouping, count: int):
    assert len(names(grouping)) == count
    assert all("." not in name for name in names(grouping))


def test_names_do_not_depend_on_which_layers_are_adapted():
    grouping = Grouping(depth=2)
    assert grouping.name(member(3, "q")) == "q-input-8-block1"
    assert Grouping([["q", "v"]]).name(member(3, "v")) == "q+v-input-8"
    assert Grouping("all").name(member(0, "v", "output", 4)) == "all-output-4"


def test_modules_outside_the_layers_have_a_block_of_their_own():
    outside = Member("model.project", "project", "input", 8)
    assert outside.layer is None
    assert Grouping(depth=False).name(outside) == "project-input-8-outside"
    assert Grouping().name(outside) == "project-input-8"


def test_one_kind_with_two_widths_makes_two_groups():
    members = [member(0, "q"), member(1, "q", width=16)]
    check_members(Grouping(), members)
    assert len({Grouping().name(one) for one in members}) == 2


@pytest.mark.parametrize("share", ["all", [["q", "v"]]])
def test_unequal_widths_in_a_group_are_named(share):
    with pytest.raises(ConfigError, match=r"layers\.1\.attn\.v has 16"):
        check_members(Grouping(share), [member(0, "q"), member(1, "v", width=16)])


def test_ranks_belong_to_groups():
    grouping = Grouping([["q", "v"]])
    assert rank_of(grouping, "q", {"q+v": 3}, 9) == 3 == rank_of(grouping, "v", {"q+v": 3}, 9)
    assert rank_of(grouping, "o", {"o": 2}, 9) == 2 and rank_of(grouping, "o", {}, 9) == 9
    with pytest.raises(ConfigError, match=r"q\+v"):
        rank_of(grouping, "q", {"q": 3}, 9)
    with pytest.raises(ConfigError, match="no group"):
        check_ranks(grouping, {"q", "v", "o"}, {"oo": 3})


def test_bad_shares_are_refused():
    with pytest.raises(ConfigError, match="share='types'"):
        check_share("types")
    with pytest.raises(ConfigError, match="more than once"):
        check_share([["q"], ["v", "q"]])
    with pytest.raises(ConfigError, match="did you mean 'q'"):
        check_members(Grouping([["qq", "v"]]), [member(0, "q"), member(0, "v")])


def test_the_kind_is_the_longest_target_that_matches():
    assert kind_of("h.0.attn.c_proj", ["attn.c_proj", "mlp.c_proj"]) == "attn.c_proj"
    assert kind_of("h.0.attn.c_proj", {"c_proj", "h.0.attn.c_proj"}) == "h.0.attn.c_proj"
    assert kind_of("h.0.attn.c_proj", ["c_proj"]) == kind_of("h.0.mlp.c_proj", ["c_proj"]) == "c_proj"
    assert kind_of("h.0.attn.c_proj", r".*c_proj") == kind_of("h.0.attn.c_proj", None) == "c_proj"
    member = Member("h.0.attn.c_proj", "attn.c_proj", "input", 8)
    assert Grouping().name(member) == "attn-c_proj-input-8"


def test_kinds_on_different_sides_do_not_share():
    with pytest.raises(ConfigError, match="q on the input, v on the output"):
        check_members(Grouping([["q", "v"]]), [member(0, "q"), member(0, "v", "output")])
