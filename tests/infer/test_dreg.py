"""The doubly reparametrised bound: its value, and its gradient against the formula and against Pyro's estimators."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import nn

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz
from pyro_hyperbolic.infer import DReG_ELBO
from pyro_hyperbolic.infer.draws import Draws
from tests.helpers import same
from tests.infer.dreg_models import PROGRAMS, evaluated, every_count, losses

pytestmark = pytest.mark.usefixtures("double")
DISTRIBUTIONS = [hdist.WrappedNormal, hdist.RiemannianNormal]
CHARTS = [PoincareBall(0.7), Lorentz(0.7)]
every_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS)
every_chart = pytest.mark.parametrize("chart", CHARTS, ids=repr)
every_program = pytest.mark.parametrize("programs", PROGRAMS)


@every_count
@every_program
def test_value_is_that_of_the_importance_weighted_bound(programs, count, at_once):
    model, guide, args = PROGRAMS[programs]()
    iwae, dreg = losses(count, at_once)
    torch.manual_seed(1)
    expected = iwae.loss(model, guide, *args)
    torch.manual_seed(1)
    assert dreg.loss(model, guide, *args) == pytest.approx(expected, rel=1e-10)
    assert evaluated(dreg, model, guide, *args)[0] == pytest.approx(expected, rel=1e-10)


@every_count
@every_program
def test_gradient_of_the_model_is_that_of_the_importance_weighted_bound(programs, count, at_once):
    model, guide, args = PROGRAMS[programs]()
    iwae, dreg = losses(count, at_once)
    _, expected = evaluated(iwae, model, guide, *args)
    _, gradients = evaluated(dreg, model, guide, *args)
    assert gradients.keys() == expected.keys()
    of_model = [name for name in gradients if "decoder" in name or name == "noise"]
    of_guide = [name for name in gradients if "encoder" in name or name in ("pull", "z_scale", "width_loc")]
    assert of_model
    for name in of_model:
        same(gradients[name], expected[name], 1e-9)
    assert any(not torch.allclose(gradients[name], expected[name], rtol=1e-3) for name in of_guide)


def by_the_formula(chart, distribution, count, anchor):
    """Minus the bound of three data and its gradient in the guide's parameters, written out for one latent each."""
    u = torch.tensor([[0.5, -0.2], [0.3, 0.9], [-1.0, 0.1]], requires_grad=True)
    scale = torch.tensor([[0.4], [0.6], [0.5]], requires_grad=True)
    torch.manual_seed(1)
    q = distribution(chart.from_normal_coords(None, u), scale, chart).expand((count, 3))
    z = q.rsample()
    fixed = distribution(chart.from_normal_coords(None, u.detach()), scale.detach(), chart)
    log_p = distribution(chart.origin(2), 1.0, chart).log_prob(z) + dist.Normal(0.7, 0.3).log_prob(
        chart.dist(z, anchor)
    )
    log_w = log_p - fixed.log_prob(z.clone())
    bound = (log_w.logsumexp(0) - math.log(count)).sum()
    slopes = torch.autograd.grad(log_w.sum(), z, retain_graph=True)[0]
    weight = log_w.softmax(0).detach().unsqueeze(-1)
    return -bound, torch.autograd.grad(z, [u, scale], -weight.square() * slopes)


@every_chart
@every_distribution
@pytest.mark.parametrize("count", [1, 5])
def test_gradient_of_the_guide_is_the_formula(distribution, chart, count):
    anchor = chart.from_normal_coords(None, torch.tensor([1.0, 0.3]))

    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", distribution(chart.origin(2), 1.0, chart))
            pyro.sample("x", dist.Normal(chart.dist(z, anchor), 0.3), obs=0.7 * torch.ones(3))

    def guide():
        u = pyro.param("u", torch.tensor([[0.5, -0.2], [0.3, 0.9], [-1.0, 0.1]]))
        scale = pyro.param("scale", torch.tensor([[0.4], [0.6], [0.5]]))
        with pyro.plate("data", 3):
            pyro.sample("z", distribution(chart.from_normal_coords(None, u), scale, chart))

    value, gradients = evaluated(losses(count, True)[1], model, guide)
    expected, (of_u, of_scale) = by_the_formula(chart, distribution, count, anchor)
    assert value == pytest.approx(expected.item(), rel=1e-10)
    same(gradients["u"], of_u, 1e-9)
    same(gradients["scale"], of_scale, 1e-9)


