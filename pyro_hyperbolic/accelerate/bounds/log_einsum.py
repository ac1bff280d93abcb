"""Sums of products in logarithms, as a backend of opt_einsum: that of Pyro in a form that ``vmap`` can read.

Pyro's (``pyro.ops.einsum.torch_log``) takes the logarithm by an ``autograd.Function`` that function transforms refuse.
"""

from __future__ import annotations

import string

import torch
from pyro.ops.einsum.util import Tensordot
from torch import Tensor


def transpose(a: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The dimensions of a tensor in another order."""
    return a.permute(axes)


def einsum(equation: str, *operands: Tensor) -> Tensor:
    r""":math:`\log \sum \prod_k e^{x_k}` of operands :math:`x_k`.

    >>> x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    >>> torch.allclose(einsum("ab,a->b", x, x[0]), (x + x[:1].T).logsumexp(0))
    True
    """
    # opt_einsum has more symbols than torch.
    symbols = dict(zip(sorted(set(equation) - set(",->")), string.ascii_letters, strict=False))
    *inputs, output = "".join(symbols.get(s, s) for s in equation).replace("->", ",").split(",")
    if inputs == [output]:
        return operands[0].clone()
    factors, shifts = [], []
    for dims, operand in zip(inputs, operands, strict=True):
        # The largest term, without which the exponentials would overflow.
        shift = operand.detach()
        for axis, dim in enumerate(dims):
            if dim not in output:
                shift = shift.amax(axis, keepdim=True)
        # Where all terms are 0 their logarithms are -inf, and a difference of these would be nan.
        shift = shift.clamp(min=torch.finfo(shift.dtype).min)
        factors.append((operand - shift).exp())
        shifts.append(_aligned(shift, dims, output))
    total = torch.einsum(",".join(inputs) + "->" + output, *factors)
    return _log(total) + sum(shifts)


tensordot = Tensordot(einsum)


def _aligned(shift: Tensor, dims: str, output: str) -> Tensor:
    """A tensor with size 1 in the dimensions that ``output`` lacks, in the order of ``output``."""
    there = [dims.find(dim) for dim in output]
    gone = [axis for axis, dim in enumerate(dims) if dim not in output]
    moved = shift.permute([axis for axis in there if axis >= 0] + gone)
    sizes = iter(moved.shape)
    return moved.reshape([next(sizes) if axis >= 0 else 1 for axis in there])


def _log(x: Tensor) -> Tensor:
    """The logarithm, with a slope that is bounded at 0."""
    value = x.detach()
    return value.log() + (x - value) / value.clamp(min=torch.finfo(x.dtype).eps)
