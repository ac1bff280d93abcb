from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from pyro_hyperbolic import PoincareBall, plotting


def test_an_isometric_copy_looks_the_same() -> None:
    ball = PoincareBall(0.6)
    first = ball.expmap0(0.7 * torch.randn(12, 2, dtype=torch.float64))
    second = ball.mobius_add(torch.tensor([0.3, 0.5]).double(), first.flip(-1))
    left, right = plotting.compare(
        first, second, ball, labels=torch.arange(12) % 2, edges=torch.tensor([[0, 1]]), view="equidistant", center=3
    )
    drawn = [torch.cat([torch.tensor(d.get_offsets().tolist()) for d in ax.collections[1:]]) for ax in (left, right)]
    torch.testing.assert_close(drawn[0], drawn[1], rtol=0, atol=1e-5)
    assert left.get_legend() is None
    assert right.get_legend() is not None
    assert right.get_title().startswith("second, ")


def test_given_axes_and_titles() -> None:
    ball = PoincareBall(1.0)
    first = ball.expmap0(torch.randn(9, 2, dtype=torch.float64))
    second = ball.expmap0(torch.randn(9, 2, dtype=torch.float64))
    _, axes = plt.subplots(1, 2)
    found = plotting.compare(first, second, ball, axes=axes, titles=("SVI", "NUTS"))
    assert found == tuple(axes)
    apart = float(axes[1].get_title().removeprefix("NUTS, ").removesuffix(" apart"))
    assert apart > 0.1
    with pytest.raises(ValueError, match="of the same shape"):
        plotting.compare(first, second[:5], ball)
