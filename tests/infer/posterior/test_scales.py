"""Moves of scales with what they scale."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.accelerate.hmc import State
from pyro_hyperbolic.infer import sample_posterior
from pyro_hyperbolic.infer.posterior.energy import Energy
from pyro_hyperbolic.infer.posterior.scales import ScaleMoves
from pyro_hyperbolic.infer.posterior.target import Target

pytestmark = pytest.mark.usefixtures("double")


def deep():
    """Locations and scales of several kinds, and sites that are not to be moved."""
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    with pyro.plate("groups", 3):
        group = pyro.sample("group", dist.Normal(mean, tau))
        width = pyro.sample("width", dist.LogNormal(-1.0, tau))
        with pyro.plate("data", 2):
            x = pyro.sample("x", dist.Laplace(group, 0.1 + width))
    pyro.sample("y", dist.Normal(x, 1.0).to_event(2), obs=torch.ones(2, 3))


def walk():
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    x = pyro.sample("x0", dist.Normal(0.0, 1.0))
    for t in range(1, 4):
        x = pyro.sample(f"x{t}", dist.Normal(x, scale))


def mixed():
    """Of a site that is enumerated there is no noise, and points have moves of their own."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    kind = pyro.sample("kind", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
    pyro.sample("of_kind", dist.Normal(kind, scale))
    with pyro.plate("points", 2):
        z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(1.0)))
        pyro.sample("at", dist.Normal(z, scale).to_event(1))


def horseshoe():
    """As many scales as numbers."""
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    with pyro.plate("numbers", 3):
        width = pyro.sample("width", dist.HalfCauchy(1.0))
        pyro.sample("x", dist.Normal(0.0, tau * width))


def volatility():
    """A scale that has a scale itself."""
    tau = pyro.sample("tau", dist.LogNormal(0.0, 1.0))
    with pyro.plate("numbers", 3):
        log_width = pyro.sample("log_width", dist.Normal(0.0, tau))
        pyro.sample("x", dist.Normal(0.0, log_width.exp()))


def other_family():
    """There is no noise of a site that is neither normal nor of its kind."""
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    with pyro.plate("numbers", 3):
        pyro.sample("x", dist.Normal(0.0, tau))
        pyro.sample("y", dist.StudentT(4.0, 0.0, tau))


def locations():
    """Without a scale that is drawn there is no funnel."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("numbers", 3):
        pyro.sample("x", dist.Normal(mean, 1.0))


@pytest.mark.parametrize(
    ("program", "moved", "all_scales"),
    [
        (deep, ["tau", "mean", "width"], True),
        (walk, ["scale", "x0"], True),
        (mixed, ["scale"], False),
        (horseshoe, ["tau", "width"], True),
        (volatility, ["tau", "log_width"], True),
        (other_family, ["tau"], False),
        (locations, ["mean"], False),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_what_is_moved(program, moved, all_scales):
    """The map is undone by the opposite shift, keeps the noise, and has the determinant that it tells."""
    pyro.set_rng_seed(0)
    energy = Energy(program, (), {})
    assert energy.moved == moved
    assert energy.all_scales_move == all_scales
    (x, _), shift = energy.draw(), torch.zeros(energy.size)
    columns = torch.cat([energy.columns(name).flatten() for name in moved])
    shift[columns] = torch.randn(len(columns))
    y, log_det = energy.move(x, shift)
    # Of what has a scale itself it is the noise that is shifted.
    own = torch.cat([energy.columns(name).flatten() for name in moved if name not in ("width", "log_width")])
    assert torch.allclose(y[own], x[own] + shift[own])
    back, other = energy.move(y, -shift)
    assert torch.allclose(back, x)
    assert other == pytest.approx(-log_det)
    jacobian = torch.func.jacfwd(lambda vector: energy.move(vector, shift)[0])(x)
    assert torch.linalg.slogdet(jacobian).logabsdet == pytest.approx(log_det.item())
    # Without data the density of the noise stays, and so the energy changes by that of what is moved alone.
    if program is walk:
        scales = torch.stack([x[columns], y[columns]])
        change = dist.Normal(0.0, 1.0).log_prob(scales).diff(dim=0).sum()
        assert (energy(x)[0] - energy(y)[0] + log_det).item() == pytest.approx(change.item())


def funnel():
    v = pyro.sample("v", dist.Normal(0.0, 3.0))
    with pyro.plate("plate", 9):
        pyro.sample("x", dist.Normal(0.0, (v / 2).exp()))


def test_moves_leave_the_posterior_alone():
    """Chains that begin with draws of a funnel stay there, and get from one end of it to the other."""
    pyro.set_rng_seed(0)
    energy = Energy(funnel, (), {})
    target = Target(energy, 400)
    state = State.at(target.gradients, torch.stack([energy.draw()[0] for _ in range(400)]))
    noise = state.x[:, 1:] / (state.x[:, :1] / 2).exp()
    moves, begun = ScaleMoves(target), state.x[:, 0]
    for turn in range(150):
        state = moves(state, target.gradients, learn=turn < 100)
    v = state.x[:, 0]
    assert v.mean().abs() < 4 * 3 / 400**0.5
    assert v.std() == pytest.approx(3.0, abs=4 * 3 / 800**0.5)
    assert torch.stack([begun, v]).corrcoef()[0, 1].abs() < 4 / 400**0.5
    assert torch.allclose(state.x[:, 1:] / (v / 2).exp().unsqueeze(-1), noise)
    assert moves.settings["scale_moves"] == pytest.approx(0.4, abs=0.15)
    assert torch.allclose(state.energy, target.energies(state.x))


def test_runs_go_on(tmp_path):
    options = {"num_chains": 2, "warmup": 20, "progress": False}
    whole = sample_posterior(funnel, num_samples=20, **options)
    path = tmp_path / "run.pt"
    sample_posterior(funnel, num_samples=5, checkpoint=path, **options)
    parts = sample_posterior(funnel, num_samples=20, checkpoint=path, **options)
    assert torch.equal(parts.samples["v"][:, :5], whole.samples["v"][:, :5])
    assert parts.settings["scales_moved"] > 0.1
