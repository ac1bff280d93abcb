from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.path import Path
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.plotting.lens import lens_of

CENTRES = torch.tensor([[0.7, 0.0], [-0.3, 0.5]], dtype=torch.float64)
LIMIT = (-6.0, 6.0, -6.0, 6.0)


def inside(path: Path, ax: Axes, z: Tensor) -> Tensor:
    """Which points lie inside of a closed contour, or of one of its pieces."""
    lens = lens_of(ax)
    assert lens is not None
    places = lens(z).numpy()
    return torch.stack([torch.from_numpy(piece.contains_points(places)) for piece in path._iter_connected_components()])


@pytest.mark.parametrize("options", [{}, {"view": "klein"}, {"view": "equidistant", "extent": LIMIT}], ids=str)
def test_regions_hold_their_share_and_are_the_smallest(options: dict[str, Any], ax: Axes) -> None:
    ball = PoincareBall(1.0)
    parts = hdist.WrappedNormal(CENTRES, 0.4, ball)

    def log_density(z: Tensor) -> Tensor:
        return parts.log_prob(z.unsqueeze(-2)).logsumexp(-1) + 123.0  # up to a constant

    plotting.credible_regions(log_density, ball, (0.5, 0.9), ax, center=CENTRES.mean(0), **options)
    (lines,) = ax.collections
    torch.manual_seed(0)
    sample = parts.sample((4000,)).flatten(0, 1)
    for level, path in zip((0.9, 0.5), lines.get_paths(), strict=True):
        held = inside(path, ax, sample)
        assert held.any(0).double().mean().item() == pytest.approx(level, abs=0.02)
        assert len(held) == 2  # pieces
        heights = log_density(sample)
        # No point outside is denser than one inside, but for the width of a cell.
        assert heights[held.any(0)].quantile(0.01) > heights[~held.any(0)].quantile(0.99) - 0.1


def test_areas(ax: Axes) -> None:
    distribution = hdist.WrappedNormal(CENTRES[0], 0.4, PoincareBall(1.0))
    plotting.credible_regions(distribution.log_prob, PoincareBall(1.0), (0.9,), ax, resolution=64, filled=True)
    (areas,) = ax.collections
    assert len(areas.get_facecolor()) == 1
    assert 0 < areas.get_facecolor()[0, 3] < 1


def test_mistakes() -> None:
    ball = PoincareBall(1.0)
    distribution = hdist.WrappedNormal(CENTRES, 0.4, ball)
    for options, message in (
        ({"levels": (0.5, 1.0)}, "levels must lie between 0 and 1"),
        ({"levels": ()}, "levels must lie between 0 and 1"),
        ({"resolution": 1}, "resolution must be an integer of at least 2, got 1"),
        ({"extent": (1, 2)}, r"extent must be four numbers, .* got \(1, 2\)"),
        ({"view": "equidistant"}, "extent must be given in the equidistant view"),
        (
            {"log_density": lambda z: distribution.log_prob(z.unsqueeze(-2))},
            "log_density must return one value per point",
        ),
        ({"log_density": lambda z: z[:, 0] * math.nan}, "log_density must be finite"),
        ({"log_density": CENTRES}, "log_density must be a function of points, got Tensor; pass for example"),
        ({"log_density": distribution}, r"must be a function of points, got WrappedNormal; .* distribution.log_prob"),
        (
            {"log_density": hdist.WrappedNormal(CENTRES[0], 0.4, PoincareBall(0.5)).log_prob},
            r"log_density must take points of PoincareBall\(c=1.0\), got that of .* on PoincareBall\(c=0.5\)",
        ),
    ):
        arguments: dict[str, Any] = {"log_density": lambda z: -ball.dist0(z), "resolution": 8} | options
        with pytest.raises(ValueError, match=message):
            plotting.credible_regions(manifold=ball, **arguments)
