import pytest
import torch

from budwood.training.checkpoints import CheckpointStore, trainable_tensors
from budwood.training.folder import RunFolder, read_events, read_status
from budwood.training.train import train
from tests.training.distributed_launch import launch
from tests.training.rows import collate, lora_model, make_rows, settings

SCRIPT = "distributed.py"


def figures(path):
    return [{k: v for k, v in event.items() if k != "tokens_per_s"} for event in read_events(path)]


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one_and_resume_with_the_same_bits(tmp_path):
    """19 rows in steps of 8: in the last step of an epoch, one process has a row more than the other."""
    two = tmp_path / "two"
    assert launch(SCRIPT, two).returncode == 0
    first, second = (torch.load(two / f"final-{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)

    model, changes = lora_model(), settings(batch_size=8, epochs=2, evaluate_every=2, learning_rate=1e-2)
    train(model, make_rows(19), make_rows(5, 1), collate, changes, RunFolder(tmp_path / "one"), seed=0, progress=False)
    for key in ("loss", "eval_loss", "grad_norm", "lr", "tokens", "supervised_tokens"):
        one, of_two = ([event.get(key) for event in read_events(p)] for p in (tmp_path / "one", two / "run"))
        assert of_two == [value if value is None else pytest.approx(value, abs=2e-5) for value in one], key
    for name, tensor in trainable_tensors(model).items():
        torch.testing.assert_close(first[name], tensor, rtol=0, atol=1e-5)

    stopped = tmp_path / "stopped"
    assert launch(SCRIPT, stopped, "stop").returncode != 0
    assert read_status(stopped / "run")["state"] == "interrupted"
    assert CheckpointStore(stopped / "run" / "checkpoints").latest() == 1
    assert launch(SCRIPT, stopped, "resume").returncode == 0
    assert figures(stopped / "run") == figures(two / "run")
    again = torch.load(stopped / "final-1.pt")
    assert all(torch.equal(first[name], again[name]) for name in first)
