"""The costs of a bank on a tiny model: every figure is there, and what hangs on no clock is right."""

from __future__ import annotations

import pytest
import torch
from benchmarks._speed import cache_slots, in_turn, ratios, spread

from benchmarks import idp_costs
from budwood.storage import read_json
from tests import tiny
from tests.models import quantised_folders


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
@pytest.mark.parametrize("suffix", ["", "+int8wo"])
def test_one_command_measures_it_all(tmp_path, suffix, monkeypatch):
    model = quantised_folders.made("+int8wo", tmp_path / "base").removesuffix("+int8wo")
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    arguments = ["--quick", "--models", model + suffix, "--dtype", "float32", "-o", str(tmp_path / "costs.json")]
    assert idp_costs.main(arguments) == 0
    found = read_json(tmp_path / "costs.json")
    assert found["quick"] and {"cpu", "git"} <= found["machine"].keys() and found["seeds"] == [0]
    (run,) = found["runs"]
    shares = {one["what"]: one["share"] for one in run["selectors"] if "share" in one}
    assert shares.keys() == {*idp_costs.selectors_of(2), "limit of paper"} and shares["limit of paper"] == 0.52
    decoding = run["decoding"]
    assert decoding["forwards"] == {"one prompt": 4, "bank": 4} and decoding["slots_are_n_max_t_step"]
    assert decoding["slots_after_each"]["bank"] == [16, 17, 18, 19]
    systems = {"base", "prefix", "one prompt", "bank m=3, likelihood", "bank m=3, paper", *idp_costs.LORA}
    assert systems <= run["latency"].keys()
    assert all("twice" in run["latency"][f"{name} / bank m=3, likelihood"] for name in idp_costs.LORA)


def test_a_model_that_is_not_there_is_said(tmp_path, capsys):
    out = tmp_path / "costs.json"
    assert idp_costs.main(["--quick", "--models", str(tmp_path / "none"), "-o", str(out)]) == 2
    assert "none" in capsys.readouterr().err and not out.exists()


def test_works_are_done_in_turn_and_the_first_round_warms_up():
    done: list[str] = []
    told = in_turn({name: lambda name=name: done.append(name) or len(done) for name in "ab"}, 2)
    assert "".join(done) == "ababab" and told == {"a": [3, 5], "b": [4, 6]}
    assert spread([1.0, 2.0, 4.0]) == {"median": 2.0, "low": 1.5, "high": 3.0}
    assert spread([2.0])["high"] == 2.0
    assert ratios([2.0, 9.0], [1.0, 3.0])["median"] == 2.5


def test_the_cache_is_counted(tmp_path):
    model = tiny.llama()
    ids = torch.tensor([[5, 6, 7]])
    options = dict(max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=257)
    assert cache_slots(model, lambda: model.generate(ids, **options)) == [3, 4, 5]
