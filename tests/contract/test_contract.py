"""Every tuner against the promises it declares. A new tuner is held to them without a line being added here."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import nn

import tests.tiny as tiny
from budwood import peft
from budwood.data.render import Renderer
from budwood.errors import NotSupportedError
from budwood.evals.generation import generate
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.factors import lora_factors
from budwood.tuning.protocol import Promise, Tuner
from budwood.tuning.registry import methods, tuners

# PEFT hands a prefix to the model under an argument's old name.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])


@pytest.fixture(params=tuners().values(), ids=lambda tuner: tuner.name)
def tuner(request: pytest.FixtureRequest) -> Tuner:
    peft.register()
    return request.param


def keeps(tuner: Tuner, promise: Promise) -> None:
    """Skip where the promise is refused; the refusal itself is tested in `test_refusals_say_why`."""
    if promise not in tuner.keeps:
        pytest.skip(f"{tuner.name} refuses {promise}: {tuner.refuses[promise]}")


def settings(tuner: Tuner) -> object:
    small = {"rank": 4} if "rank" in tuner.settings.model_fields else {}
    return tuner.settings(**small)


def fresh(tuner: Tuner, base: nn.Module | None = None, seed: int = 0) -> PeftModel:
    return attach(base if base is not None else tiny.llama(), tuner, settings(tuner), seed=seed).eval()


def train(model: PeftModel, steps: int = 3) -> PeftModel:
    model.train()
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimiser.step()
    return model.eval()


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def bases() -> dict[str, nn.Module]:
    return {"llama": tiny.llama(), "gpt2": tiny.gpt2(), "bf16": tiny.llama().to(torch.bfloat16)}


@pytest.mark.parametrize("base", ["llama", "gpt2", "bf16"])
def test_identity_at_attach(tuner: Tuner, base: str):
    keeps(tuner, Promise.IDENTITY)
    plain = logits(bases()[base])
    assert torch.equal(logits(fresh(tuner, bases()[base])), plain)


@pytest.mark.parametrize("base", ["llama", "gpt2", "bf16"])
def test_training_moves_the_output_and_leaves_the_base(tuner: Tuner, base: str):
    model = fresh(tuner, bases()[base])
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    before = logits(model)
    train(model)
    assert not torch.equal(logits(model), before)
    for name, parameter in model.named_parameters():
        if name in frozen:
            assert parameter.grad is None and torch.equal(parameter, frozen[name])
        else:
            assert parameter.grad is not None and parameter.dtype == torch.float32
    with model.disable_adapter():
        assert torch.equal(logits(model), logits(bases()[base]))


def test_same_seed_same_bits(tuner: Tuner):
    first, second = train(fresh(tuner)), train(fresh(tuner))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


def test_saved_and_loaded_gives_the_same_logits(tuner: Tuner, tmp_path):
    model = train(fresh(tuner))
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    again = PeftModel.from_pretrained(tiny.llama(), tmp_path).eval()
    assert torch.equal(logits(again), logits(model))
    stored = load_file(tmp_path / "adapter_model.safetensors")
    # VeRA saves its frozen A and B as well.
    buffers = {name.removesuffix(".default") for name, _ in model.named_buffers(remove_duplicate=False)}
    learned = sum(tensor.numel() for name, tensor in stored.items() if name not in buffers)
    assert learned == count_parameters(model)


def test_merged_equals_unmerged_and_unmerging_restores(tuner: Tuner):
    keeps(tuner, Promise.MERGE)
    model = train(fresh(tuner))
    wanted, weights = logits(model), copy.deepcopy(model.state_dict())
    model.merge_adapter()
    torch.testing.assert_close(logits(model), wanted, rtol=0, atol=1e-5)
    model.unmerge_adapter()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_several_adapters(tuner: Tuner):
    keeps(tuner, Promise.SEVERAL)
    model = train(fresh(tuner))
    first = logits(model)
    model.add_adapter("second", tuner.make_config(settings(tuner), tiny.llama()))
    model.set_adapter("second")
    train(model, steps=2)  # some tuners start without chance: as many steps would end at the same place
    assert not torch.equal(logits(model), first)
    model.set_adapter("default")
    assert torch.equal(logits(model), first)
    model.delete_adapter("second")
    assert torch.equal(logits(model), first)


def test_becomes_a_lora_exactly(tuner: Tuner):
    keeps(tuner, Promise.LORA)
    model, plain = train(fresh(tuner)), tiny.llama()
    with torch.no_grad():
        for name, (a, b) in lora_factors(model).items():
            plain.get_submodule(name).weight += b @ a
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-5)


def test_generates_with_a_cache(tuner: Tuner):
    keeps(tuner, Promise.GENERATE)
    model, prompts = train(fresh(tuner)), [IDS[0, :4].tolist(), IDS[1].tolist()]
    found = generate(model, prompts, Renderer(tiny.tokenizer()), max_new_tokens=5)
    for prompt, made in zip(prompts, found):
        assert list(made.ids) == without_cache(model, prompt, 5)


def without_cache(model: nn.Module, prompt: list[int], limit: int) -> list[int]:
    """Greedy decoding by whole forward passes, until the end token."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(limit):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tiny.tokenizer().eos_token_id:
                return ids[len(prompt) : -1]
    return ids[len(prompt) :]


def test_refusals_say_why(tuner: Tuner):
    for promise, reason in tuner.refuses.items():
        assert len(reason.split()) >= 4, f"{tuner.name} refuses {promise} without a reason"
    if Promise.LORA in tuner.refuses:
        with pytest.raises(NotSupportedError):
            lora_factors(train(fresh(tuner)))
    if Promise.GENERATE in tuner.refuses:
        with pytest.raises(NotSupportedError):
            generate(fresh(tuner), [[5, 9]], Renderer(tiny.tokenizer()), max_new_tokens=2)


def test_every_setting_is_described(tuner: Tuner):
    assert all(field.description for field in tuner.settings.model_fields.values())
    assert tuner.paper.startswith("https://") and tuner.learns


def test_every_method_has_a_tuner_and_a_citation():
    assert {method.tuner for method in methods().values()} <= set(tuners())
    for method in methods().values():
        assert method.bibtex.startswith("@") and method.paper.startswith("https://")
    defaults = [method.evidence for method in methods().values() if method.default]
    assert len(defaults) == len(set(defaults))


def test_declarations_load_no_torch():
    import subprocess
    import sys

    code = "import sys, budwood.tuning.registry as r; r.methods(), r.tuners(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_pefts_own_entry_point_takes_our_configs(tuner: Tuner):
    config = tuner.make_config(settings(tuner), tiny.llama())
    assert isinstance(get_peft_model(tiny.llama(), config), PeftModel)
    assert config.is_prompt_learning or "target_modules" in inspect.signature(type(config)).parameters