class Point:
    """One posterior many times over, each copy with parameters of its own: as many independent gradients in one run."""

    chart, anchor = PoincareBall(0.7), torch.tensor([0.5, 0.3], dtype=torch.float64)
    start = {"u": [0.3, -0.1], "scale": [0.7]}

    def __init__(self, copies):
        self.copies = copies

    def parameters(self):
        start = {name: torch.tensor(t).expand(self.copies, -1).clone() for name, t in self.start.items()}
        return {name: pyro.param(name, t) for name, t in start.items()}

    def model(self):
        with pyro.plate("data", self.copies):
            z = self.latents()
            pyro.sample("x", dist.Normal(self.chart.dist(z, self.anchor), 0.8), obs=torch.full((self.copies,), 0.6))

    def latents(self):
        return pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 0.8, self.chart))

    def guide(self):
        own = self.parameters()
        with pyro.plate("data", self.copies):
            pyro.sample("z", hdist.WrappedNormal(self.chart.expmap0(own["u"]), own["scale"], self.chart))


class Chain(Point):
    """Two points; the guide of the second starts from the draw of the first."""

    start = {"u": [0.6, -0.3], "w": [0.2, 0.1], "scale": [0.5]}

    def latents(self):
        top = pyro.sample("top", hdist.WrappedNormal(torch.zeros(2), 1.0, self.chart))
        return pyro.sample("z", hdist.RiemannianNormal(top, 0.8, self.chart))

    def guide(self):
        own = self.parameters()
        with pyro.plate("data", self.copies):
            top = pyro.sample("top", hdist.WrappedNormal(self.chart.expmap0(own["w"]), own["scale"], self.chart))
            loc = self.chart.mobius_add(top, self.chart.expmap0(own["u"]))
            pyro.sample("z", hdist.RiemannianNormal(loc, own["scale"], self.chart))


def gradient_samples(loss, programs, seed):
    pyro.clear_param_store()
    _, gradients = evaluated(loss, programs.model, programs.guide, seed=seed)
    return torch.cat([gradients[name] for name in programs.start], -1)


def signal_to_noise(samples):
    return samples.mean(0).norm() / samples.std(0).norm()


@pytest.mark.slow
def test_it_is_unbiased():
    programs = Chain(20_000)
    iwae, dreg = (gradient_samples(loss, programs, seed) for seed, loss in enumerate(losses(4, True)))
    difference = dreg.mean(0) - iwae.mean(0)
    error = ((dreg.var(0) + iwae.var(0)) / programs.copies).sqrt()
    assert (difference.abs() < 4 * error).all()
    assert (error < 0.1 * iwae.mean(0).norm()).all()


def test_its_signal_to_noise_ratio_grows_with_the_number_of_particles():
    # As sqrt(K), while that of the usual gradient falls as 1/sqrt(K).
    ratios = {}
    for count in (4, 64):
        iwae, dreg = (gradient_samples(loss, Point(1000), seed=3) for loss in losses(count, True))
        ratios["iwae", count], ratios["dreg", count] = signal_to_noise(iwae), signal_to_noise(dreg)
        assert (dreg.var(0) < iwae.var(0)).all()
    assert ratios["dreg", 64] > 2.5 * ratios["dreg", 4]
    assert ratios["iwae", 64] < 0.6 * ratios["iwae", 4]
    assert ratios["dreg", 4] > 3 * ratios["iwae", 4]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PoincareBall, Lorentz])
