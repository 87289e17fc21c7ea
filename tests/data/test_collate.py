import torch

from budwood.data.collate import Collator
from budwood.data.problems import Origin
from budwood.data.render import Encoded

ROWS = [
    Encoded([5, 6, 2], [-100, 6, 2], [0.0, 1.0, 1.0], Origin("a", 1), 0),
    Encoded([5, 2, 6, 7, 2], [-100, -100, -100, 7, 2], [0.0, 0.0, 0.0, 0.5, 0.5], Origin("a", 2), 1),
]


def test_padding_is_masked_by_position_even_where_pad_is_eos():
    batch = Collator(pad_token_id=2)(ROWS)
    assert batch["input_ids"].tolist() == [[5, 6, 2, 2, 2], [5, 2, 6, 7, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[-100, 6, 2, -100, -100], [-100, -100, -100, 7, 2]]
    assert batch["loss_weights"].tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 0.5, 0.5]]
    assert {name: tensor.dtype for name, tensor in batch.items()} == {
        "input_ids": torch.int64,
        "attention_mask": torch.int64,
        "labels": torch.int64,
        "loss_weights": torch.float32,
    }


def test_the_length_is_rounded_up():
    assert Collator(0, pad_to_multiple_of=8)(ROWS)["labels"].shape == (2, 8)
    assert Collator(0, pad_to_multiple_of=5)(ROWS)["labels"].shape == (2, 5)
