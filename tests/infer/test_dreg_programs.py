"""DReG_ELBO on programs of every form: deterministic sites, plates, modules, fast trainers."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoGuideList, AutoNormal
from pyro.poutine import block
from torch import nn

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz
from pyro_hyperbolic.infer import DReG_ELBO, EnsembleSVI, FastSVI
from pyro_hyperbolic.models import HyperbolicVAE
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same
from tests.infer.dreg_models import PROGRAMS, evaluated, every_count, losses, small_vae

pytestmark = pytest.mark.usefixtures("double")


class TestDeterministicSites:
    """Guides whose sites are functions of draws, or parameters."""

    def model(self):
        width = pyro.sample("width", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", 3):
            z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), width.unsqueeze(-1), PoincareBall(0.7)))
            pyro.sample("x", dist.Normal(PoincareBall(0.7).dist0(z), 0.3), obs=torch.ones(3))

    def by_distributions(self):
        """What ``AutoNormal`` draws, as distributions under the sites' own names."""
        ball = hdist.constraints.on(PoincareBall(0.7))
        loc, scale = pyro.param("w_loc", torch.tensor(0.0)), pyro.param("w_scale", torch.tensor(0.1))
        pyro.sample("width", dist.LogNormal(loc, scale))
        loc = pyro.param("z_loc", torch.zeros(3, 2))
        scale = pyro.param("z_scale", torch.full((3, 2), 0.1))
        with pyro.plate("data", 3):
            to_ball = torch.distributions.biject_to(ball).with_cache()
            pyro.sample("z", dist.TransformedDistribution(dist.Normal(loc, scale).to_event(1), [to_ball]))

    @every_count
    def test_a_function_of_a_draw(self, count, at_once):
        guide = AutoNormal(self.model)
        guide()
        dreg = losses(count, at_once)[1]
        value, gradients = evaluated(dreg, self.model, guide)
        pyro.clear_param_store()
        other, expected = evaluated(dreg, self.model, self.by_distributions)
        assert value == pytest.approx(other, rel=1e-10)
        same(gradients["AutoNormal.locs.width"], expected["w_loc"], 1e-9)
        same(gradients["AutoNormal.locs.z"], expected["z_loc"], 1e-9)
        # softplus of the unconstrained scale has the slope 1 - exp(-scale).
        same(gradients["AutoNormal.scales.z"], expected["z_scale"] * -math.expm1(-0.1), 1e-9)

    @every_count
    def test_a_parameter(self, count, at_once):
        # It has no noise to reparametrise, and belongs to the model: its gradient is that of the usual bound.
        guide = AutoGuideList(self.model)
        guide.append(AutoDelta(block(self.model, expose=["width"])))
        guide.append(AutoNormal(block(self.model, hide=["width"])))
        guide()
        iwae, dreg = losses(count, at_once)
        value, gradients = evaluated(dreg, self.model, guide)
        other, expected = evaluated(iwae, self.model, guide)
        assert value == pytest.approx(other, rel=1e-10)
        same(gradients["AutoGuideList.0.width"], expected["AutoGuideList.0.width"], 1e-9)

    def test_an_auxiliary_site_outside_of_the_plate(self):
        # RenyiELBO counts such a site once for every element of the plate.
        def model():
            with pyro.plate("data", 3):
                z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(0.7)))
                pyro.sample("x", dist.Normal(PoincareBall(0.7).dist0(z), 0.3), obs=torch.ones(3))

        guide = AutoDiagonalNormal(model)
        guide()
        torch.manual_seed(1)
        expected = Trace_ELBO().loss(model, guide)
        torch.manual_seed(1)
        assert DReG_ELBO(num_particles=1).loss(model, guide) == pytest.approx(expected, rel=1e-10)


@every_count
def test_the_scale_of_a_minibatch_multiplies_the_bound(count, at_once):
    vae, x = small_vae(), torch.randn(7, 5)
    dreg = losses(count, at_once)[1]
    value, gradients = evaluated(dreg, vae.model, vae.guide, x)
    scaled, steeper = evaluated(dreg, vae.model, vae.guide, x, data_size=70)
    assert scaled == pytest.approx(10 * value, rel=1e-10)
    for name, gradient in gradients.items():
        same(steeper[name], 10 * gradient, 1e-9)


def test_subsampled_plates():
    vae, x = small_vae(), torch.randn(20, 5)
    value, gradients = evaluated(losses(4, True)[1], vae.model, vae.guide, x, subsample_size=5)
    assert math.isfinite(value)
    assert all(g.isfinite().all() and (g != 0).any() for g in gradients.values())


