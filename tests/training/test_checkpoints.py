import dataclasses
import json

import pytest
import torch

from budwood.errors import AdapterError, StorageError
from budwood.training.checkpoints import Checkpoint, CheckpointStore, load_trainable, trainable_tensors
from budwood.training.ledger import Ledger
from tests.training.rows import lora_model

FILES = {"adapter.safetensors", "state.pt", "trainer_state.json", "ledger.json"}


def checkpoint(step: int, best_step: int | None = None) -> Checkpoint:
    tensors = {"a": torch.full((2, 3), float(step))}
    state = {"step": torch.tensor(step)}
    ledger = Ledger(step=step, best_step=best_step, best_loss=None if best_step is None else 1.5)
    return Checkpoint(tensors, state, {"last": [0.1]}, [{"torch": torch.get_rng_state()}], "{}", ledger, {"rows": 3})


def names(store: CheckpointStore) -> set[str]:
    return {entry.name for entry in store.folder.iterdir()}


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.latest() is None
    saved = checkpoint(7)
    store.save(saved)
    assert store.latest() == 7 and {entry.name for entry in store.path(7).iterdir()} == FILES
    loaded = store.load(7)
    assert torch.equal(loaded.tensors["a"], saved.tensors["a"])
    assert torch.equal(loaded.generators[0]["torch"], saved.generators[0]["torch"])
    for field in ("schedule", "trainer", "ledger", "plan", "optimizer"):
        assert getattr(loaded, field) == getattr(saved, field)


def test_the_last_and_the_best_are_kept(tmp_path):
    store = CheckpointStore(tmp_path)
    for step, best in [(10, 10), (20, 20), (30, 20)]:
        store.save(checkpoint(step, best))
    assert names(store) == {"step-000030", "best"}
    assert store.load_best(20)["a"][0, 0] == 20
    assert json.loads((tmp_path / "best" / "best.json").read_text()) == {"step": 20, "evaluation_loss": 1.5}


def test_the_old_checkpoint_goes_after_the_new_one_is_there(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(checkpoint(10))

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("budwood.training.checkpoints._write_state", fail)
    with pytest.raises(StorageError, match="full"):
        store.save(checkpoint(20))
    assert names(store) == {"step-000010"}
    assert store.load(10).ledger.step == 10


def test_what_a_killed_process_left_undone_is_done_from_its_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(checkpoint(10, 10))
    monkeypatch.setattr(CheckpointStore, "settle", lambda *_: None)
    store.save(checkpoint(20, 20))
    monkeypatch.undo()
    with pytest.raises(StorageError, match="step 10, not 20"):
        store.load_best(20)
    assert names(store) == {"step-000010", "step-000020", "best"}
    store.settle(store.load(20).ledger)
    assert names(store) == {"step-000020", "best"}
    assert store.load_best(20)["a"][0, 0] == 20


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("damage", [lambda f: f.write_bytes(f.read_bytes()[:20]), lambda f: f.unlink()])
def test_a_damaged_checkpoint_is_named(tmp_path, name, damage):
    store = CheckpointStore(tmp_path)
    store.save(checkpoint(5))
    if name == "trainer_state.json":
        damage = type(store.path(5)).unlink  # two bytes of text cannot be damaged by cutting
    damage(store.path(5) / name)
    with pytest.raises(StorageError, match="step-000005 cannot be read"):
        store.load(5)


def test_nothing_but_data_is_read(tmp_path):
    """A pickle with code in it is refused and not run."""
    store = CheckpointStore(tmp_path)
    store.save(checkpoint(5))

    class Trap:
        def __reduce__(self):
            return print, ("ran",)

    torch.save(Trap(), store.path(5) / "state.pt")
    with pytest.raises(StorageError, match="cannot be read: Weights only"):
        store.load(5)


def test_the_tensors_are_those_that_are_trained():
    model = lora_model()
    tensors = trainable_tensors(model)
    assert len(tensors) == 8 and all("lora_" in name for name in tensors)
    other = lora_model(seed=1)
    load_trainable(other, tensors)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in trainable_tensors(other).items())


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape", "dtype"])
def test_tensors_that_do_not_fit_exactly_are_refused(change):
    model = lora_model()
    tensors = trainable_tensors(model)
    name = next(iter(tensors))
    if change == "missing":
        del tensors[name]
    elif change == "unexpected":
        tensors["other"] = torch.zeros(1)
    else:
        tensors[name] = tensors[name][:1] if change == "shape" else tensors[name].half()
    before = trainable_tensors(model)
    with pytest.raises(AdapterError, match="other" if change == "unexpected" else name):
        load_trainable(model, tensors)
    assert all(torch.equal(before[n], t) for n, t in trainable_tensors(model).items())


def test_a_ledger_judges():
    ledger = Ledger()
    judged = []
    for step, loss in enumerate([3.0, 2.0, 2.0, 2.5, 1.0], start=1):
        ledger.add_step(step, 10, 5, 0.1)
        judged.append(ledger.judge(loss))
        assert ledger.out_of_patience(2) == (step == 4)
    assert judged == [True, True, False, False, True]
    assert dataclasses.asdict(ledger) | {"step_s": 0} == {
        "step": 5,
        "train_tokens": 50,
        "supervised_tokens": 25,
        "step_s": 0,
        "wall_s": 0.0,
        "last_loss": None,
        "best_step": 5,
        "best_loss": 1.0,
        "stale_evaluations": 0,
    }
