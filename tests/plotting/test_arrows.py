from __future__ import annotations

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.quiver import Quiver

from pyro_hyperbolic import PoincareBall, plotting

X = torch.tensor([0.1, -0.2], dtype=torch.float64)
V = torch.tensor([[0.2, 0.1], [-0.1, 0.3], [0.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("c", [0.0, 0.1, 1.0, 5.0])
def test_arrows_are_the_vectors(c: float, ax: Axes) -> None:
    plotting.tangent(X, V, PoincareBall(c), ax, color="green")
    (arrows,) = ax.collections
    assert isinstance(arrows, Quiver)
    assert arrows.XY.tolist() == X.expand(3, 2).tolist()
    assert torch.stack([torch.as_tensor(arrows.U), torch.as_tensor(arrows.V)], -1).tolist() == V.tolist()
    assert (arrows.angles, arrows.scale_units, arrows.scale) == ("xy", "xy", 1)
    if c == 0:
        assert ax.get_xlim()[1] >= 0.3
        assert ax.get_ylim()[1] >= 0.1


@pytest.mark.parametrize("c", [0.0, 0.1, 1.0, 5.0])
def test_geodesics_lead_to_the_exponential_map(c: float, ax: Axes) -> None:
    ball = PoincareBall(c)
    plotting.exponential_map(X, V, ball, ax, color="red")
    curves, _, ends, starts = ax.collections
    assert isinstance(curves, LineCollection)
    assert isinstance(ends, PathCollection)
    last = torch.stack([torch.as_tensor(segment)[-1] for segment in curves.get_segments()])
    torch.testing.assert_close(last, ball.expmap(X, V))
    torch.testing.assert_close(torch.as_tensor(ends.get_offsets().data), ball.expmap(X, V))
    assert starts.get_offsets().tolist() == X.expand(3, 2).tolist()
    assert ends.get_facecolor().tolist() == curves.get_edgecolor().tolist()