@pytest.mark.parametrize("inside", [True, False], ids=["in the guide", "before it"])
def test_what_the_guide_is_given_is_a_parameter_too(inside):
    # Features that a network outside of the programs computes.
    features = torch.randn(7, 3)

    def gradient(inside):
        pyro.clear_param_store()
        torch.manual_seed(4)
        network = nn.Linear(3, 2)

        def model(h):
            with pyro.plate("data", 7):
                z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(0.7)))
                pyro.sample("x", dist.Normal(PoincareBall(0.7).dist0(z), 0.3), obs=torch.ones(7))

        def guide(h):
            h = network(h) if inside else h
            with pyro.plate("data", 7):
                pyro.sample("z", hdist.WrappedNormal(PoincareBall(0.7).expmap0(h), 0.5, PoincareBall(0.7)))

        torch.manual_seed(1)
        loss = losses(4, True)[1].differentiable_loss(model, guide, features if inside else network(features))
        return torch.autograd.grad(loss, network.weight)[0]

    same(gradient(inside), gradient(not inside), 1e-12)


def test_as_a_module():
    # Pyro's losses make modules of programs, for training loops of torch.
    model, guide, args = PROGRAMS["wrapped"]()
    torch.manual_seed(1)
    loss = losses(4, True)[1](model, guide)(*args)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(evaluated(losses(4, True)[1], model, guide, *args)[0], rel=1e-10)


def test_max_plate_nesting_is_found():
    model, guide, args = PROGRAMS["wrapped"]()
    dreg = DReG_ELBO(num_particles=3, vectorize_particles=True)
    assert math.isfinite(dreg.loss_and_grads(model, guide, *args))
    assert dreg.max_plate_nesting == 2


def test_far_from_the_origin_in_single_precision():
    # Scored by the logarithm map, draws at distance 25 would leave nothing of the gradient.
    def gradient(dtype):
        pyro.clear_param_store()
        chart, u = Lorentz(1.0), 25 * torch.tensor([[0.6, 0.8], [1.0, 0.0]], dtype=dtype)
        draws = [0.5 * torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)]

        class Known(hdist.WrappedNormal):
            def _rsample_coords(self, shape):
                return self.scale * draws[0] / 0.5

        def model():
            with pyro.plate("data", 2):
                pyro.sample("z", hdist.WrappedNormal(chart.origin(2, dtype), 20.0, chart))

        def guide():
            leaf, scale = pyro.param("u", u), pyro.param("scale", torch.full((2, 1), 0.5, dtype=dtype))
            with pyro.plate("data", 2):
                distribution = hdist.WrappedNormal(chart.from_normal_coords(None, leaf), scale, chart)
                distribution.__class__ = Known
                pyro.sample("z", distribution.expand((4, 2)))

        with pyro.validation_enabled(False):
            return evaluated(losses(4, True)[1], model, guide)[1]

    exact, single = gradient(torch.float64), gradient(torch.float32)
    for name in exact:
        same(single[name], exact[name], 1e-4, scale=exact[name].norm())


class TestFast:
    """The same loss in the fast steps."""

    def steps(self, make, loss, count=4):
        pyro.clear_param_store()
        torch.manual_seed(2)
        vae = small_vae()
        x = torch.randn(7, 5)
        torch.manual_seed(3)
        svi = make(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.01}), loss)
        return [float(svi.step(x)) for _ in range(count)]

    def test_fast_svi(self):
        expected = self.steps(SVI, losses(4, True)[1])
        assert self.steps(FastSVI, losses(4, True)[1]) == pytest.approx(expected, rel=1e-9)

    @pytest.mark.slow
    def test_compiled(self):
        first, *rest = self.steps(lambda *args: FastSVI(*args, compile=True), losses(4, True)[1])
        assert all(value < first for value in rest)

    @pytest.mark.parametrize("learnable", [False, True])
    def test_ensemble(self, learnable):
        x = torch.randn(7, 5)

        def members():
            torch.manual_seed(2)
            charts = [ManifoldModule(PoincareBall(c), learnable) for c in (0.5, 1.0)]
            return [HyperbolicVAE(chart, 2, 5, hidden_dim=6, likelihood="normal") for chart in charts]

        together = members()
        torch.manual_seed(3)
        pairs = [(vae.model, vae.guide) for vae in together]
        svi = EnsembleSVI(pairs, pyro.optim.SGD({"lr": 1e-3}), losses(4, True)[1], randomness="same")
        svi.step(x, shared=True)
        for one, other in zip(together, members(), strict=True):
            pyro.clear_param_store()
            torch.manual_seed(3)
            SVI(other.model, other.guide, pyro.optim.SGD({"lr": 1e-3}), losses(4, True)[1]).step(x)
            for a, b in zip(one.parameters(), other.parameters(), strict=True):
                same(a, b, 1e-9)
