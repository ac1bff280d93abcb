"""Summaries, initial values, plates and copies of AutoWrappedNormal."""

import copy
import io
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import (
    AutoNormal,
    init_to_feasible,
    init_to_generated,
    init_to_mean,
    init_to_median,
    init_to_sample,
    init_to_uniform,
    init_to_value,
)

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import AutoWrappedNormal
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same
from tests.infer.guided import BALL, CHARTS, POINTS, Curved, X, every_chart, programs


class TestSummaries:
    @every_chart
    def test_median_is_the_mean_of_the_distribution(self, chart):
        guide = AutoWrappedNormal(programs(chart), init_loc_fn=init_to_sample)
        guide(X)
        medians = guide.median()
        trace = poutine.trace(guide).get_trace(X)
        for name in ("top", "z"):
            torch.testing.assert_close(medians[name], trace.nodes[name]["fn"].mean.detach())
        assert not any(value.requires_grad for value in medians.values())
        medians["shift"].add_(1.0)
        assert medians["shift"] != guide.locs.shift

    @every_chart
    def test_quantiles_are_those_of_the_coordinates_at_the_mean(self, chart):
        guide = AutoWrappedNormal(programs(chart), init_loc_fn=init_to_sample, init_scale=0.4)
        guide(X)
        levels = [0.1, 0.5, 0.975]
        found = guide.quantiles(levels)
        for name, shape in POINTS.items():
            mean = guide.median()[name]
            assert found[name].shape == (3, *mean.shape)
            assert chart.contains(found[name]).all()
            coords = chart.to_normal_coords(mean, found[name])
            expected = 0.4 * torch.special.ndtri(torch.tensor(levels))
            same(coords, expected.reshape((3,) + (1,) * len(shape)).expand(3, *shape), 1e-3)
        same(guide.quantiles(torch.tensor([0.5]))["z"][0], guide.median()["z"], 1e-6)

    def test_each_coordinate_is_below_its_quantile_as_often_as_it_says(self):
        guide = AutoWrappedNormal(programs(BALL), init_loc_fn=init_to_sample, init_scale=0.4)
        guide(X)
        mean, found = guide.median()["top"], guide.quantiles([0.2])["top"][0]
        with pyro.plate("draws", 5000, dim=-2):
            draws = guide(X)["top"]
        share = (BALL.to_normal_coords(mean, draws) < BALL.to_normal_coords(mean, found)).double().mean((0, 1))
        assert ((share - 0.2).abs() < 4 * math.sqrt(0.16 / 5000)).all()

    def test_other_latents_have_those_of_AutoNormal(self):
        model = programs(BALL)
        start = init_to_value(values={"width": torch.tensor(0.7), "shift": torch.tensor(0.2)}, fallback=init_to_mean)
        guides = [kind(model, init_loc_fn=start, init_scale=0.3) for kind in (AutoWrappedNormal, AutoNormal)]
        for guide in guides:
            pyro.clear_param_store()
            guide(X)
        for name in ("width", "shift"):
            torch.testing.assert_close(*[guide.quantiles([0.1, 0.9])[name] for guide in guides])


