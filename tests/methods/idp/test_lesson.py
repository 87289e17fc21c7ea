"""From text to a bank: what is trained, each prompt as a run of its own, and how an interrupted run goes on."""

from __future__ import annotations

import pytest
import torch

from budwood.data.settings import DataSettings
from budwood.errors import ConfigError, InterruptedRunError, NotSupportedError
from budwood.methods.idp import training as idp_training
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.lesson import BankLearner
from budwood.methods.idp.published import BankFormat
from budwood.models import Base, load_base
from budwood.storage import read_json
from budwood.training.folder import RunFolder, read_events
from budwood.tuning.lesson import Learned, Order
from budwood.tuning.registry import find_tuner
from tests import tiny
from tests.methods.idp import texts


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tiny.llama(), tmp_path_factory.mktemp("base")))


def float_base(order: Order) -> Base:
    return load_base(order.source, dtype="float32")


def learn(order: Order, place, *, resume: bool = False) -> Learned:
    folder = RunFolder(place)
    with folder.session(resume=resume):
        return BankLearner().read(order).learn(float_base(order), folder, progress=False, resume=resume)


def vectors(learned: Learned) -> dict[str, torch.Tensor]:
    return {prompt.name: prompt.vectors for prompt in learned.model.prompts}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_each_prompt_learns_its_own_text_and_the_base_does_not_move(base, tmp_path):
    order = texts.order(base, texts.write(tmp_path), training={"max_steps": 30, "evaluate_every": 30})
    lesson = BankLearner().read(order)
    outline = lesson.outline()
    learned = learn(order, tmp_path / "run")
    assert isinstance(learned.model, PromptBank) and learned.model.names == ["sea", "law", "food"]
    assert learned.parameters == outline.parameters == 3 * 4 * 32
    assert learned.metrics["steps"] == outline.steps == 90
    plain = float_base(order).model.state_dict()
    assert all(torch.equal(tensor, plain[name]) for name, tensor in learned.model.model.state_dict().items())
    for record in learned.metrics["prompts"]:
        before = read_events(tmp_path / "run" / "checkpoints" / "prompts" / record["prompt"])[0]["eval_loss"]
        assert record["held_out_loss"] < before
    events = read_events(tmp_path / "run")
    assert [event["step"] for event in events if "loss" in event] == list(range(1, 91))
    assert [event["prompt"] for event in events][::30] == ["sea", "law", "food"]


def test_one_prompt_alone_is_what_plain_prompt_tuning_makes(base, tmp_path):
    """A prompt does not depend on the others: its own file, seed and settings give the same bits."""
    files = texts.write(tmp_path)
    three = learn(texts.order(base, files), tmp_path / "three")
    one = learn(texts.order(base, files[:1], divide="files"), tmp_path / "one")
    assert torch.equal(vectors(three)["sea"], vectors(one)["sea"])


def test_lengths_may_differ(base, tmp_path):
    order = texts.order(base, texts.write(tmp_path), lengths=(2, 3, 5))
    assert BankLearner().read(order).outline().parameters == 10 * 32
    assert [len(one) for one in vectors(learn(order, tmp_path / "run")).values()] == [2, 3, 5]


def test_an_interrupted_run_goes_on_in_the_prompt_it_was_at(base, tmp_path, monkeypatch):
    order = texts.order(base, texts.write(tmp_path))
    whole = learn(order, tmp_path / "whole")
    real, calls = idp_training.train, []

    def stops_in_the_second(*arguments, **options):
        calls.append(options["resume"])
        if len(calls) == 2:
            raise InterruptedRunError("stopped")
        return real(*arguments, **options)

    monkeypatch.setattr(idp_training, "train", stops_in_the_second)
    with pytest.raises(InterruptedRunError):
        learn(order, tmp_path / "run")
    steps = (tmp_path / "run" / "checkpoints" / "prompts" / "sea" / "checkpoints").iterdir()
    kept = {path.name: path.stat().st_mtime_ns for path in steps}
    resumed = learn(order, tmp_path / "run", resume=True)
    assert calls == [False, False, True, False, False]
    assert equal(vectors(resumed), vectors(whole))
    steps = (tmp_path / "run" / "checkpoints" / "prompts" / "sea" / "checkpoints").iterdir()
    assert {path.name: path.stat().st_mtime_ns for path in steps} == kept  # the first prompt was only loaded
    assert resumed.metrics["steps"] == whole.metrics["steps"] == 12


