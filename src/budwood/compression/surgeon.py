"""GPTQ and SparseGPT: columns are settled one by one, and those that follow make up for each one's error.

Both are the optimal brain surgeon with the inputs in a fixed order. When column j is set from w_j to ŵ_j, the columns
after it move by −(w_j − ŵ_j) C_jk / C_jj, which minimises the layer's squared error over them; with C as in
`grams.inverse_factor`. They differ in what ŵ_j is: the nearest level of a grid, or w_j or 0.

Columns are settled in blocks, and what a block costs is passed on to the columns after it in one product: the sums
are the same, in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from budwood.compression.grams import inverse_factor
from budwood.compression.grids import Grid, fit_grid
from budwood.compression.masks import keep_highest
from budwood.compression.settings import Pattern

BLOCK = 128  # columns; SparseGPT chooses what to keep once for each (its section 3.2)

Settle = Callable[[Float[Tensor, " d_out"], int], Float[Tensor, " d_out"]]
"""Takes a column and its index in the block, returns what it is set to."""
Enter = Callable[[Float[Tensor, "d_out d_in"], slice], Settle]
"""Takes all weights as they are now and the columns of a block that begins, returns how to settle those."""


def _sweep(
    weight: Float[Tensor, "d_out d_in"], factor: Float[Tensor, "d_in d_in"], blocks: Sequence[slice], enter: Enter
) -> Float[Tensor, "d_out d_in"]:
    """Settle all columns in order; `blocks` are consecutive and cover them."""
    weight = weight.clone()
    for block in blocks:
        settle, inside = enter(weight, block), factor[block, block]
        current = weight[:, block]  # a view
        errors = torch.empty_like(current)
        for i in range(current.shape[1]):
            settled = settle(current[:, i], i)
            errors[:, i] = (current[:, i] - settled) / inside[i, i]
            current[:, i] = settled
            current[:, i + 1 :].addr_(errors[:, i], inside[i, i + 1 :], alpha=-1)
        weight[:, block.stop :].addmm_(errors, factor[block, block.stop :], alpha=-1)
    return weight


def _blocks(columns: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, columns)) for start in range(0, columns, size)]


def gptq(
    weight: Float[Tensor, "d_out d_in"],
    gram: Float[Tensor, "d_in d_in"],
    *,
    bits: int,
    group: int,
    symmetric: bool,
    act_order: bool,
    damping: float,
) -> Float[Tensor, "d_out d_in"]:
    """Round to group-wise grids, later columns making up for earlier ones (GPTQ, algorithm 1).

    A group's grid is fitted to its weights as they are when its first column is settled. With `act_order` columns
    come in the order of falling H_jj; a group is then not settled in one go, so all grids are fitted to the untouched
    weights.
    """
    if not act_order:
        enter = _fitting_grids(bits, group, symmetric)
        return _sweep(weight, inverse_factor(gram, damping), _blocks(weight.shape[1], _block_in(group)), enter)
    order = gram.diagonal().argsort(descending=True, stable=True)
    grid = fit_grid(weight.unflatten(1, (-1, group)), bits, symmetric=symmetric)
    factor = inverse_factor(gram[order][:, order], damping)
    swept = _sweep(weight[:, order], factor, _blocks(len(order), BLOCK), _fixed_grids(grid, order // group))
    return swept[:, order.argsort()]


def _block_in(group: int) -> int:
    """The largest size up to `BLOCK` that divides a group: where one begins, all earlier errors are passed on."""
    return next(size for size in range(min(group, BLOCK), 0, -1) if group % size == 0)


def _fitting_grids(bits: int, group: int, symmetric: bool) -> Enter:
    grids: list[Grid] = []

    def enter(weight: Tensor, block: slice) -> Settle:
        if block.start % group == 0:
            grids.append(fit_grid(weight[:, block.start : block.start + group], bits, symmetric=symmetric))
        grid = grids[-1]
        return lambda column, i: grid.round(column.unsqueeze(1)).squeeze(1)

    return enter


def _fixed_grids(grid: Grid, group_of: Tensor) -> Enter:
    groups = group_of.tolist()

    def enter(weight: Tensor, block: slice) -> Settle:
        def settle(column: Tensor, i: int) -> Tensor:
            k = groups[block.start + i]
            return Grid(grid.step[:, k], grid.zero[:, k], grid.top).round(column.unsqueeze(1)).squeeze(1)

        return settle

    return enter


def sparsegpt(
    weight: Float[Tensor, "d_out d_in"],
    gram: Float[Tensor, "d_in d_in"],
    *,
    sparsity: float,
    pattern: Pattern | None,
    damping: float,
) -> Float[Tensor, "d_out d_in"]:
    """Set a share of the weights to 0, later columns making up for it (SparseGPT, algorithm 1).

    What goes in a block is what costs least, w_ij² / C_jj²: the same share of each block, but not of each row in it.
    With a pattern a block is one set of neighbours, and rows choose on their own.
    """
    factor = inverse_factor(gram, damping)
    scale = factor.diagonal()

    def enter(weight: Tensor, block: slice) -> Settle:
        scores = (weight[:, block] / scale[block]).square()
        rivals = scores if pattern else scores.reshape(1, -1)
        keep = keep_highest(rivals, sparsity).reshape(scores.shape)
        return lambda column, i: column * keep[:, i]

    return _sweep(weight, factor, _blocks(weight.shape[1], pattern.of if pattern else BLOCK), enter)
