"""What is given and what is scored."""

from __future__ import annotations

from budwood.data.problems import Origin
from budwood.data.render import Encoded
from budwood.data.scored import scored_from


def test_labels_and_weights_begin_at_the_start_that_is_given():
    row = Encoded([5, 6, 7, 8], [5, 6, 7, 8], [1.0, 1.0, 0.5, 2.0], Origin("text.txt"), 0)
    found = scored_from(row, 2)
    assert (found.input_ids, found.labels, found.loss_weights) == (
        row.input_ids,
        [-100, -100, 7, 8],
        [0.0, 0.0, 0.5, 2.0],
    )
    assert scored_from(row, 0) == row and found.supervised == 2
