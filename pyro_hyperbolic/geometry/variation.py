"""How the coordinates of a point change as the point that they are taken at moves."""

from __future__ import annotations

from torch import Tensor

from pyro_hyperbolic.ops.special import dot, sinhc, squared_norm, tanhc, unit


def base_point_variation(m: Tensor, v: Tensor, dm: Tensor, c: float | Tensor, sign: int = 1) -> Tensor:
    r"""The derivative of :math:`\log_x \exp_y(v)` at :math:`y = x`, in the direction ``dm`` of ``y``.

    All vectors are normal coordinates, ``v`` and the result at ``x``, ``m`` and ``dm`` those of ``x`` and of its
    move at the origin; they are the same in every chart. The move has the components :math:`\epsilon` in the frame at
    ``x``; a translation by it carries ``v`` along the geodesics of a Killing field, and the frame turns
    against the translated one as it is carried from the origin:

    .. math::

        \epsilon = dm_\parallel + \frac{\sinh(\sqrt c\,|m|)}{\sqrt c\,|m|}\, dm_\perp, \qquad
        dv = \epsilon_\parallel + \sqrt c\,|v| \coth(\sqrt c\,|v|)\, \epsilon_\perp
        + c\,(\langle b, v\rangle \epsilon - \langle \epsilon, v\rangle b)

    with :math:`\parallel` and :math:`\perp` along ``m`` in the first and along ``v`` in the second equation, and
    :math:`b = \tanh(\sqrt c\,|m|/2)/\sqrt c` in direction ``m``, the point of the ball. Exact to rounding
    however far ``x`` is from the origin, where the logarithm map loses :math:`e^{\sqrt c\,|m|}`.

    :param c: minus the curvature, which may be negative if ``sign`` says so (see :mod:`~pyro_hyperbolic.ops.special`).

    >>> v = torch.tensor([0.3, -1.0])
    >>> base_point_variation(torch.zeros(2), v, torch.tensor([0.6, -2.0]), 1.0)
    tensor([ 0.6000, -2.0000])
    """
    move = _stretch_across(m, dm, sinhc(c * squared_norm(m), sign))
    b = m * (0.5 * tanhc(c * squared_norm(m) / 4, sign))
    turn = c * (dot(b, v).unsqueeze(-1) * move - dot(move, v).unsqueeze(-1) * b)
    return _stretch_across(v, move, 1 / tanhc(c * squared_norm(v), sign)) + turn


def _stretch_across(direction: Tensor, u: Tensor, factor: Tensor) -> Tensor:
    """``u`` with the part across ``direction`` multiplied by ``factor``."""
    n = unit(direction)
    along = dot(n, u).unsqueeze(-1) * n
    return along + factor * (u - along)
