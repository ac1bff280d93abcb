"""Draws of points, laid on each other by isometries of their space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import ConstantCurvature, Manifold, Sphere
from pyro_hyperbolic.ops.special import dot, sinhc, squared_norm, unit
from pyro_hyperbolic.ops.tolerances import agreement_tolerance

_MOST = 1000  # draws that the common orientation is found from
_ROUNDS = 50

Sets = tuple[Tensor, Manifold]
"""Points ``(chains, draws, N, D)`` and their space."""


class Aligned(NamedTuple):
    """Draws that are laid on each other.

    :param points: of the shape of the draws.
    :param isometries: what they were moved by, each draw as a whole: ``"none"``, ``"rotations"`` about the origin and
        reflections, or ``"all"``.
    """

    points: Tensor
    isometries: str


@torch.no_grad()
def rotated(sites: Sequence[Sets]) -> Tensor:
    """The points of the first site, after the rotation or reflection about the origin that suits all sites best.

    Of a product, each factor is rotated by itself. Normal coordinates at the origin turn as vectors whatever the
    curvature, which may be another in each draw.
    """
    parts = [_coords_by_leaf(points, space) for points, space in sites]
    turned = []
    for leaf in zip(*parts, strict=True):
        rotation = _orientation(torch.cat([_directions(v, space) for v, space in leaf], -2))
        turned.append(leaf[0][0] @ rotation.mT)
    return sites[0][1].from_normal_coords(None, torch.cat(turned, -1))


@torch.no_grad()
def moved(sites: Sequence[Sets]) -> Tensor:
    """The points of the first site, after the isometry that suits the points of all sites of its space best.

    On a sphere that is a rotation of the space around it. Elsewhere the Fréchet mean of all points is moved to the
    origin, and the points are rotated there.
    """
    space = sites[0][1]
    points = torch.cat([points for points, _ in sites], -2)
    coords = torch.cat([_laid(v, leaf) for v, leaf in _coords_by_leaf(points, space)], -1)
    return space.from_normal_coords(None, coords[..., : sites[0][0].shape[-2], :])


def _laid(v: Tensor, leaf: ConstantCurvature) -> Tensor:
    if leaf.geodesics_close and not bool((torch.as_tensor(leaf.opposite(v)) >= 0).any()):
        # In the space around it a sphere needs no centre, which points all over it do not have.
        sphere = Sphere().with_curvatures(leaf.curvatures)
        around = sphere.from_normal_coords(None, v)
        return sphere.to_normal_coords(None, _mirrored(around @ _orientation(around).mT))
    centre = leaf.frechet_mean(leaf.from_normal_coords(None, v))
    v = leaf.recentre(leaf.squeeze().to_normal_coords(None, centre).unsqueeze(-2), v)
    return v @ _orientation(_directions(v, leaf)).mT


def _mirrored(x: Tensor) -> Tensor:
    """Vectors, all reflected so that their mean points to the origin of the sphere, where radii matter least."""
    mean = x.nanmean((0, 1, 2))
    normal = unit(mean) - torch.eye(len(mean), dtype=x.dtype, device=x.device)[0]
    return x - 2 * dot(x, unit(normal)).unsqueeze(-1) * unit(normal)


def _coords_by_leaf(points: Tensor, space: Manifold) -> list[tuple[Tensor, ConstantCurvature]]:
    v = space.to_normal_coords(None, points)
    leaves = [_checked(leaf) for leaf, _ in space.leaves(v.shape[-1])]
    return list(zip(v.split([dim for _, dim in space.leaves(v.shape[-1])], -1), leaves, strict=True))


def _checked(leaf: Manifold) -> ConstantCurvature:
    if not isinstance(leaf, ConstantCurvature):
        raise ValueError(
            f"draws can be aligned in spaces of constant curvature and their products, got {leaf!r}; its isometries are"
            " not known, so use samples."
        )
    return leaf


def _directions(v: Tensor, leaf: ConstantCurvature) -> Tensor:
    """Normal coordinates as they are, on a sphere with the length of the sine: its antipode has every direction."""
    return v * sinhc((leaf.opposite(v) * squared_norm(v)).clamp(max=0), -1)


def _orientation(v: Tensor) -> Tensor:
    """Rotations ``(chains, draws, d, d)`` that lay vectors ``(chains, draws, N, d)`` on their mean (Procrustes)."""
    sets = v.flatten(0, 1)
    sets = sets[sets.isfinite().all(-1).all(-1)]
    sets = sets[:: len(sets) // _MOST + 1]
    if len(sets) == 0:
        return torch.eye(v.shape[-1], dtype=v.dtype, device=v.device).expand(v.shape[:2] + (-1, -1))
    mean = sets[0]
    for _ in range(_ROUNDS):
        before, mean = mean, (sets @ _rotation(sets, mean).mT).mean(0)
        if bool((mean - before).norm() <= agreement_tolerance(v.dtype) * mean.norm()):
            break
    return _rotation(v, mean)


def _rotation(v: Tensor, target: Tensor) -> Tensor:
    """The orthogonal matrices that bring vectors nearest to those of ``target`` (Kabsch)."""
    overlap = target.mT @ v
    known = overlap.isfinite().all(-1).all(-1)[..., None, None]
    left, _, right = torch.linalg.svd(torch.where(known, overlap, 0.0))
    return left @ right
