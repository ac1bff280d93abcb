"""The isometry that aligns two embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_hyperbolic.analysis.inputs import checked_space
from pyro_hyperbolic.analysis.widening import plain, widened
from pyro_hyperbolic.geometry import ConstantCurvature, Manifold

_STEPS = 200


@dataclass(frozen=True)
class Alignment:
    r"""The isometry :math:`x \mapsto \exp_t(R \log_s x)`, in the frames carried from the origin to ``s`` and ``t``.

    Every isometry of a space of constant curvature can be written this way, for any ``s``.

    :param manifold: the space, with one curvature.
    :param source: the point ``s``, ``(D,)``.
    :param target: where it goes, the point ``t``.
    :param rotation: the orthogonal matrix ``R``, ``(d, d)``; with determinant -1 it is a reflection.
    :param error: the root mean square distance between the aligned points.
    """

    manifold: Manifold
    source: Tensor
    target: Tensor
    rotation: Tensor
    error: float

    def __call__(self, x: Tensor) -> Tensor:
        """The images of points ``(..., D)``, in their dtype."""
        wide = widened(x, self.manifold)
        return _moved(self.manifold, wide, self.source, self.target, self.rotation).to(x)


@torch.no_grad()
def procrustes(x: Tensor, y: Tensor, manifold: Manifold, reflections: bool = True) -> Alignment:
    r"""The isometry :math:`g` with the least :math:`\sum_i d(g x_i, y_i)^2`.

    Distances determine an embedding only up to an isometry, so align two embeddings before you compare them. The search
    starts from the Fréchet means of both sets and the rotation that best fits their normal coordinates (Kabsch's),
    which is exact if the sets are isometric. It continues with L-BFGS over all isometries. If the sets differ a lot,
    the sum may have further local minima. Tabaghi and Dokmanić, *On Procrustes analysis in hyperbolic space* (2021),
    treat the centred problem. The arithmetic is float64.

    :param x: the points to move, ``(N, D)``.
    :param y: where they should go, ``(N, D)``.
    :param manifold: a space that is not a product, with one curvature.
    :param reflections: whether the isometry may change the orientation.

    >>> from pyro_hyperbolic import PoincareBall
    >>> ball = PoincareBall(1.0)
    >>> y = torch.tensor([[0.3, 0.1], [-0.5, 0.2], [0.0, 0.7]], dtype=torch.float64)
    >>> x = ball.mobius_add(torch.tensor([0.2, -0.6], dtype=torch.float64), y.flip(-1))
    >>> align = procrustes(x, y, ball)
    >>> torch.allclose(align(x), y)
    True
    >>> bool(align.rotation.det() < 0)
    True
    """
    space = _checked(x, y, manifold)
    x, y = widened(x, space), widened(y, space)
    source, target = space.frechet_mean(x), space.frechet_mean(y)
    u, v = space.to_normal_coords(source, x), space.to_normal_coords(target, y)
    left, _, right = torch.linalg.svd(v.mT @ u)
    best = left @ right
    flip = torch.ones_like(best[0])
    flip[-1] = -1  # along the axis that this costs least
    starts = [best, (left * flip) @ right]
    if not reflections:
        starts = [r for r in starts if r.det() > 0]
    found = [_refined(space, x, y, source, target, rotation) for rotation in starts]
    return min(found, key=lambda alignment: alignment.error)


def _moved(space: Manifold, x: Tensor, source: Tensor, target: Tensor, rotation: Tensor) -> Tensor:
    return space.from_normal_coords(target.expand_as(x), space.to_normal_coords(source, x) @ rotation.mT)


def _refined(space: Manifold, x: Tensor, y: Tensor, source: Tensor, target: Tensor, rotation: Tensor) -> Alignment:
    """The nearest local minimum: the target moves by normal coordinates, the rotation by a skew matrix."""
    dim = len(rotation)
    rows, columns = torch.triu_indices(dim, dim, 1)
    step = torch.zeros(dim + len(rows), dtype=x.dtype, requires_grad=True)

    def isometry() -> tuple[Tensor, Tensor]:
        skew = torch.zeros(dim, dim, dtype=x.dtype).index_put((rows, columns), step[dim:])
        return space.from_normal_coords(target, step[:dim]), torch.linalg.matrix_exp(skew - skew.mT) @ rotation

    def loss() -> Tensor:
        return space.dist(_moved(space, x, source, *isometry()), y).square().mean()

    start = float(loss())
    optimiser = torch.optim.LBFGS([step], max_iter=_STEPS, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        with torch.enable_grad():
            optimiser.zero_grad()
            value = loss()
            value.backward()
        return value

    optimiser.step(closure)
    end = float(loss())
    if not end < start:  # the start was exact, and rounding is all that is left
        step.zero_()
        end = start
    moved, turned = (t.detach() for t in isometry())
    return Alignment(space, source, moved, turned, end**0.5)


def _checked(x: Tensor, y: Tensor, manifold: Manifold) -> Manifold:
    space = plain(checked_space("procrustes: manifold", manifold))
    if x.dim() != 2 or x.shape != y.shape or len(x) == 0:
        raise ValueError(
            f"procrustes: x and y must be points of the same shape (N, D), in the same order, got {tuple(x.shape)} and"
            f" {tuple(y.shape)}."
        )
    if not isinstance(space, ConstantCurvature):
        # Elsewhere a rotation of normal coordinates need not be an isometry.
        raise ValueError(
            f"procrustes: manifold must be of constant curvature, and no product, got {manifold!r}; align factor by"
            " factor."
        )
    for name, points in (("x", x), ("y", y)):
        if not bool(space.contains(points.detach().cpu()).all()):
            raise ValueError(f"procrustes: {name} must be points of {manifold!r}; use the manifold that made them.")
    return space
