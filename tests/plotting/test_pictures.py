from __future__ import annotations

import pytest
import torch
from matplotlib.axes import Axes

from pyro_hyperbolic import plotting


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 1, 4, 3)])
def test_grid(shape: tuple[int, ...], ax: Axes) -> None:
    batch = torch.rand(shape, requires_grad=True)
    assert plotting.images(batch, columns=2, ax=ax) is ax
    grid = ax.images[0].get_array()
    assert grid.shape == (3 * 4 + 2, 2 * 3 + 1)
    flat = batch.detach().double().reshape(5, 4, 3)
    assert grid[5:9, 4:7].tolist() == flat[3].tolist()
    assert grid.mask[4].all()  # between two rows
    assert grid.mask[10:, 4:].all()  # the empty place
    assert ax.images[0].get_clim() == (0, 1)


def test_square_by_default() -> None:
    assert plotting.images(torch.rand(9, 2, 2)).images[0].get_array().shape == (8, 8)
    assert plotting.images(torch.rand(1, 2, 2), columns=7).images[0].get_array().shape == (2, 2)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"batch must have shape .* got \(4, 784\); reshape"):
        plotting.images(torch.rand(4, 784))
    with pytest.raises(ValueError, match=r"got \(4, 3, 8, 8\)"):
        plotting.images(torch.rand(4, 3, 8, 8))
    with pytest.raises(ValueError, match="columns must be a positive integer, got 0"):
        plotting.images(torch.rand(4, 8, 8), columns=0)
