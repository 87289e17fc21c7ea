"""A sequence of which the beginning is given and the rest is scored."""

from __future__ import annotations

from dataclasses import replace

from budwood.data.render import UNTRAINED, Encoded


def scored_from(row: Encoded, start: int) -> Encoded:
    """Return `row` with labels and loss from token `start` on; the tokens before it are given."""
    return replace(
        row,
        labels=[UNTRAINED] * start + row.labels[start:],
        loss_weights=[0.0] * start + row.loss_weights[start:],
    )
