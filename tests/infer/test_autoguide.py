"""The automatic guide of wrapped normals: its laws, its parameters, and what Pyro does with it."""

import copy
import io
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import (
    AutoGuideList,
    AutoNormal,
    init_to_feasible,
    init_to_generated,
    init_to_mean,
    init_to_median,
    init_to_sample,
    init_to_uniform,
    init_to_value,
)
from torch.distributions import constraints, kl_divergence

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz
from pyro_hyperbolic.infer import AutoWrappedNormal, DReG_ELBO, EnsembleSVI, FastSVI
from pyro_hyperbolic.infer.bounds.tensor_elbo import tensor_loss
from pyro_hyperbolic.infer.programs.functional import Found
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same

BALL = PoincareBall(0.7)
CHARTS = [BALL, Lorentz(0.7), PoincareBall(0.0)]
every_chart = pytest.mark.parametrize("chart", CHARTS, ids=repr)
LOSSES = [Trace_ELBO, TraceMeanField_ELBO, RenyiELBO, DReG_ELBO]


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    torch.manual_seed(0)


def programs(chart, law=hdist.WrappedNormal):
    """Points in and outside of a plate, points as one event, and two latents that are no points."""
    anchor = chart.from_normal_coords(None, torch.tensor([1.0, 0.4]))

    def model(x):
        width = pyro.sample("width", dist.LogNormal(-0.5, 0.3))
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        pyro.sample("pair", law(chart.origin(3).expand(2, -1), 0.5, chart).to_event(1))
        top = pyro.sample("top", law(chart.origin(2), 1.0, chart))
        with pyro.plate("data", len(x), dim=-1):
            z = pyro.sample("z", law(top, width.unsqueeze(-1), chart))
            pyro.sample("x", dist.Normal(chart.dist(z, anchor) + shift, 0.3), obs=x)

    return model


X = torch.tensor([0.5, 1.0, 1.5, 2.0])
POINTS = {"pair": (2, 3), "top": (2,), "z": (4, 2)}


@every_chart
def test_every_latent_has_its_law_under_its_own_name(chart):
    guide = AutoWrappedNormal(programs(chart), init_scale=0.2)
    guide(X)
    trace = poutine.trace(guide).get_trace(X)
    assert trace.stochastic_nodes == ["data", "width", "shift", "pair", "top", "z"]
    for name, shape in POINTS.items():
        assert getattr(guide.locs, name).shape == shape
        assert getattr(guide.scales, name).shape == shape
        law = trace.nodes[name]["fn"]
        law = law.base_dist if name == "pair" else law
        assert isinstance(law, hdist.WrappedNormal)
        assert law.manifold == chart
        same(chart.dist0(law.mean), getattr(guide.locs, name).norm(dim=-1), 1e-5)
        assert chart.contains(trace.nodes[name]["value"]).all()
    assert isinstance(trace.nodes["shift"]["fn"], dist.Normal)
    assert trace.nodes["width"]["value"] > 0


@every_chart
def test_a_wrapped_normal_is_approximated_exactly(chart):
    loc = chart.from_normal_coords(None, torch.tensor([0.8, -0.4]))

    def model():
        pyro.sample("z", hdist.WrappedNormal(loc, 0.5, chart))

    guide = AutoWrappedNormal(model, init_loc_fn=init_to_value(values={"z": loc}), init_scale=0.5)
    assert abs(Trace_ELBO(num_particles=20).loss(model, guide)) < 1e-5


def test_it_has_one_shape_everywhere_as_AutoNormal_has_not():
    # Far out AutoNormal is wide across the radius.
    loc = BALL.from_normal_coords(None, torch.tensor([4.0, 0.0]))

    def spread(kind):
        pyro.clear_param_store()
        start = init_to_value(values={"z": loc})
        guide = kind(lambda: pyro.sample("z", hdist.WrappedNormal(loc, 0.5, BALL)), init_loc_fn=start, init_scale=0.3)
        guide()
        with pyro.plate("draws", 2000, dim=-1):
            return BALL.to_normal_coords(loc, guide()["z"]).std(0)

    assert ((spread(AutoWrappedNormal) - 0.3).abs() < 0.03).all()
    assert spread(AutoNormal)[1] > 0.7


