"""The equations in float64: golden cases A to D, the algebra they imply, and the naive version beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from budwood.tuning.edits import LowRankMap, delta_bias, delta_weight, lora_factors


def draws(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    source = np.random.RandomState(seed)
    return [torch.from_numpy(source.standard_normal(shape)) for shape in shapes]


def close(got: torch.Tensor, wanted: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=tolerance)


def test_golden_a_input_side():
    w, phi, psi, x, b = draws(0, (3, 4), (4, 2), (2, 4), (2, 4), (3,))
    edit = {"input": LowRankMap(phi, psi, 0.5)}
    delta = delta_weight(w, edit)
    close(
        delta,
        [
            [-6.707433, 2.488581, 1.551869, -1.201727],
            [-3.198741, 0.890771, 1.016110, -0.860220],
            [-2.290179, 1.087233, 0.308374, -0.179922],
        ],
    )
    close(torch.linalg.norm(delta), 8.624818)
    edited_input = x + 0.5 * (x @ psi.T) @ phi.T
    close(edited_input @ w.T + b, [[-1.317143, -1.043023, -1.303013], [-0.821006, 1.713314, -1.187560]])
    factors = lora_factors(w, edit)
    close(factors.B, [[1.841994, -0.883285], [1.179813, -0.082251], [0.387097, -0.573597]])
    assert torch.equal(factors.A, psi)
    inner = torch.eye(2, dtype=torch.float64) + 0.5 * psi @ phi
    close(torch.linalg.det(inner), 0.583245)
    merged = w + delta
    restored = merged - 0.5 * merged @ phi @ torch.linalg.solve(inner, psi)  # Woodbury
    torch.testing.assert_close(restored, w, rtol=0, atol=1e-14)


def test_golden_b_output_side_with_bias():
    w, phi, psi, x, b = draws(1, (3, 4), (3, 2), (2, 3), (2, 4), (3,))
    edit = {"output": LowRankMap(phi, psi, 1.0)}
    weight_only = x @ (w + delta_weight(w, edit)).T + b
    close(weight_only, [[-0.239843, -6.483232, -4.549253], [0.522561, -1.719419, 1.091366]])
    change = delta_bias(b, edit)
    close(change, [0.654285, 2.320571, 1.618149])
    close(weight_only + change, [[0.414442, -4.162661, -2.931104], [1.176846, 0.601153, 2.709515]])
    close(
        lora_factors(w, edit).A,
        [[0.221802, -1.092734, -0.614617, 1.778493], [2.799985, -2.900645, 1.703196, -2.949759]],
    )


def test_golden_c_gradient_of_a_shared_generator():
    w1, w2, phi, psi, x = draws(2, (3, 3), (3, 3), (3, 1), (1, 3), (2, 3))
    phi.requires_grad_()
    psi.requires_grad_()
    y = x
    outputs = []
    for w in (w1, w2):
        y = (y + 2 * (y @ psi.T) @ phi.T) @ w.T
        outputs.append(y)
        y.retain_grad()
    loss = 0.5 * (y**2).sum()
    loss.backward()
    close(loss.detach(), 42.309695)
    close(phi.grad.flatten(), [51.251863, -38.670555, -142.023598])
    close(psi.grad.flatten(), [-140.588449, -56.406787, -79.403714])
    # The paper's formulas, with G = dL/dŴ of each layer.
    inputs = [x, outputs[0].detach()]
    by_layer = [out.grad.T @ read for out, read in zip(outputs, inputs)]
    torch.testing.assert_close(phi.grad, 2 * sum(w.T @ g for w, g in zip((w1, w2), by_layer)) @ psi.detach().T)
    torch.testing.assert_close(psi.grad, 2 * sum(phi.detach().T @ w.T @ g for w, g in zip((w1, w2), by_layer)))


def test_golden_d_both_sides():
    w, phi_i, psi_i, phi_o, psi_o, x = draws(3, (3, 4), (4, 1), (1, 4), (3, 1), (1, 3), (1, 4))
    edit = {"input": LowRankMap(phi_i, psi_i, 0.5), "output": LowRankMap(phi_o, psi_o, 0.5)}
    delta, factors = delta_weight(w, edit), lora_factors(w, edit)
    close(torch.linalg.norm(delta), 2.664252)
    assert torch.linalg.matrix_rank(delta) == 2 == factors.A.shape[0]
    close((x @ (w + delta).T).flatten(), [1.104188, 0.377400, 0.461148])
    close(factors.A[1], [0.123337, -0.937994, 2.152659, -1.672186])
    one = torch.eye(3, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    naive = (one[0] + 0.5 * phi_o @ psi_o) @ w @ (one[1] + 0.5 * phi_i @ psi_i) - w
    torch.testing.assert_close(factors.B @ factors.A, naive, rtol=0, atol=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_algebra_of_the_input_side(seed: int):
    w, p, phi, psi = draws(seed, (5, 4), (3, 5), (4, 2), (2, 4))
    edit = {"input": LowRankMap(phi, psi, 0.7)}

    def edited(weight: torch.Tensor) -> torch.Tensor:
        return weight + delta_weight(weight, edit)

    torch.testing.assert_close(edited(p @ w), p @ edited(w))
    torch.testing.assert_close(edited(3.0 * w), 3.0 * edited(w))
    torch.testing.assert_close(edited(torch.cat([w, 2 * w])), torch.cat([edited(w), edited(2 * w)]))
    u = torch.linalg.svd(w).U[:, -1]  # a left null vector stays one
    torch.testing.assert_close(u @ edited(w), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    pruned = w.clone()
    pruned[2] = 0
    assert not edited(pruned)[2].any()
    assert not delta_weight(torch.zeros_like(w), edit).any()


@pytest.mark.parametrize("seed", range(3))
def test_algebra_of_the_output_side(seed: int):
    w, phi, psi = draws(seed, (4, 6), (4, 2), (2, 4))
    edit = {"output": LowRankMap(phi, psi, 0.7)}
    edited = w + delta_weight(w, edit)
    v = torch.linalg.svd(w).Vh[-1]
    torch.testing.assert_close(edited @ v, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    pruned = w.clone()
    pruned[:, 1] = 0
    assert not (pruned + delta_weight(pruned, edit))[:, 1].any()


def test_parallel_is_a_plain_low_rank_update():
    w, up, down = draws(4, (3, 5), (3, 2), (2, 5))
    torch.testing.assert_close(delta_weight(w, {"parallel": LowRankMap(up, down, 2.0)}), 2.0 * up @ down)


def test_gauge_freedom_leaves_the_update():
    w, phi, psi, change = draws(5, (3, 4), (4, 2), (2, 4), (2, 2))
    plain = delta_weight(w, {"input": LowRankMap(phi, psi, 1.0)})
    turned = delta_weight(w, {"input": LowRankMap(phi @ change, torch.linalg.solve(change, psi), 1.0)})
    torch.testing.assert_close(plain, turned)
