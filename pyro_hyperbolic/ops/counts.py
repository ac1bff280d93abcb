r"""The logarithm of the negative binomial mass function, and its derivatives, for any number of trials.

With the mean :math:`m`, :math:`q = m/r`, :math:`u = x/r`, the remainder :math:`s` of Stirling's formula and its slope
:math:`s'`,

.. math::

    \log p &= (r + x - \tfrac12)\log(1 + u) - x + s(r + x) - s(r) - \log x! + x\log m - (r + x)\log(1 + q), \\
    \frac{\partial\log p}{\partial\log m} &= \frac{x - m}{1 + q}, \qquad
    \frac{\partial\log p}{\partial\log r}
    = r\,[l(u) - l(q) + s'(r + x) - s'(r)] + \frac{x}{2(r + x)} + (x - m) \frac{q}{1 + q}

with :math:`l(u) = \log(1 + u) - u`. For large :math:`r` no term is larger than those of the Poisson distribution, and
every term of the last derivative is of its size. As torch would differentiate the first line, it would be a difference
of terms that are :math:`r/m` times as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pyro_hyperbolic.ops.checks import inspectable
from pyro_hyperbolic.ops.gamma import SMALL, log1p_less, log_gamma_ratio, stirling, stirling_slope

# Numbers that are worked on at a time on a CPU, so that what is made on the way stays in the cache.
_PART = 1 << 16


def log_mass(x: Tensor, log_mean: Tensor, log_r: Tensor) -> Tensor:
    r""":math:`\log p(x)`; the three broadcast, and are float64."""
    if torch.compiler.is_compiling():
        # dynamo does not trace a derivative in forward mode, nor an autograd function under vmap.
        return _plain_log_mass(x, log_mean, log_r)
    # As views, which a torch function mode sees being made: it does not see an autograd function (DReG_ELBO has one).
    return _LogMass.apply(x.view_as(x), log_mean.view_as(log_mean), log_r.view_as(log_r))


def _plain_log_mass(x: Tensor, log_mean: Tensor, log_r: Tensor) -> Tensor:
    """The same by operations that torch differentiates well, of which there are many more."""
    r, ratio = log_r.exp(), log_mean - log_r
    near = ratio < math.log(SMALL)
    q, mean = (torch.where(near, t, -math.inf).exp() for t in (ratio, log_mean))
    series = mean + x * q + (r + x) * log1p_less(q)  # (r + x) log(1 + q)
    rest = torch.where(near, -series, (r + x) * logsigmoid(-ratio))
    return log_gamma_ratio(r, x) - torch.lgamma(1 + x) + x * log_mean + rest


class _LogMass(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, log_mean: Tensor, log_r: Tensor) -> Tensor:
        # Many means may share one count: what depends on the count alone is worked out once.
        return _in_parts(_gammas, x, log_r) + _in_parts(_rest, x, log_mean, log_r)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        return tuple(
            (grads[0] * _in_parts(slope, *inputs)).sum_to_size(value.shape) if needed else None
            for slope, value, needed in zip(_SLOPES, inputs, ctx.needs_input_grad, strict=True)
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        inputs = ctx.saved_tensors
        out = torch.zeros_like(inputs[0] * inputs[1] * inputs[2])
        for slope, tangent in zip(_SLOPES, tangents, strict=True):
            if tangent is not None:
                out = out + tangent * _in_parts(slope, *inputs)
        return out


def _in_parts(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """A function of tensors that broadcast; on a CPU some rows at a time."""
    shape = torch.broadcast_shapes(*[t.shape for t in inputs])
    plain = torch.is_grad_enabled() or not inspectable(*inputs) or inputs[0].device.type != "cpu"
    if plain or math.prod(shape) <= _PART:
        return function(*inputs)
    # What all rows share stays one row.
    wide = [t if t.numel() == shape[-1] == t.shape[-1] else t.expand(shape) for t in inputs]
    rows = [t.reshape(-1, shape[-1]) for t in wide]
    size, count = max(1, _PART // shape[-1]), math.prod(shape[:-1])
    parts = [function(*[t if len(t) == 1 else t[i : i + size] for t in rows]) for i in range(0, count, size)]
    return torch.cat(parts).reshape(shape)


def _gammas(x: Tensor, log_r: Tensor) -> Tensor:
    r = log_r.exp()
    return (r + x - 0.5) * torch.log1p(x / r) - x + stirling(r + x) - stirling(r) - torch.lgamma(1 + x)


def _rest(x: Tensor, log_mean: Tensor, log_r: Tensor) -> Tensor:
    return x * log_mean + (log_r.exp() + x) * logsigmoid(log_r - log_mean)


def _slope_in_x(x: Tensor, log_mean: Tensor, log_r: Tensor) -> Tensor:
    r = log_r.exp()
    gammas = torch.log1p(x / r) + stirling_slope(r + x) - 0.5 / (r + x) - torch.digamma(1 + x)
    return gammas + log_mean + logsigmoid(log_r - log_mean)


def _slope_in_log_mean(x: Tensor, log_mean: Tensor, log_r: Tensor) -> Tensor:
    ratio = log_mean - log_r
    return x * torch.sigmoid(-ratio) - log_r.exp() * torch.sigmoid(ratio)


def _slope_in_log_r(x: Tensor, log_mean: Tensor, log_r: Tensor) -> Tensor:
    r, ratio = log_r.exp(), log_mean - log_r
    share = torch.sigmoid(ratio)
    u, q = x / r, ratio.exp()
    near_u, near_q = u < SMALL, q < SMALL
    # r l(u), and -r l(q) - m q / (1 + q): as they stand where the arguments are small.
    of_x = torch.where(near_u, r * log1p_less(torch.where(near_u, u, 0.0)), r * torch.log1p(u) - x)
    small = torch.where(near_q, q, 0.0)
    of_mean = torch.where(near_q, -r * (log1p_less(small) + small * share), r * (share + logsigmoid(-ratio)))
    return of_x + of_mean + r * (stirling_slope(r + x) - stirling_slope(r)) + 0.5 * x / (r + x) + x * share


_SLOPES = (_slope_in_x, _slope_in_log_mean, _slope_in_log_r)
