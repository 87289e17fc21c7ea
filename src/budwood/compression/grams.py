"""H, the mean of x xᵀ over what a layer read in calibration: all that any method here needs to know of the text.

The squared error of a layer is a quadratic form in it: mean ‖W x − Ŵ x‖² = tr((W − Ŵ) H (W − Ŵ)ᵀ).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from budwood.errors import NotSupportedError

DAMPING_TRIES = 4  # each with ten times the damping of the one before


class Gram:
    """The mean of x xᵀ over tokens, summed in fp32 or, where x has it, in fp64.

    Args:
        width: d_in.
    """

    def __init__(self, width: int) -> None:
        self._width, self._sum, self.tokens = width, None, 0

    _sum: Tensor | None

    def add(self, x: Float[Tensor, "*tokens d_in"]) -> None:
        """Count what a layer reads."""
        rows = x.detach().reshape(-1, self._width)
        rows = rows if rows.dtype == torch.float64 else rows.float()
        if self._sum is None:
            self._sum = rows.new_zeros(self._width, self._width)
        self._sum.addmm_(rows.T, rows)
        self.tokens += len(rows)

    def mean(self) -> Float[Tensor, "d_in d_in"]:
        """Return H; zeros where nothing was read."""
        return torch.zeros(self._width, self._width) if self._sum is None else self._sum / self.tokens


class Watch:
    """Sums H for layers while a model runs; layers that read one tensor (q, k and v) share it."""

    def __init__(self) -> None:
        self._grams: dict[str, Gram] = {}
        self._read: list[tuple[Tensor, Gram]] = []  # of this pass; holding the tensors keeps `is` meaningful

    def of(self, name: str) -> Float[Tensor, "d_in d_in"]:
        """Return H of a layer.

        Raises:
            NotSupportedError: the layer was never called.
        """
        if name not in self._grams:
            raise NotSupportedError(
                f"{name} is never called as a layer",
                wanted="linear layers that are called",
                action="take --method rtn",
            )
        return self._grams[name].mean()

    def next_pass(self) -> None:
        """Say that another input begins."""
        self._read.clear()

    @contextlib.contextmanager
    def on(self, layers: Mapping[str, nn.Module], widths: Mapping[str, int]) -> Iterator[Watch]:
        """Watch layers until the block ends."""
        hooks = [layer.register_forward_pre_hook(self._see(name, widths[name])) for name, layer in layers.items()]
        try:
            yield self
        finally:
            self._read.clear()
            for hook in hooks:
                hook.remove()

    def _see(self, name: str, width: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            shared = next((gram for x, gram in self._read if x is inputs[0]), None)
            if shared is not None:
                self._grams.setdefault(name, shared)
                return
            gram = self._grams.setdefault(name, Gram(width))
            gram.add(inputs[0])
            self._read.append((inputs[0], gram))

        return see


def relative_error(
    weight: Float[Tensor, "d_out d_in"],
    compressed: Float[Tensor, "d_out d_in"],
    gram: Float[Tensor, "d_in d_in"] | None = None,
) -> float:
    """Return ‖W X − Ŵ X‖ / ‖W X‖ over the calibration tokens X; without H, ‖W − Ŵ‖ / ‖W‖. 0 where W X is 0."""

    def norm(matrix: Tensor) -> float:
        product = matrix if gram is None else matrix @ gram
        return (product * matrix).sum().clamp(min=0).sqrt().item()

    whole = norm(weight)
    return norm(weight - compressed) / whole if whole else 0.0


def inverse_factor(gram: Float[Tensor, "d_in d_in"], damping: float) -> Float[Tensor, "d_in d_in"]:
    """Return C, upper triangular, with Cᵀ C = (H + λ I)⁻¹; λ is `damping` times the mean of H's diagonal.

    C_jj² is the inverse's entry (j, j) once the inputs before j are settled, and row j, over C_jj, says how the inputs
    after it make up for a change of j (GPTQ, section 3.3). If H is so ill-conditioned that fp32 cannot factor it, λ is
    raised tenfold, up to three times. Where H is 0 nothing makes up for anything: λ is 1.

    Raises:
        NotSupportedError: H holds NaN or infinities, or is no Gram matrix.
    """
    level = gram.diagonal().mean()
    unit = torch.where(level > 0, damping * level, torch.ones_like(level))
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for attempt in range(DAMPING_TRIES):
        factor, failed = torch.linalg.cholesky_ex(gram + 10**attempt * unit * identity)
        if failed:
            continue
        upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
        if not failed and torch.isfinite(upper).all():
            return upper
    raise NotSupportedError(
        "what the layers read in calibration is not finite, or cannot be inverted",
        wanted="finite activations",
        action="calibrate in float32, on more text, or with a higher --damping",
    )
