"""Every automatic guide of Pyro on latents that are points, on either chart."""

import functools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions.transforms import affine_autoregressive, iterated
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer import autoguide as auto

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz
from pyro_hyperbolic.infer import with_drawn_curvature
from tests.helpers import in_turns, same

CHARTS = [PoincareBall(0.7), Lorentz(0.7)]
GUIDES = {
    "AutoDelta": auto.AutoDelta,
    "AutoNormal": auto.AutoNormal,
    "AutoDiagonalNormal": auto.AutoDiagonalNormal,
    "AutoMultivariateNormal": auto.AutoMultivariateNormal,
    "AutoLowRankMultivariateNormal": functools.partial(auto.AutoLowRankMultivariateNormal, rank=2),
    "AutoLaplaceApproximation": auto.AutoLaplaceApproximation,
    "AutoIAFNormal": functools.partial(auto.AutoIAFNormal, hidden_dim=[16]),
    "AutoNormalizingFlow": lambda model: auto.AutoNormalizingFlow(
        model, functools.partial(iterated, 1, affine_autoregressive)
    ),
    "AutoGaussian": auto.AutoGaussian,
    "AutoStructured": lambda model: auto.AutoStructured(
        model,
        conditionals={"c": "normal", "w": "normal", "top": "mvn", "z": "normal"},
        dependencies={"z": {"top": "linear"}},
    ),
}
SUMMARIES = {
    "median": set(GUIDES) - {"AutoIAFNormal", "AutoNormalizingFlow"},
    "quantiles": {
        "AutoNormal",
        "AutoDiagonalNormal",
        "AutoMultivariateNormal",
        "AutoLowRankMultivariateNormal",
        "AutoLaplaceApproximation",
    },
}
every_chart = pytest.mark.parametrize("chart", CHARTS, ids=repr)
POINTS = ("w", "top", "z")
DISTANCES = torch.tensor([[0.4, 1.5, 1.8], [1.2, 0.6, 2.0]])


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    torch.manual_seed(0)


def model(chart, distribution=hdist.WrappedNormal):
    anchors = chart.from_normal_coords(None, torch.tensor([[1.0, 0.4], [-0.3, 1.2], [0.5, -1.0]]))

    def program():
        pyro.sample("w", distribution(chart.origin(1).expand(2, -1), 0.5, chart).to_event(1))
        top = pyro.sample("top", distribution(chart.origin(2), 1.0, chart))
        with pyro.plate("data", 2):
            z = pyro.sample("z", distribution(top, 0.5, chart))
            pyro.sample("x", dist.Normal(chart.dist(z.unsqueeze(-2), anchors), 0.5).to_event(1), obs=DISTANCES)

    return program


CASES = [(name, hdist.WrappedNormal) for name in GUIDES] + [("AutoMultivariateNormal", hdist.RiemannianNormal)]


@pytest.mark.parametrize(("case", "chart"), in_turns(CASES, CHARTS), ids=repr)
def test_it_trains_and_predicts(case, chart):
    name, distribution = case
    program = model(chart, distribution)
    guide = GUIDES[name](program)
    svi = SVI(program, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    steps = 12 if name == "AutoLaplaceApproximation" else 3  # which needs to be near the maximum
    assert all(math.isfinite(svi.step()) for _ in range(steps))
    if name == "AutoLaplaceApproximation":
        guide = guide.laplace_approximation()
    particles = Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1)
    assert math.isfinite(particles.loss(program, guide))
    draws = Predictive(program, guide=guide, num_samples=3, parallel=True)()
    assert all(chart.contains(draws[site]).all() for site in POINTS)
    size = chart.ambient_dim(2)
    if name in SUMMARIES["median"]:
        medians = guide.median()
        assert medians["z"].shape == (2, size)
        assert all(chart.contains(medians[site]).all() for site in POINTS)
    if name in SUMMARIES["quantiles"]:
        quantiles = guide.quantiles([0.1, 0.5, 0.9])
        assert quantiles["z"].shape == (3, 2, size)
        assert all(chart.contains(quantiles[site]).all() for site in POINTS)
        same(quantiles["z"][1], guide.median()["z"], 1e-5)


@every_chart
@pytest.mark.parametrize("name", GUIDES)
def test_a_drawn_curvature_is_an_error_with_its_remedy(name, chart):
    def program():
        space = type(chart)(pyro.sample("c", dist.LogNormal(0.0, 0.5)))
        for site in POINTS[:2]:
            pyro.sample(site, hdist.WrappedNormal(space.origin(2), 0.5, space))
        with pyro.plate("data", 2):
            pyro.sample("z", hdist.WrappedNormal(space.origin(2), 0.5, space))

    svi = SVI(program, GUIDES[name](program), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    with pytest.raises(ValueError, match=r"(?s)at site 'w'.*with_drawn_curvature\(model\)"):
        svi.step()


@pytest.mark.parametrize(("name", "chart"), in_turns([n for n in GUIDES if n != "AutoStructured"], CHARTS), ids=repr)
def test_a_drawn_curvature_under_its_remedy(name, chart):
    @with_drawn_curvature
    def program():
        space = type(chart)(pyro.sample("c", dist.LogNormal(0.0, 0.5)))
        with pyro.plate("data", 2):
            z = pyro.sample("z", hdist.WrappedNormal(space.origin(2), 0.5, space))
            pyro.sample("x", dist.Normal(space.dist0(z), 0.5), obs=DISTANCES[0, :2])

    guide = GUIDES[name](program)
    for loss in (Trace_ELBO(), Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1)):
        svi = SVI(program, guide, pyro.optim.Adam({"lr": 0.1}), loss)
        assert all(math.isfinite(svi.step()) for _ in range(2))
    draws = Predictive(program, guide=guide, num_samples=3, parallel=True)()
    assert type(chart)(draws["c"]).contains(draws["z"]).all()


STRATEGIES = [
    auto.init_to_feasible,
    auto.init_to_mean,
    auto.init_to_median,
    auto.init_to_sample,
    auto.init_to_uniform,
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda f: f.__name__)
@every_chart
def test_initial_values_are_points(chart, strategy):
    guide = auto.AutoNormal(model(chart), init_loc_fn=strategy)
    guide()
    medians = guide.median()
    assert all(chart.contains(medians[site]).all() for site in POINTS)
    if strategy is auto.init_to_mean:
        same(medians["z"], chart.origin(2).expand(2, -1), 1e-6)


@pytest.mark.parametrize("dim", [1, 2])
@every_chart
def test_median_of_the_prior(chart, dim):
    # A median of coordinates need not be a point: of one coordinate it is, and of several Pyro takes none.
    point = hdist.WrappedNormal(chart.from_normal_coords(None, torch.full((dim,), 1.5)), 0.3, chart)
    site = {"fn": point.expand((4,)), "name": "z"}
    value = auto.init_to_median(site, num_samples=31)
    assert value.shape == (4, chart.ambient_dim(dim))
    assert chart.contains(value).all()