def test_the_search_takes_the_rate_with_the_lowest_loss(base, tmp_path, monkeypatch):
    order = texts.order(base, texts.write(tmp_path), search=(1e-4, 1.0, 1e30), search_steps=4)
    learned = learn(order, tmp_path / "run")
    assert learned.metrics["learning_rate"] == 0.05
    losses = learned.metrics["search"]
    assert set(losses) == {"5e-06", "0.05", "5e+28"}
    assert losses["0.05"] < losses["5e-06"] and (losses["5e+28"] is None or losses["5e+28"] > losses["0.05"])
    assert {path.name for path in (tmp_path / "run" / "checkpoints" / "search").iterdir()} == set(losses)


@pytest.mark.parametrize("selector", ["attention", "router", "paper", "likelihood"])
def test_the_selector_is_ready_for_use(base, tmp_path, selector):
    order = texts.order(base, texts.write(tmp_path), selector=selector, contexts=60)
    learned = learn(order, tmp_path / "run")
    place = tmp_path / "bank"
    BankFormat().save(learned.model, place, float_base(order))
    loaded = BankFormat().load(float_base(order), place, force=False)
    assert read_json(place / "selector.json")["fingerprint"] == order.source.fingerprint
    ids = torch.arange(8, 48)[None].repeat(2, 1)
    found, again = BankFormat().answers(learned.model, ids), BankFormat().answers(loaded, ids, place)
    assert found.keys() == again.keys() == {"base", "prompt sea", "prompt law", "prompt food", "bank", "scores"}
    assert all(torch.equal(found[name], again[name]) for name in found)
    assert torch.allclose(found["bank"][1], found["prompt law"][1], atol=1e-4)  # row 1 has prompt 1
    assert not torch.equal(found["base"], found["prompt sea"])
    assert [path.parent.name for path in BankFormat().weights(place)] == ["sea", "law", "food"]


def test_a_bank_is_extended_without_training_its_prompts_again(base, tmp_path):
    files = texts.write(tmp_path)
    first = learn(texts.order(base, files[:2]), tmp_path / "first")
    BankFormat().save(first.model, tmp_path / "bank", float_base(texts.order(base, files)))
    wider = texts.order(base, files[2:], divide="files", extend=tmp_path / "bank")
    second = learn(wider, tmp_path / "second")
    assert second.model.names == ["sea", "law", "food"] and second.parameters == 4 * 32
    assert equal(vectors(first), {name: vectors(second)[name] for name in ("sea", "law")})
    with pytest.raises(ConfigError, match="'sea' already"):
        learn(texts.order(base, files[:1], divide="files", extend=tmp_path / "bank"), tmp_path / "third")


def test_other_tuners_and_an_evaluation_file_are_refused(base, tmp_path):
    order = texts.order(base, texts.write(tmp_path))
    lora = find_tuner("lora")
    with pytest.raises(NotSupportedError, match="lora"):
        BankLearner().read(Order(**{**vars(order), "tuner": lora, "tuner_settings": lora.settings()}))
    with pytest.raises(ConfigError, match="evaluation_file"):
        BankLearner().read(Order(**{**vars(order), "data": DataSettings(evaluation_file=tmp_path / "sea.txt")}))


def test_a_base_that_cannot_hold_a_prompt_is_refused_before_training(tmp_path):
    window = {
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention"],
        "use_sliding_window": True,
    }
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from tests.methods.idp.banks import SMALL, SPECIAL

    model = Qwen2ForCausalLM(Qwen2Config(intermediate_size=48, num_key_value_heads=2, **SMALL, **SPECIAL, **window))
    order = texts.order(str(tiny.save(model, tmp_path / "base")), texts.write(tmp_path))
    with pytest.raises(NotSupportedError, match="window"):
        BankLearner().read(order).outline()
