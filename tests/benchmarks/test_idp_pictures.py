"""The pictures of the table of banks: what they are drawn from, on invented lines and tiny models."""

from __future__ import annotations

import pytest
import torch
from benchmarks._table import append
from benchmarks.idp import pictures
from benchmarks.idp.kept import keep, restore
from benchmarks.idp.similarity import attention_names, inner_states, layer_similarity
from peft import LoraConfig, PrefixTuningConfig, get_peft_model

from benchmarks import idp_pictures
from budwood.data.problems import Origin
from budwood.data.render import Encoded
from tests import tiny
from tests.methods.idp.banks import make_bank, vectors

COMMON = {
    "table": "abc", "seed": 0, "sizes": {"tokens": 4, "steps": 9}, "tokens": [10, 30, 7], "models": ["small", "large"],
    "domains": ["sea", "law", "unseen"],
}  # fmt: skip
BANK = COMMON | {
    "key": "1", "system": "bank", "nll": [1.0, 2.0, 9.0],
    "alone": {"sea": [1.0, 5.0, 9.0], "law": [3.0, 2.0, 9.0]},
    "chosen": {"likelihood": [0, 1, 0], "paper": [1, 1, 1]},
}  # fmt: skip
LENGTHS = BANK | {"key": "2", "system": "paper's lengths", "alone": {"mixed26": [2, 2, 2], "mixed50": [1, 3, 2]}}
ONE = COMMON | {"key": "3", "system": "mixed, max n", "nll": [2.0, 4.0, 9.0], "accuracy": {"accuracy": 0.5}}
LONG = ONE | {"key": "4", "system": "mixed, sum n", "nll": [2.0, 2.0, 9.0]}
LINES = [BANK, LENGTHS, ONE, LONG]


def test_single_prompts_have_their_lengths_and_the_control_does_not_count():
    found = {(point.name, point.vectors, point.nll, point.accuracy) for point in pictures.single_prompts(LINES)}
    short, whole = "one prompt, 9 steps", "one prompt, 18 steps"
    assert found == {(short, 26, 2.0, None), (short, 50, 2.5, None), (whole, 4, 3.5, 0.5), (whole, 8, 2.0, 0.5)}


def test_a_choice_is_priced_by_the_prompts_it_takes():
    chosen = {point.name: (point.vectors, point.nll) for point in pictures.chosen_points(BANK)}
    assert chosen["bank, likelihood"] == chosen["bank, oracle"] == (4.0, 1.75)
    assert chosen["bank, paper"] == (4.0, 2.25)
    likelihood = pictures.chosen_points(LENGTHS)[0]
    assert likelihood.vectors == pytest.approx((26 + 50 + 26) / 3)


@pytest.mark.parametrize("form", ["svg", "png"])
def test_the_command_draws_what_the_lines_are_enough_for(form, tmp_path, capsys):
    for line in LINES:
        append(tmp_path / "idp.jsonl", line)
    append(tmp_path / "idp.jsonl", ONE | {"key": "5", "table": "longer", "sizes": {"tokens": 16, "steps": 9}})
    append(tmp_path / "idp.jsonl", ONE | {"key": "6", "table": "other", "models": ["large", "large"]})
    arguments = ["--results", str(tmp_path / "idp.jsonl"), "-o", str(tmp_path / "out"), "--form", form]
    assert idp_pictures.main(arguments) == 0
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    kinds = [
        "abc-lengths",
        "abc-short-and-long",
        "abc-choices",
        "abc-margins",
        "other-lengths",
        "other-short-and-long",
    ]
    assert files.keys() == {f"{kind}.{form}" for kind in kinds}
    assert all(b"<svg" in one[:500] if form == "svg" else one.startswith(b"\x89PNG") for one in files.values())
    assert idp_pictures.main(arguments) == 0  # the same lines, the same bytes
    assert all((tmp_path / "out" / name).read_bytes() == content for name, content in files.items())
    assert idp_pictures.main([*arguments, "--table", "none"]) == 2
    assert "no finished cell of a table none" in capsys.readouterr().err


def text(length: int = 12) -> Encoded:
    ids = torch.randint(0, 250, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    half = length // 2
    labels = [-100] * half + ids[half:]
    return Encoded(ids, labels, [float(label >= 0) for label in labels], Origin("text", 0), 0)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_a_model_is_like_itself_and_less_like_what_is_changed(tmp_path):
    bank = make_bank(tmp_path, lengths=(3, 5))
    lora = get_peft_model(tiny.llama(), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)).eval()
    prefix = get_peft_model(tiny.llama(), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    models = {"same": tiny.llama(), "bank": bank, "lora": lora, "prefix": prefix}
    found = layer_similarity(tiny.llama(), models, [text(12), text(9)])
    for kind in ("attention", "states"):
        assert found["same"][kind] == pytest.approx([1.0, 1.0], abs=1e-6)
        for name in ("bank", "lora", "prefix"):
            assert len(found[name][kind]) == 2 and all(-1 < one < 0.9999 for one in found[name][kind])


def test_states_behind_a_prompt_are_those_of_one_sequence(tmp_path):
    bank, row = make_bank(tmp_path, lengths=(4,)), text()
    names = attention_names(bank.model)
    assert [name.rpartition(".")[2] for name in names] == ["o_proj", "o_proj", "0", "1"]
    found = inner_states(bank, names, row)
    embedded = bank.model.get_input_embeddings()(torch.tensor(row.input_ids))
    with torch.no_grad():
        states = bank.model.model(
            inputs_embeds=torch.cat([vectors(bank, 0), embedded])[None], output_hidden_states=True
        )
    torch.testing.assert_close(found[names[2]], states.hidden_states[1][0, -6:], rtol=0, atol=1e-5)
    plain = inner_states(bank.model, names, row)
    assert not torch.allclose(plain[names[0]], found[names[0]], atol=1e-3)


def test_what_is_kept_is_what_was_trained(tmp_path):
    def fresh(seed: int):
        torch.manual_seed(seed)
        return get_peft_model(tiny.llama(), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)).eval()

    trained, other, ids = fresh(0), fresh(1), torch.tensor([[5, 6, 7]])
    keep(tmp_path / "work" / "lora.safetensors", trained, 3e-3)
    assert restore(tmp_path / "work" / "lora.safetensors", other) == 3e-3
    assert torch.equal(trained(ids).logits, other(ids).logits)