def test_other_latents_are_those_of_AutoNormal():
    def model():
        pyro.sample("a", dist.LogNormal(0.0, 1.0))
        pyro.sample("b", dist.Beta(2.0, 3.0).expand([2]).to_event(1))
        pyro.sample("c", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("data", 4):
            pyro.sample("d", dist.Normal(0.0, 1.0))

    losses = []
    for kind in (AutoNormal, AutoWrappedNormal):
        pyro.clear_param_store()
        torch.manual_seed(1)
        guide = kind(model, init_scale=0.3)
        guide()
        torch.manual_seed(2)
        losses.append(Trace_ELBO(num_particles=3).loss(model, guide))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "vectorised", "chart"),
    [(loss, vectorised, BALL) for loss in LOSSES for vectorised in (False, True)]
    + [(DReG_ELBO, True, chart) for chart in CHARTS[1:]],
)
def test_losses(loss, vectorised, chart):
    model = programs(chart)
    guide = AutoWrappedNormal(model)
    elbo = loss(num_particles=2, vectorize_particles=vectorised, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
    assert math.isfinite(svi.step(X))
    for name, p in guide.named_parameters():
        assert p.grad is not None, name
    before = {name: p.clone() for name, p in guide.named_parameters()}
    svi.step(X)
    assert all((p != before[name]).any() for name, p in guide.named_parameters())


def test_the_mean_field_bound_uses_the_closed_form_of_a_gaussian():
    def model():
        with pyro.plate("data", 3):
            pyro.sample("a", dist.Normal(0.5, 1.0))

    guide = AutoWrappedNormal(model, init_scale=0.3)
    guide()
    expected = 3 * kl_divergence(dist.Normal(guide.locs.a[0], 0.3), dist.Normal(0.5, 1.0))
    assert TraceMeanField_ELBO().loss(model, guide) == pytest.approx(expected.item(), rel=1e-5)


def test_the_mean_field_bound_of_all_else_is_the_usual_one():
    # AutoNormal loses the Jacobians there.
    model = programs(BALL)
    guide = AutoWrappedNormal(poutine.block(model, hide=["shift"]), init_loc_fn=init_to_sample)
    guide(X)
    losses = []
    for loss in (Trace_ELBO(), TraceMeanField_ELBO()):
        torch.manual_seed(1)
        losses.append(loss.loss(poutine.condition(model, {"shift": torch.tensor(0.1)}), guide, X))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_fast_svi_takes_the_same_steps():
    losses = []
    for kind in (SVI, FastSVI):
        pyro.clear_param_store()
        torch.manual_seed(1)
        model = programs(BALL)
        svi = kind(model, AutoWrappedNormal(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        losses.append([float(svi.step(X)) for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_predictive():
    model = programs(BALL)
    guide = AutoWrappedNormal(model)
    guide(X)
    for parallel in (False, True):
        samples = Predictive(model, guide=guide, num_samples=6, parallel=parallel)(X)
        assert samples["z"].shape[0] == 6
        assert samples["z"].shape[-2:] == (4, 2)
        assert BALL.contains(samples["z"]).all()


def test_in_a_list_of_guides():
    model = programs(BALL)
    guide = AutoGuideList(model)
    guide.append(AutoNormal(poutine.block(model, expose=["width", "shift"])))
    guide.append(AutoWrappedNormal(poutine.block(model, hide=["width", "shift"])))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert math.isfinite(svi.step(X))
    assert guide.median(X).keys() == {"width", "shift", "pair", "top", "z"}
    assert guide.quantiles([0.5], X)["z"].shape == (1, 4, 2)


class TestSummaries:
    @every_chart
    def test_median_is_the_mean_of_the_law(self, chart):
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


class Curved(pyro.nn.PyroModule):
    """A model that learns its curvature, ``how`` ever it keeps it."""

    def __init__(self, how, chart=PoincareBall):
        super().__init__()
        self.how, self.chart = how, chart
        if how == "module":
            self.manifold = ManifoldModule(chart(0.7), learnable=True)

    def now(self):
        if self.how == "module":
            return self.manifold()
        if self.how == "param":
            return self.chart(pyro.param("c", torch.tensor(0.7), constraint=constraints.positive))
        return self.chart(pyro.sample("c", dist.LogNormal(-0.3, 0.2)))

    def forward(self, x):
        manifold = self.now()
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", hdist.WrappedNormal(manifold.origin(2), 1.0, manifold))
            pyro.sample("x", dist.Normal(manifold.dist0(z), 0.3), obs=x)

    def curvature(self):
        return self.manifold.c if self.how == "module" else pyro.param("c")


@pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
class TestCurvature:
    @pytest.mark.parametrize("how", ["module", "param"])
    @pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO, DReG_ELBO])
    def test_learned(self, chart, how, loss):
        model = Curved(how, chart)
        guide = AutoWrappedNormal(model, init_loc_fn=init_to_sample)
        elbo = loss(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), elbo)
        for _ in range(2):
            svi.step(X)
        c = model.curvature().detach()
        assert (c - 0.7).abs() > 0.01
        z = poutine.trace(guide).get_trace(X).nodes["z"]["fn"]
        assert z.manifold == chart(c)
        assert chart(c).contains(guide.median(X)["z"]).all()
        assert chart(c).contains(guide.quantiles([0.9], X)["z"]).all()

    def test_gradient_through_the_guide(self, chart):
        # The draws of the guide move with the curvature: against a guide written by hand.
        model = Curved("module", chart)
        guide = AutoWrappedNormal(model, init_loc_fn=init_to_sample)
        guide(X)
        loc, scale = guide.locs.z.detach(), guide.scales.z.detach()

        def by_hand(x):
            manifold = model.now()
            with pyro.plate("data", len(x)):
                pyro.sample("z", hdist.WrappedNormal(manifold.from_normal_coords(None, loc), scale, manifold))

        slopes = []
        for program in (guide, by_hand):
            model.zero_grad()
            torch.manual_seed(2)
            Trace_ELBO().loss_and_grads(model, program, X)
            slopes.append(model.manifold.raw.grad.clone())
        same(slopes[0], slopes[1], 1e-5)
        assert slopes[0].abs() > 1e-3

    @pytest.mark.parametrize("how", ["module", "param"])
    def test_as_a_function_of_its_parameters(self, chart, how):
        # As compiled steps take it: the guide's second look at the model must see the same values.
        model = Curved(how, chart)
        guide = AutoWrappedNormal(model, init_loc_fn=init_to_sample)
        loss = tensor_loss(Trace_ELBO())
        with Found(model, guide) as found:
            loss(model, guide, X)
        parameters = found.parameters
        torch.manual_seed(2)
        value = loss(model, guide, X)
        names, leaves = zip(*parameters.tensors.items(), strict=True)
        expected = dict(zip(names, torch.autograd.grad(value, leaves), strict=True))

        def functional(values):
            with parameters.replaced(values):
                return loss(model, guide, X)

        torch.manual_seed(2)
        with pyro.validation_enabled(False):
            slopes = torch.func.grad(functional)({name: t.detach() for name, t in parameters.tensors.items()})
        for name, slope in expected.items():
            same(slopes[name], slope, 1e-5, scale=slope.abs().max())

    def test_drawn(self, chart):
        model = Curved("latent", chart)
        guide = AutoWrappedNormal(model)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        for _ in range(3):
            svi.step(X)
        draws = poutine.trace(guide).get_trace(X)
        assert draws.nodes["z"]["fn"].manifold == chart(draws.nodes["c"]["value"])
        medians = guide.median(X)
        assert chart(medians["c"]).contains(medians["z"]).all()

    def test_fixed_buffer_needs_no_second_run(self, chart):
        manifold, runs = ManifoldModule(chart(0.7)), []

        def model():
            runs.append(1)
            pyro.sample("z", hdist.WrappedNormal(manifold().origin(2), 1.0, manifold()))

        guide = AutoWrappedNormal(model)
        guide()
        runs.clear()
        guide()
        guide.median()
        assert not runs

    def test_learned_under_subsampling_draws_no_second_minibatch(self, chart):
        manifold = ManifoldModule(chart(0.7), learnable=True)

        def model():
            with pyro.plate("data", 20, subsample_size=5):
                pyro.sample("z", hdist.WrappedNormal(manifold().origin(2), 1.0, manifold()))

        guide = AutoWrappedNormal(model)
        assert math.isfinite(DReG_ELBO().loss_and_grads(model, guide))  # which refuses further random numbers

    def test_fast_svi(self, chart):
        losses = []
        for kind in (SVI, FastSVI):
            pyro.clear_param_store()
            torch.manual_seed(1)
            model = Curved("module", chart)
            svi = kind(model, AutoWrappedNormal(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
            losses.append([float(svi.step(X)) for _ in range(4)])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)

    def test_ensemble(self, chart):
        models = [Curved("module", chart) for _ in range(2)]
        pairs = [(model, AutoWrappedNormal(model, init_loc_fn=init_to_sample)) for model in models]
        svi = EnsembleSVI(pairs, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
        for _ in range(3):
            losses = svi.step(X, shared=True)
        assert losses.shape == (2,)
        assert all((model.curvature() - 0.7).abs() > 0.01 for model in models)


class TestHiddenLatents:
    """In a list of guides, of which each sees a part of the model."""

    def listed(self, model, hidden):
        guide = AutoGuideList(model)
        guide.append(AutoNormal(poutine.block(model, expose=[hidden])))
        guide.append(AutoWrappedNormal(poutine.block(model, hide=[hidden])))
        return guide

    def test_the_curvature(self):
        with pytest.raises(ValueError, match=r"curvature of site 'z' depends on a draw .* same AutoWrappedNormal"):
            self.listed(Curved("latent"), "c")(X)

    def test_a_latent_that_the_curvature_does_not_depend_on(self):
        curved = Curved("module")

        def model(x):
            pyro.sample("width", dist.LogNormal(0.0, 1.0))
            curved(x)

        guide = self.listed(model, "width")
        assert math.isfinite(SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(X))

    def test_a_curvature_of_the_minibatch(self):
        # It changes with the minibatch, which the guide does see.
        raw = torch.linspace(0.5, 1.0, 20).requires_grad_()

        def model():
            with pyro.plate("data", 20, subsample_size=5) as index:
                ball = PoincareBall(raw[index].mean())
                pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, ball))

        assert AutoWrappedNormal(model)()["z"].shape == (5, 2)


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