def test_learned_curvature(kind):
    # In the guide it moves the draws, in the model the density: its gradient is the sum of both estimates.
    def gradient(which, copies=10_000):
        pyro.clear_param_store()
        raw = torch.full((), 0.3, requires_grad=True)

        def chart():
            return kind(torch.nn.functional.softplus(raw))

        def model():
            with pyro.plate("data", copies):
                z = pyro.sample("z", hdist.WrappedNormal(chart().origin(2), 1.0, chart()))
                anchor = chart().from_normal_coords(None, torch.tensor([0.5, 1.0]))
                pyro.sample("x", dist.Normal(chart().dist(z, anchor), 0.4), obs=torch.full((copies,), 2.0))

        def guide():
            loc = chart().from_normal_coords(None, pyro.param("u", torch.tensor([1.2, -0.6])))
            with pyro.plate("data", copies):
                pyro.sample("z", hdist.WrappedNormal(loc, 0.5, chart()))

        evaluated(losses(6, True)[which], model, guide, seed=which)
        return raw.grad / copies

    # The gradient is about 0.08, and the noise of each 0.002.
    assert gradient(1) == pytest.approx(gradient(0).item(), abs=0.012)


@pytest.mark.parametrize("kind", [PoincareBall, Lorentz])
def test_a_curvature_that_is_itself_a_parameter(kind):
    # It is an argument of an autograd function, which the mode that holds parameters fixed does not see.
    def gradient(leaf):
        pyro.clear_param_store()
        c = nn.Parameter(torch.tensor(0.7))

        def model():
            with pyro.plate("data", 3):
                pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))

        def guide():
            chart = kind(c if leaf else c * 1.0)
            ends = [chart.from_normal_coords(None, torch.tensor(u)) for u in ([0.5, -0.2], [0.3, 0.9])]
            with pyro.plate("data", 3):
                pyro.sample("z", dist.Normal(chart.dist(*ends) * torch.ones(2), 0.5).to_event(1))

        evaluated(losses(4, True)[1], model, guide)
        return c.grad

    assert gradient(leaf=False).abs() > 1e-3
    same(gradient(leaf=True), gradient(leaf=False), 1e-12)


@pytest.mark.parametrize("learned", [False, True])
@every_chart
def test_the_draws_are_the_same_numbers(chart, learned):
    c = torch.tensor(0.7, dtype=torch.float32, requires_grad=learned)

    def guide():
        loc = pyro.param("u", 3 * torch.ones(200, 2, dtype=torch.float32))
        space = type(chart)(c)
        pyro.sample("z", hdist.WrappedNormal(space.from_normal_coords(None, loc), 1.0, space).to_event(1))

    drawn = pyro.poutine.trace(guide).get_trace()
    value, marked = (trace.nodes["z"]["value"] for trace in (drawn, Draws(drawn).marked))
    assert marked is not value
    assert marked.requires_grad
    torch.testing.assert_close(marked, value, rtol=0, atol=0)


def test_one_particle_at_the_optimum_has_no_noise():
    # Sticking the landing: with q = p the log-weight does not depend on the draw.
    def model():
        pyro.sample("z", hdist.RiemannianNormal(torch.tensor([0.3, 0.1]), 0.8, PoincareBall(0.7)))

    def guide():
        loc = pyro.param("loc", torch.tensor([0.3, 0.1]))
        pyro.sample("z", hdist.RiemannianNormal(loc, pyro.param("scale", torch.tensor([0.8])), PoincareBall(0.7)))

    _, gradients = evaluated(DReG_ELBO(num_particles=1), model, guide)
    for gradient in gradients.values():
        assert gradient.abs().max() < 1e-12
    _, gradients = evaluated(Trace_ELBO(), model, guide)
    assert gradients["scale"].abs() > 0.01
