from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.plotting.lens import lens_of

POINTS = torch.tensor([[0.0, 0.0], [0.6, 0.1], [-0.5, 0.2]], dtype=torch.float64)


@pytest.mark.parametrize("view", ["poincare", "equidistant"])
@pytest.mark.parametrize("kind", ["diagonal", "full", "riemannian"])
def test_borders_hold_their_share(kind: str, view: str, ax: Axes) -> None:
    ball = PoincareBall(0.8)
    distributions: dict[str, Any] = {
        "diagonal": hdist.WrappedNormal(POINTS, torch.tensor([0.5, 0.2]).double(), ball),
        "full": hdist.WrappedNormal(
            POINTS, manifold=ball, scale_tril=torch.tensor([[0.5, 0.0], [0.3, 0.2]]).double().expand(3, 2, 2)
        ),
        "riemannian": hdist.RiemannianNormal(POINTS, torch.tensor([[0.4], [0.8], [1.2]]).double(), ball),
    }
    distribution = distributions[kind]
    plotting.regions(POINTS, distribution, ball, levels=(0.3, 0.8), ax=ax, view=view, center="mean", label="posterior")
    lens = lens_of(ax)
    assert lens is not None
    for share, patches in zip((0.8, 0.3), ax.collections, strict=True):
        for i, path in enumerate(patches.get_paths()):
            z = lens.back(torch.from_numpy(path.vertices[:-1]))
            noise = distribution.to_noise(z.unsqueeze(1).expand(-1, 3, 2))[:, i].norm(dim=-1)
            torch.testing.assert_close(
                noise, torch.full_like(noise, math.sqrt(-2 * math.log(1 - share))), rtol=1e-6, atol=0
            )
    assert len(ax.get_legend_handles_labels()[1]) <= 1


def test_mistakes() -> None:
    ball = PoincareBall(1.0)
    with pytest.raises(ValueError, match="levels must lie between 0 and 1"):
        plotting.regions(POINTS, 0.1, ball, levels=(0.5, 1.0))
    with pytest.raises(ValueError, match=r"points must have shape \(N, 2\)"):
        plotting.regions(POINTS[None], 0.1, ball)
    with pytest.raises(ValueError, match="scales must be positive"):
        plotting.regions(POINTS, -0.1, ball)
    with pytest.raises(
        ValueError, match=r"on the space of the points, PoincareBall\(c=1.0\), got .* PoincareBall\(c=0.9"
    ):
        plotting.regions(POINTS, hdist.RiemannianNormal(POINTS, 0.1, PoincareBall(0.999)), ball)
