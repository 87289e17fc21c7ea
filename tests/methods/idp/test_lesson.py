"""From text to a bank: what is trained, each prompt as a run of its own, and how an interrupted run goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from budwood.data.settings import DataSettings
from budwood.errors import ConfigError, InterruptedRunError, NotSupportedError
from budwood.methods.idp import training as idp_training
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.lesson import BankLearner
from budwood.methods.idp.published import BankFormat
from budwood.models import Base, load_base
from budwood.storage import read_json
from budwood.training.folder import RunFolder, read_events
from budwood.training.train import TrainingResult
from budwood.tuning.lesson import Learned, Order
from budwood.tuning.registry import find_tuner
from tests import tiny
from tests.methods.idp import texts
from tests.methods.idp.banks import SMALL, SPECIAL

LONG = {"max_steps": 30, "evaluate_every": 30, "save_every": 30}
QWEN = dict(intermediate_size=48, num_key_value_heads=2, initializer_range=0.2, **SMALL, **SPECIAL)
WINDOW = {"sliding_window": 16, "layer_types": ["sliding_attention"] * 2, "use_sliding_window": True}
RESULT = TrainingResult(1, 1.0, 1, 1, 1.0, 1.0, None, 1.0, None, None, False)


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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def trained(base: str, place: Path) -> Learned:
    """Two prompts, trained for long enough to have learned something."""
    files = texts.write(place, kinds=["sea", "law"])
    return learn(texts.order(base, files, training=LONG), place / "run")


def test_prompts_go_on_from_the_common_one(base, tmp_path):
    files = texts.write(tmp_path, kinds=["sea", "law", "food"])
    still = {"learning_rate": 1e-12}  # nothing moves
    common = vectors(learn(texts.order(base, files, training=still, lengths=(3, 5, 4)), tmp_path / "common"))
    longest = common["law"]
    assert {name: len(one) for name, one in common.items()} == {"sea": 3, "law": 5, "food": 4}
    assert all(torch.allclose(one, longest[: len(one)], atol=1e-6) for one in common.values())
    apart = vectors(learn(texts.order(base, files, training=still, common=0.0), tmp_path / "apart"))
    assert not torch.allclose(apart["sea"], apart["law"], atol=1e-2)


def test_each_prompt_learns_its_own_text_and_the_base_does_not_move(base, place, trained):
    order = texts.order(base, texts.write(place, kinds=["sea", "law"]), training=LONG)
    outline = BankLearner().read(order).outline()
    assert isinstance(trained.model, PromptBank) and trained.model.names == ["sea", "law"]
    assert trained.parameters == outline.parameters == 2 * 4 * 32
    assert trained.metrics["steps"] == outline.steps == 60
    plain = float_base(order).model.state_dict()
    assert all(torch.equal(tensor, plain[name]) for name, tensor in trained.model.model.state_dict().items())
    for record in trained.metrics["prompts"]:
        before = read_events(place / "run" / "checkpoints" / "prompts" / record["prompt"])[0]["eval_loss"]
        assert record["held_out_loss"] < before
    events = read_events(place / "run")
    assert [event["step"] for event in events if "loss" in event] == list(range(1, 61))
    steps = Counter(event["prompt"] for event in events if "loss" in event)
    assert steps == {"common": 30, "sea": 15, "law": 15}


def test_what_is_held_out_is_scored_in_its_second_half(trained):
    assert len(trained.held_out) == 8 and trained.parts.keys() == {"sea", "law"}
    for row in trained.held_out:
        half = len(row.input_ids) // 2
        assert set(row.labels[:half]) == {-100} and row.labels[half:] == row.input_ids[half:]


def test_a_prompt_without_a_common_one_does_not_depend_on_the_others(base, tmp_path):
    """Its own text, seed and settings alone give the same bits."""
    files = texts.write(tmp_path, kinds=["sea", "law"])
    both = learn(texts.order(base, files, common=0.0), tmp_path / "both")
    alone = learn(texts.order(base, files[:1], divide="files"), tmp_path / "alone")
    assert torch.equal(vectors(both)["sea"], vectors(alone)["sea"])


def test_lengths_may_differ(base, tmp_path):
    order = texts.order(base, texts.write(tmp_path, kinds=["sea", "law"]), lengths=(2, 5))
    assert BankLearner().read(order).outline().parameters == 7 * 32
    assert [len(one) for one in vectors(learn(order, tmp_path / "run")).values()] == [2, 5]


def test_an_interrupted_run_goes_on_in_the_prompt_it_was_at(base, tmp_path, monkeypatch):
    order = texts.order(base, texts.write(tmp_path, kinds=["sea", "law"]))
    whole = learn(order, tmp_path / "whole")
    append, steps = RunFolder.append_event, []

    def stops_in_the_second(folder, event):
        append(folder, event)
        steps.append((folder.path.name, event["step"]))
        if steps[-1] == ("law", 1):
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "append_event", stops_in_the_second)
    with pytest.raises(InterruptedRunError):
        learn(order, tmp_path / "run")
    monkeypatch.setattr(RunFolder, "append_event", lambda *one: (append(*one), steps.append((one[0].path.name, -1))))
    steps.clear()
    resumed = learn(order, tmp_path / "run", resume=True)
    assert equal(vectors(resumed), vectors(whole))
    assert not {"all", "sea"} & {name for name, _ in steps}  # the common prompt and the first were only loaded
    assert len([name for name, _ in steps if name == "law"]) < 4  # and the second went on
    assert resumed.metrics["steps"] == whole.metrics["steps"] == 8


def test_the_search_takes_the_rate_with_the_lowest_loss(base, tmp_path, monkeypatch):
    files = texts.write(tmp_path, kinds=["sea"])
    order = texts.order(base, files, divide="files", search=(1e-4, 1.0, 1e30), search_steps=4)
    learned = learn(order, tmp_path / "run")
    assert learned.metrics["learning_rate"] == 0.05
    losses = learned.metrics["search"]
    assert set(losses) == {"5e-06", "0.05", "5e+28"}
    assert losses["0.05"] < losses["5e-06"] and (losses["5e+28"] is None or losses["5e+28"] > losses["0.05"])
    assert {path.name for path in (tmp_path / "run" / "checkpoints" / "search").iterdir()} == set(losses)


@pytest.mark.parametrize("selector", ["attention", "router", "paper", "likelihood"])
def test_the_selector_is_ready_for_use(base, trained, tmp_path, monkeypatch, selector):
    known = {one.name: one for one in trained.model.prompts}
    monkeypatch.setattr(
        idp_training.PromptTraining,
        "train_all",
        lambda _, division, rate: (
            None,
            [idp_training.Trained(known[one.name], one, RESULT) for one in division.domains],
        ),
    )
    order = texts.order(base, texts.write(tmp_path, kinds=["sea", "law"]), selector=selector, contexts=60)
    learned = learn(order, tmp_path / "run")
    place = tmp_path / "bank"
    BankFormat().save(learned.model, place, float_base(order))
    loaded = BankFormat().load(float_base(order), place, force=False)
    assert read_json(place / "selector.json")["fingerprint"] == order.source.fingerprint
    ids = torch.arange(8, 48)[None].repeat(2, 1)
    found, again = BankFormat().answers(learned.model, ids), BankFormat().answers(loaded, ids, place)
    assert found.keys() == again.keys() == {"base", "prompt sea", "prompt law", "bank", "scores"}
    assert all(torch.equal(found[name], again[name]) for name in found)
    assert torch.allclose(found["bank"][1], found["prompt law"][1], atol=1e-4)  # row 1 has prompt 1
    assert not torch.equal(found["base"], found["prompt sea"])
    assert [path.parent.name for path in BankFormat().weights(place)] == ["sea", "law"]


def test_a_bank_is_extended_without_training_its_prompts_again(base, place, trained, tmp_path):
    BankFormat().save(trained.model, tmp_path / "bank", float_base(texts.order(base, [place / "sea.txt"])))
    files = texts.write(tmp_path, kinds=["food"])
    second = learn(texts.order(base, files, divide="files", extend=tmp_path / "bank"), tmp_path / "second")
    assert second.model.names == ["sea", "law", "food"] and second.parameters == 4 * 32
    assert equal(vectors(trained), {name: vectors(second)[name] for name in ("sea", "law")})
    with pytest.raises(ConfigError, match="'sea' already"):
        learn(texts.order(base, [place / "sea.txt"], divide="files", extend=tmp_path / "bank"), tmp_path / "third")


def test_other_tuners_and_an_evaluation_file_are_refused(base, tmp_path):
    order = texts.order(base, texts.write(tmp_path))
    lora = find_tuner("lora")
    with pytest.raises(NotSupportedError, match="lora"):
        BankLearner().read(Order(**{**vars(order), "tuner": lora, "tuner_settings": lora.settings()}))
    with pytest.raises(ConfigError, match="evaluation_file"):
        BankLearner().read(Order(**{**vars(order), "data": DataSettings(evaluation_file=tmp_path / "sea.txt")}))


def test_a_base_with_windows_gets_a_bank_that_is_the_same_when_loaded(tmp_path):
    torch.manual_seed(0)
    base = str(tiny.save(Qwen2ForCausalLM(Qwen2Config(**QWEN, **WINDOW)), tmp_path / "base"))
    order = texts.order(base, texts.write(tmp_path, kinds=["sea", "law"]), training={"max_steps": 2})
    learned = learn(order, tmp_path / "run")
    BankFormat().save(learned.model, tmp_path / "bank", float_base(order))
    loaded = BankFormat().load(float_base(order), tmp_path / "bank", force=False)
    ids = torch.arange(8, 48)[None].repeat(2, 1)
    found, again = BankFormat().answers(learned.model, ids), BankFormat().answers(loaded, ids, tmp_path / "bank")
    assert all(torch.equal(found[name], again[name]) for name in found)
    assert torch.allclose(found["bank"][1], found["prompt law"][1], atol=1e-4)


def test_a_base_that_cannot_hold_a_prompt_is_refused_before_training(tmp_path):
    model = tiny.llama(rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0))
    order = texts.order(str(tiny.save(model, tmp_path / "base")), texts.write(tmp_path))
    with pytest.raises(NotSupportedError, match="frequencies"):
        BankLearner().read(order)
