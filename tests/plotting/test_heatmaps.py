from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from matplotlib.axes import Axes
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, plotting

DISTRIBUTIONS = {"riemannian": hdist.RiemannianNormal, "wrapped": hdist.WrappedNormal}


def values(ax: Axes) -> tuple[Tensor, Tensor, float]:
    """The drawn values ``(N, N)``, where they are ``(N, N, 2)``, and the area of a cell."""
    image = ax.images[-1]
    grid = torch.as_tensor(image.get_array().filled(math.nan))
    left, right, bottom, top = image.get_extent()
    steps = (torch.arange(len(grid), dtype=torch.float64) + 0.5) / len(grid)
    x, y = left + (right - left) * steps, bottom + (top - bottom) * steps
    nodes = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
    return grid, nodes, (right - left) * (top - bottom) / grid.numel()


@pytest.mark.parametrize("c", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_density_has_its_peak_at_the_mode_and_integrates_to_one(
    name: str, dtype: torch.dtype, c: float, ax: Axes
) -> None:
    ball, radius = PoincareBall(c), 1 / math.sqrt(c)
    distribution = DISTRIBUTIONS[name](torch.tensor([0.3 * radius, -0.4 * radius], dtype=dtype), 0.4 * radius, ball)
    plotting.density(distribution, ax, resolution=256)
    grid, nodes, area = values(ax)
    peak = nodes.reshape(-1, 2)[grid.argmax()]
    assert float((peak - distribution.loc).norm()) < 2 * math.sqrt(area)
    assert float(grid.max()) == pytest.approx(float(distribution.log_prob(distribution.loc).exp()), rel=0.01)
    inside = ball.contains(nodes)
    mass = (grid * ball.log_volume_element(nodes).exp())[inside].sum() * area
    assert float(mass) == pytest.approx(1, abs=2e-3)

    plotting.density(distribution, ax, lebesgue=True, resolution=256)
    grid, *_ = values(ax)
    assert float(grid[inside].sum() * area) == pytest.approx(1, abs=2e-3)
    assert ax.images[-1].norm.vmin == 0


def test_density_is_cut_off_at_the_border(ax: Axes) -> None:
    plotting.density(hdist.WrappedNormal(torch.zeros(2), 3.0, PoincareBall(1.0)), ax, resolution=16)
    path, transform = ax.images[0].get_transformed_clip_path_and_affine()
    assert path is not None
    to_data = transform + ax.transData.inverted()
    assert path.transformed(to_data).contains_point((0.7, 0.7))
    assert not path.transformed(to_data).contains_point((0.72, 0.72))


@pytest.mark.parametrize("c", [0.0, 1.0])
def test_density_of_other_distributions(c: float, ax: Axes) -> None:
    ball = PoincareBall(c)
    parts = hdist.WrappedNormal(torch.tensor([[0.5, 0.0], [-0.5, 0.2]]), 0.3, ball)
    distribution = dist.MixtureSameFamily(dist.Categorical(torch.tensor([0.7, 0.3])), parts)
    state = torch.get_rng_state()
    plotting.density(distribution, ax, manifold=ball, lebesgue=True, resolution=128)
    assert torch.equal(state, torch.get_rng_state())
    grid, nodes, area = values(ax)
    assert float(grid.sum() * area) == pytest.approx(1, abs=2e-3)
    peak = nodes.reshape(-1, 2)[grid.argmax()]
    assert float((peak - parts.loc[0]).norm()) < 0.1


def test_full_covariance_and_learnable_curvature(ax: Axes) -> None:
    ball = PoincareBall(torch.tensor(2.0, requires_grad=True))
    factor = torch.tensor([[0.5, 0.0], [0.3, 0.4]], requires_grad=True)
    plotting.density(hdist.WrappedNormal(torch.zeros(2), manifold=ball, scale_tril=factor), ax, resolution=32)
    assert values(ax)[0].shape == (32, 32)


def test_heatmap_of_a_distance(ax: Axes) -> None:
    ball = PoincareBall(1.0)
    p, a = torch.tensor([0.2, 0.1]).double(), torch.tensor([1.0, 1.0]).double()

    def log_distance(z: Tensor) -> Tensor:
        return ball.dist2plane(x=z, p=p, a=a, signed=False).log()

    plotting.heatmap(log_distance, ball, ax, resolution=64, colorbar=True)
    grid, nodes, _ = values(ax)
    inside = ball.contains(nodes)
    torch.testing.assert_close(grid[inside], log_distance(nodes[inside]))
    assert len(ax.figure.axes) == 2
    low, high = ax.images[0].get_clim()
    assert math.isfinite(low)
    assert float((grid[inside] < low).double().mean()) == pytest.approx(0.01, abs=0.005)
    assert float((grid[inside] > high).double().mean()) == pytest.approx(0.01, abs=0.005)


def test_values_that_are_not_finite_are_left_out(ax: Axes) -> None:
    plotting.heatmap(lambda z: z[:, 0].log(), PoincareBall(1.0), ax, resolution=8)
    assert bool(values(ax)[0][:, :4].isnan().all())


def test_errors() -> None:
    ball = PoincareBall(1.0)
    with pytest.raises(ValueError, match=r"batch shape \(\) and event shape \(2,\), got \(3,\) and \(2,\)"):
        plotting.density(hdist.WrappedNormal(torch.zeros(3, 2), 1.0, ball))
    with pytest.raises(ValueError, match=r"got \(\) and \(4,\)"):
        plotting.density(hdist.WrappedNormal(torch.zeros(4), 1.0, ball))
    with pytest.raises(ValueError, match=r"distribution must take points of PoincareBall\(c=1.0\), got .*\(c=2.0\)"):
        plotting.density(hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(2.0)), manifold=ball)
    with pytest.raises(ValueError, match="function must be a function of points, got Tensor"):
        plotting.heatmap(torch.zeros(4, 2), ball)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="manifold must be given"):
        plotting.density(dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pytest.raises(ValueError, match="extent must be given at c = 0"):
        plotting.heatmap(lambda z: z[:, 0], PoincareBall(0.0))
    with pytest.raises(ValueError, match="resolution must be an integer of at least 2, got 1"):
        plotting.heatmap(lambda z: z[:, 0], ball, resolution=1)
    with pytest.raises(ValueError, match="resolution must be an integer of at least 2, got 'a'"):
        plotting.density(hdist.WrappedNormal(torch.zeros(2), 1.0, ball), resolution="a")  # type: ignore[arg-type]
    for extent in ((1, 2), "abcd", 3, (0.0, math.inf, 0.0, 1.0)):
        with pytest.raises(ValueError, match=r"extent must be four numbers, \(left, right, bottom, top\), got"):
            plotting.heatmap(lambda z: z[:, 0], ball, extent=extent)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="function must return one value per point"):
        plotting.heatmap(lambda z: z, ball, resolution=4)