@pytest.mark.parametrize(
    "strategy",
    [init_to_feasible, init_to_median, init_to_mean, init_to_sample, init_to_uniform, init_to_generated],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("chart", CHARTS[:2], ids=repr)
def test_initial_values(chart, strategy):
    if strategy is init_to_generated:
        strategy = init_to_generated(generate=lambda: init_to_uniform)
    guide = AutoWrappedNormal(programs(chart), init_loc_fn=strategy)
    guide(X)
    assert all(chart.contains(guide.median()[name]).all() for name in POINTS)
    if strategy in (init_to_feasible, init_to_median, init_to_mean):
        assert (guide.locs.top == 0).all()


@every_chart
def test_given_initial_values(chart):
    top = chart.from_normal_coords(None, torch.tensor([0.3, -0.6]))
    guide = AutoWrappedNormal(programs(chart), init_loc_fn=init_to_value(values={"top": top}))
    guide(X)
    torch.testing.assert_close(guide.median()["top"], top)


class TestPlates:
    def model(self, x):
        with pyro.plate("data", 20, subsample_size=5) as index:
            z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, BALL))
            pyro.sample("x", dist.Normal(BALL.dist0(z), 0.3), obs=x[index])

    def test_subsampling(self):
        x = torch.linspace(0.5, 1.5, 20)
        guide = AutoWrappedNormal(self.model)
        svi = SVI(self.model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        svi.step(x)
        assert guide.locs.z.shape == (20, 2)
        start = guide.locs.z.detach().clone()
        svi.step(x)
        moved = (guide.locs.z != start).any(-1)
        assert 5 <= moved.sum() <= 10  # Adam also moves what the first step has seen
        assert guide(x)["z"].shape == (5, 2)
        assert guide.median()["z"].shape == (20, 2)

    def test_plates_that_are_created(self):
        def model(x):
            with pyro.plate("data", 20, subsample=torch.arange(len(x))):
                z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, BALL))
                pyro.sample("x", dist.Normal(BALL.dist0(z), 0.3), obs=x)

        def plates(x):
            return pyro.plate("data", 20, subsample=torch.arange(len(x)))

        guide = AutoWrappedNormal(model, create_plates=plates)
        assert guide(torch.ones(6))["z"].shape == (6, 2)
        assert guide(torch.ones(4))["z"].shape == (4, 2)
        assert math.isfinite(Trace_ELBO().loss(model, guide, torch.ones(6)))

    def test_nested(self):
        def model():
            with pyro.plate("a", 3, dim=-2), pyro.plate("b", 4, dim=-1):
                pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, BALL))

        guide = AutoWrappedNormal(model)
        assert guide()["z"].shape == (3, 4, 2)
        elbo = Trace_ELBO(num_particles=5, vectorize_particles=True, max_plate_nesting=2)
        assert math.isfinite(elbo.loss_and_grads(model, guide))


class TestCopies:
    def trained(self):
        guide = AutoWrappedNormal(programs(BALL), init_loc_fn=init_to_sample)
        guide(X)
        return guide

    def agrees(self, guide, other):
        medians, others = guide.median(), other.median()
        for name, value in medians.items():
            torch.testing.assert_close(others[name], value)

    def test_state_dict(self):
        guide, other = self.trained(), AutoWrappedNormal(programs(BALL))
        pyro.clear_param_store()
        other(X)
        other.load_state_dict(guide.state_dict())
        self.agrees(guide, other)

    def test_deepcopy(self):
        guide = self.trained()
        self.agrees(guide, copy.deepcopy(guide))

    def test_saving(self):
        # A model that pickle finds by its name.
        guide = AutoWrappedNormal(plain_model, init_loc_fn=init_to_sample)
        guide()
        file = io.BytesIO()
        torch.save(guide, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
        self.agrees(guide, other)
        torch.manual_seed(1)
        draws = guide()["z"]
        torch.manual_seed(1)
        pyro.clear_param_store()
        torch.testing.assert_close(other()["z"], draws)

    def test_a_copy_cannot_ask_its_model_for_the_curvature(self):
        model = Curved("module")
        guide = AutoWrappedNormal(model)
        with torch.no_grad():
            guide(X)
        other = copy.deepcopy(guide)
        guide(X)
        with pytest.raises(ValueError, match="curvature of site 'z' is the model's"):
            other(X)


def plain_model():
    pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, BALL))


def test_discrete_latents_are_refused():
    guide = AutoWrappedNormal(lambda: pyro.sample("k", dist.Categorical(torch.ones(3))))
    with pytest.raises(ValueError, match="discrete sample site 'k'"):
        guide()


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_initial_scale(scale):
    with pytest.raises(ValueError, match="init_scale"):
        AutoWrappedNormal(plain_model, init_scale=scale)


def test_a_site_that_is_gone():
    manifold, sites = ManifoldModule(PoincareBall(0.7), learnable=True), ["z"]

    def model():
        for name in sites:
            pyro.sample(name, hdist.WrappedNormal(torch.zeros(2), 1.0, manifold()))

    guide = AutoWrappedNormal(model)
    guide()
    sites.clear()
    with pytest.raises(ValueError, match="had a site 'z' when the guide first ran"):
        guide()
