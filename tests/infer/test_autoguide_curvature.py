"""AutoWrappedNormal where the curvature is learned or drawn."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import (
    AutoGuideList,
    AutoNormal,
    init_to_sample,
)

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.accelerate.bounds.tensor_elbo import tensor_loss
from pyro_hyperbolic.accelerate.programs.functional import Found
from pyro_hyperbolic.geometry import Lorentz
from pyro_hyperbolic.infer import AutoWrappedNormal, DReG_ELBO, EnsembleSVI, FastSVI
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same
from tests.infer.guided import Curved, X


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
            return parameters.run(lambda: loss(model, guide, X), values)[0]

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
