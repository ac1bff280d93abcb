r"""Distances to hyperplanes, for every chart: from ball coordinates and the conformal factor, which a chart knows best.

With :math:`\mu_x = 1/(1 - c|x|^2)`, half the conformal factor, :math:`s = x - p` and the unit normal :math:`\hat a`,

.. math::

    \frac{\sinh(\sqrt{c}\,d)}{\sqrt c} = t
    = 2\mu_x \big( \langle s, \hat a\rangle - c\,|s|^2 \mu_p \langle p, \hat a\rangle \big)
    = \langle \mu_x x, w\rangle - b\,(2\mu_x - 1), \qquad
    b = 2 \mu_p \langle p, \hat a\rangle, \quad w = 2 \hat a + 2 c\, b\, p .

The second form is one matrix product of ``d + 1`` columns for all points and planes, but where both are far out its
terms are larger than their sum by :math:`\mu_p`; the first form loses no more than the coordinates do. Shapes and
dtype decide which is taken, never the values, so that the choice costs nothing and holds in every graph:

* one plane for each point (``x`` and ``p`` of one shape): the first form, from the differences;
* all pairs in float32: the second form in float64, whose 53 bits hold the loss up to a distance of 20 from the origin,
  beyond the end of a float32 ball. A float64 product is touched by neither autocast nor TF32;
* all pairs in float64: the first form, with :math:`|s|^2` by :func:`~pyro_hyperbolic.ops.pairs.broadcast_square` and
  :math:`\langle x, \hat a\rangle - \langle p, \hat a\rangle` for the inner product, whose loss is that of the gap.

All pairs take O(N M) memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.ops.pairs import broadcast_square
from pyro_hyperbolic.ops.products import rounded_dot
from pyro_hyperbolic.ops.special import dot, inverse_norm, squared_norm, unit

Curvature = float | Tensor


def needs_double(x: Tensor, p: Tensor) -> bool:
    """Whether the arguments are to be given in float64."""
    return x.dtype == torch.float32 and x.shape[:-1] != p.shape[:-1]


def plane_sinh(
    x: Tensor, mu_x: Tensor, p: Tensor, mu_p: Tensor, normal: Tensor, c: Curvature, dtype: torch.dtype
) -> Tensor:
    """The signed :math:`t`, in ``dtype``.

    :param x: points of the ball ``(..., d)``, and :math:`\\mu_x` as ``(..., 1)``.
    :param p: points on the planes.
    :param normal: normals at ``p``, of any length; one of length 0 gives 0.
    :returns: ``(...)`` as points and planes broadcast.
    """
    # Divisions are slow in float64, and where the result is float32 the last bit is not worth one for every number.
    direction = unit(normal) if x.dtype == dtype else normal * inverse_norm(normal)
    offset = (p * direction).sum(-1, keepdim=True)
    if x.shape[:-1] == p.shape[:-1]:
        s = x - p
        along = (s * direction).sum(-1, keepdim=True)
        return (2 * mu_x * (along - c * squared_norm(s) * mu_p * offset)).squeeze(-1)
    b = 2 * mu_p * offset
    if x.dtype != dtype:
        # Column after column in memory: kernels go along the planes.
        columns = [t.movedim(-1, 0) for t in (2 * direction + 2 * c * b * p, -b)]
        point = torch.cat([mu_x * x, 2 * mu_x - 1], -1)
        return rounded_dot(point, torch.cat(columns).movedim(0, -1), dtype)
    along = 2 * (dot(x, direction) - offset.squeeze(-1))
    return (along - broadcast_square(x, p) * (c * b).squeeze(-1)) * mu_x.squeeze(-1)
