"""Inner and matrix products of geometry, which are never taken in less than the precision of their factors.

Autocast lowers products of float32 matrices to half precision, and TF32, where a program allows it, to ten bits.
Neither touches float64, and these products are thin: they cost memory traffic, not arithmetic. So they are taken in
float64 and rounded to the dtype of their factors. The flags of torch, which are global, are left as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.ops.checks import inspectable

# Elements of a float64 product that exist at a time, before they are rounded.
_CHUNK = 1 << 20
_FEW = 4  # unknowns of a system that is solved number by number


def einsum(equation: str, *factors: Tensor) -> Tensor:
    """:func:`torch.einsum` in float64, rounded to the dtype of the factors.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     einsum("i,i->", torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1e-6])).dtype
    torch.float32
    """
    return torch.einsum(equation, *(factor.double() for factor in factors)).to(factors[0].dtype)


def solve_lower(tril: Tensor, v: Tensor) -> Tensor:
    """The solutions of lower triangular systems ``(..., n, n)`` for vectors ``(..., n)``, which broadcast.

    Small ones number by number: many vectors and one matrix are then not as many matrices.

    >>> solve_lower(torch.tensor([[2.0, 0.0], [1.0, 4.0]]), torch.tensor([[2.0, 5.0], [4.0, 2.0]]))
    tensor([[1., 1.],
            [2., 0.]])
    """
    if v.shape[-1] > _FEW:
        return torch.linalg.solve_triangular(tril, v.unsqueeze(-1), upper=False).squeeze(-1)
    solved: list[Tensor] = []
    for i, rest in enumerate(v.unbind(-1)):
        for j, x in enumerate(solved):
            rest = rest - tril[..., i, j] * x
        solved.append(rest / tril[..., i, i])
    return torch.stack(solved, -1)


def rounded_dot(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """Inner products over the last dimension, rounded to a narrower dtype; all pairs of ``(..., 1, K)`` and ``(M, K)``.

    Rows are taken a part at a time, so that the wide product of all pairs never exists as a whole.
    """
    if y.dim() != 2 or x.dim() < 2 or x.shape[-2] != 1:
        return torch.einsum("...k,...k->...", x, y).to(dtype)
    rows = x.squeeze(-2)
    # A graph would have one node for each part, and a symbolic size would become a number.
    if not inspectable(x, y) or torch.jit.is_tracing() or rows[..., 0].numel() * y.shape[0] <= _CHUNK:
        return (rows @ y.mT).to(dtype)
    parts = rows.flatten(0, -2).split(max(1, _CHUNK // y.shape[0]))
    return torch.cat([(part @ y.mT).to(dtype) for part in parts]).unflatten(0, rows.shape[:-1])
