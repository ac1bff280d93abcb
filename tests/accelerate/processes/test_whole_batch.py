"""The noise of some rows of a batch is that of the whole."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.accelerate.processes.whole_batch import Rows, WholeBatch

TOTAL, WORLD, PARTICLES = 7, 3, 4
BALL = PoincareBall(0.7)
LOC = BALL.expmap0(0.3 * torch.randn(TOTAL, 3, generator=torch.Generator().manual_seed(0)))
SCALE = torch.linspace(0.5, 1.0, TOTAL).unsqueeze(-1)

# Distributions of rows whose noise can be found, from the rows of loc and scale.
DISTRIBUTIONS: dict[str, Any] = {
    "wrapped": lambda loc, scale: hdist.WrappedNormal(loc, scale, BALL),
    "wrapped, full": lambda loc, scale: hdist.WrappedNormal(
        loc, manifold=BALL, scale_tril=scale.unsqueeze(-1) * torch.eye(3)
    ),
    "wrapped, hyperboloid": lambda loc, scale: hdist.WrappedNormal(
        Lorentz(0.7).from_poincare(loc), scale, Lorentz(0.7)
    ),
    "riemannian": lambda loc, scale: hdist.RiemannianNormal(loc, scale, BALL),
    "radius": lambda loc, scale: hdist.HyperbolicRadius(3, scale.squeeze(-1), 0.7),
    "normal": lambda loc, scale: dist.Normal(loc, scale).to_event(1),
    "multivariate": lambda loc, scale: dist.MultivariateNormal(loc, scale_tril=scale.unsqueeze(-1) * torch.eye(3)),
    "low rank": lambda loc, scale: dist.LowRankMultivariateNormal(
        loc, scale.unsqueeze(-1) * torch.ones(3, 2), scale + 0 * loc
    ),
    "uniform": lambda loc, scale: dist.Uniform(loc, loc + scale).to_event(1),
    "exponential": lambda loc, scale: dist.Exponential(scale + 0 * loc).to_event(1),
    "log-normal": lambda loc, scale: dist.LogNormal(loc, scale).to_event(1),
    "laplace": lambda loc, scale: dist.Laplace(loc, scale).to_event(1),
    "cauchy": lambda loc, scale: dist.Cauchy(loc, scale).to_event(1),
    "prior": lambda loc, scale: hdist.WrappedNormal(torch.zeros(3), 1.0, BALL),
    "scalar": lambda loc, scale: dist.Normal(0.0, 1.0),
}


def draw(distribution: str, rows: Rows | None) -> Tensor:
    """A draw of a distribution for some rows, in a plate of particles; and how far the generator went."""
    part = slice(None) if rows is None else slice(rows.start, rows.stop)
    torch.manual_seed(1)
    with pyro.plate("particles", PARTICLES, dim=-2), pyro.plate("data", TOTAL if rows is None else len(rows), dim=-1):
        return pyro.sample("z", DISTRIBUTIONS[distribution](LOC[part], SCALE[part]))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_rows_have_the_noise_of_the_whole_batch(distribution: str) -> None:
    whole = draw(distribution, None)
    state = torch.get_rng_state()
    for rank in range(WORLD):
        rows = Rows.share(TOTAL, rank, WORLD)
        with WholeBatch("data", rows, WORLD):
            own = draw(distribution, rows)
        torch.testing.assert_close(own, whole[:, rows.start : rows.stop], rtol=1e-5, atol=1e-6)
        assert torch.equal(torch.get_rng_state(), state)


def test_the_dimension_of_the_data_is_that_of_the_plate() -> None:
    # Two plates of the same size: only the names tell them apart.
    def program(count: int) -> Tensor:
        torch.manual_seed(0)
        with pyro.plate("data", count, dim=-2), pyro.plate("other", 3, dim=-1):
            return pyro.sample("z", dist.Normal(0.0, 1.0))

    whole = program(6)
    with WholeBatch("data", Rows.share(6, 1, 2), 2):
        assert torch.equal(program(3), whole[3:])


@pytest.mark.parametrize(("total", "world"), [(8, 2), (7, 3), (3, 3), (1, 4), (5, 1)])
def test_shares_cover_the_batch(total: int, world: int) -> None:
    shares = [Rows.share(total, rank, world) for rank in range(world)]
    counted = [i for rows in shares if rows.count for i in range(rows.start, rows.stop)]
    assert counted == list(range(total))
    assert all(len(rows) >= 1 for rows in shares)
    sizes = [len(rows) for rows in shares if rows.count]
    assert max(sizes) - min(sizes) <= 1


def log_prob_sums(rows: Rows | None, world: int, data_size: int | None) -> Tensor:
    """Of a program with a latent of all data: the sums of its sites."""
    x = torch.linspace(-1, 1, TOTAL)
    own = x if rows is None else x[rows.start : rows.stop]

    def program() -> None:
        pyro.sample("centre", dist.Normal(0.0, 1.0), obs=torch.tensor(0.3))
        with pyro.plate("data", data_size or len(own), subsample=torch.arange(len(own))):
            pyro.sample("x", dist.Normal(0.0, 1.0), obs=own)

    if rows is None:
        trace = pyro.poutine.trace(program).get_trace()
    else:
        with WholeBatch("data", rows, world):
            trace = pyro.poutine.trace(program).get_trace()
    trace.compute_log_prob()
    return torch.stack([trace.nodes[name]["log_prob_sum"] for name in ("centre", "x")])


@pytest.mark.parametrize("data_size", [None, 50])
@pytest.mark.parametrize("world", [2, 3, 9])
def test_densities_add_up_to_those_of_the_whole_batch(world: int, data_size: int | None) -> None:
    parts = [log_prob_sums(Rows.share(TOTAL, rank, world), world, data_size) for rank in range(world)]
    torch.testing.assert_close(torch.stack(parts).sum(0), log_prob_sums(None, 1, data_size))


ERRORS: dict[str, tuple[Any, str]] = {
    "gamma": (lambda: dist.Gamma(torch.ones(3), 1.0), "site 'z' draws by _standard_gamma, whose noise depends on"),
    "shape": (
        lambda: dist.TransformedDistribution(Shuffled(torch.zeros(3), 1.0), []),
        r"batch shape \(3,\) but draws noise of shape \(2, 3\)",
    ),
}


class Shuffled(dist.Normal):
    """Draws more than it needs, and not with the batch in front."""

    def rsample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:
        return torch.randn(2, *self.batch_shape)[0]


@pytest.mark.parametrize("case", ERRORS)
def test_noise_that_cannot_be_shared_is_an_error(case: str) -> None:
    distribution, message = ERRORS[case]
    with (
        pytest.raises(ValueError, match=message),
        WholeBatch("data", Rows(0, 3, 6), 2),
        pyro.plate("data", 3),
    ):
        pyro.sample("z", distribution())


def test_subsampling_inside_of_the_program_is_an_error() -> None:
    with (
        pytest.raises(ValueError, match="plate 'data' draws a subsample"),
        WholeBatch("data", Rows(0, 3, 6), 2),
        pyro.plate("data", 6, subsample_size=3),
    ):
        pass


def test_a_plate_of_something_else_is_an_error() -> None:
    with (
        pytest.raises(ValueError, match="plate 'data' has 5 elements for 3 data"),
        WholeBatch("data", Rows(0, 3, 6), 2),
        pyro.plate("data", 5),
    ):
        pyro.sample("z", dist.Normal(0.0, 1.0))


def test_a_loss_that_is_no_sum_refuses_global_sites() -> None:
    with (
        pytest.raises(ValueError, match="site 'centre' is outside of the plate 'data'"),
        WholeBatch("data", Rows(0, 3, 6), 2, separable=False),
    ):
        pyro.sample("centre", dist.Normal(0.0, 1.0))
