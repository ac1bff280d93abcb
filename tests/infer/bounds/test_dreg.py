"""The doubly reparametrised bound: its value, and its gradient against the formula and against Pyro's estimators."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoGuideList, AutoNormal
from pyro.poutine import block
from torch import nn
from torch.distributions import constraints

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz
from pyro_hyperbolic.infer import DReG_ELBO, EnsembleSVI, FastSVI
from pyro_hyperbolic.infer.bounds.draws import Draws
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same

LAWS = [hdist.WrappedNormal, hdist.RiemannianNormal]
CHARTS = [PoincareBall(0.7), Lorentz(0.7)]
PARTICLES = [(1, False), (4, False), (4, True)]
every_law = pytest.mark.parametrize("law", LAWS)
every_chart = pytest.mark.parametrize("chart", CHARTS, ids=repr)
every_count = pytest.mark.parametrize(("count", "at_once"), PARTICLES)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def losses(count, at_once, nesting=1):
    options = {"num_particles": count, "vectorize_particles": at_once, "max_plate_nesting": nesting}
    return RenyiELBO(alpha=0, **options), DReG_ELBO(**options)


def evaluated(loss, model, guide, *args, seed=1, **kwargs):
    """The loss, and the gradients of all parameters by name."""
    for p in pyro.get_param_store().values():
        p.unconstrained().grad = None
    torch.manual_seed(seed)
    value = loss.loss_and_grads(model, guide, *args, **kwargs)
    return value, {name: p.grad for name, p in pyro.get_param_store().named_parameters()}


def small_vae(law="wrapped", **options):
    return HyperbolicVAE(
        PoincareBall(0.7), 2, 5, hidden_dim=6, prior=law, posterior=law, likelihood="normal", **options
    )


def hierarchy():
    """Latents in and outside of a plate, a mask, an auxiliary site, and a guide from one latent to the next."""
    chart, mask = PoincareBall(0.7), torch.tensor([True, True, False, True])

    def model(x):
        top = pyro.sample("top", hdist.WrappedNormal(torch.zeros(2), 1.0, chart))
        width = pyro.sample("width", dist.LogNormal(0.0, 0.3))
        with pyro.plate("data", 4), pyro.poutine.mask(mask=mask):
            z = pyro.sample("z", hdist.WrappedNormal(top, width.unsqueeze(-1), chart))
            noise = pyro.param("noise", torch.tensor(0.5), constraint=constraints.positive)
            pyro.sample("x", dist.Normal(chart.dist(z, torch.tensor([0.4, 0.2])), noise), obs=x)

    def guide(x):
        pyro.sample("extra", dist.Normal(pyro.param("extra_loc", torch.tensor(0.5)), 1.0), infer={"is_auxiliary": True})
        loc = pyro.param("top_loc", torch.tensor([0.1, 0.2]), constraint=hdist.constraints.poincare_ball(0.7))
        top = pyro.sample("top", hdist.WrappedNormal(loc, 0.4, chart))
        pyro.sample("width", dist.LogNormal(pyro.param("width_loc", torch.tensor(0.1)), 0.2))
        scale = pyro.param("z_scale", 0.3 * torch.ones(4, 1), constraint=constraints.positive)
        pull = pyro.param("pull", torch.tensor(0.8))
        with pyro.plate("data", 4), pyro.poutine.mask(mask=mask):
            pyro.sample("z", hdist.RiemannianNormal(chart.mobius_scalar_mul(pull, top), scale, chart))

    return model, guide, (torch.rand(4),)


PROGRAMS = {
    "wrapped": lambda: ((vae := small_vae()).model, vae.guide, (torch.randn(7, 5),)),
    "riemannian": lambda: ((vae := small_vae("riemannian")).model, vae.guide, (torch.randn(7, 5),)),
    "euclidean": lambda: ((vae := EuclideanVAE(2, 5, hidden_dim=6)).model, vae.guide, (torch.rand(7, 5),)),
    "hierarchy": hierarchy,
}
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
    of_model = [name for name in gradients if name.startswith("decoder") or name == "noise"]
    of_guide = [name for name in gradients if name.startswith("encoder") or name in ("pull", "z_scale", "width_loc")]
    assert of_model
    for name in of_model:
        same(gradients[name], expected[name], 1e-9)
    assert any(not torch.allclose(gradients[name], expected[name], rtol=1e-3) for name in of_guide)


def by_the_formula(chart, law, count, anchor):
    """Minus the bound of three data and its gradient in the guide's parameters, written out for one latent each."""
    u = torch.tensor([[0.5, -0.2], [0.3, 0.9], [-1.0, 0.1]], requires_grad=True)
    scale = torch.tensor([[0.4], [0.6], [0.5]], requires_grad=True)
    torch.manual_seed(1)
    q = law(chart.from_normal_coords(None, u), scale, chart).expand((count, 3))
    z = q.rsample()
    fixed = law(chart.from_normal_coords(None, u.detach()), scale.detach(), chart)
    log_p = law(chart.origin(2), 1.0, chart).log_prob(z) + dist.Normal(0.7, 0.3).log_prob(chart.dist(z, anchor))
    log_w = log_p - fixed.log_prob(z.clone())
    bound = (log_w.logsumexp(0) - math.log(count)).sum()
    slopes = torch.autograd.grad(log_w.sum(), z, retain_graph=True)[0]
    weight = log_w.softmax(0).detach().unsqueeze(-1)
    return -bound, torch.autograd.grad(z, [u, scale], -weight.square() * slopes)


@every_chart
@every_law
@pytest.mark.parametrize("count", [1, 5])
def test_gradient_of_the_guide_is_the_formula(law, chart, count):
    anchor = chart.from_normal_coords(None, torch.tensor([1.0, 0.3]))

    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", law(chart.origin(2), 1.0, chart))
            pyro.sample("x", dist.Normal(chart.dist(z, anchor), 0.3), obs=0.7 * torch.ones(3))

    def guide():
        u = pyro.param("u", torch.tensor([[0.5, -0.2], [0.3, 0.9], [-1.0, 0.1]]))
        scale = pyro.param("scale", torch.tensor([[0.4], [0.6], [0.5]]))
        with pyro.plate("data", 3):
            pyro.sample("z", law(chart.from_normal_coords(None, u), scale, chart))

    value, gradients = evaluated(losses(count, True)[1], model, guide)
    expected, (of_u, of_scale) = by_the_formula(chart, law, count, anchor)
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


class TestDeterministicSites:
    """Guides whose sites are functions of draws, or parameters."""

    def model(self):
        width = pyro.sample("width", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", 3):
            z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), width.unsqueeze(-1), PoincareBall(0.7)))
            pyro.sample("x", dist.Normal(PoincareBall(0.7).dist0(z), 0.3), obs=torch.ones(3))

    def by_laws(self):
        """What ``AutoNormal`` draws, as laws under the sites' own names."""
        ball = hdist.constraints.poincare_ball(0.7)
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
        other, expected = evaluated(dreg, self.model, self.by_laws)
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
                law = hdist.WrappedNormal(chart.from_normal_coords(None, leaf), scale, chart)
                law.__class__ = Known
                pyro.sample("z", law.expand((4, 2)))

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


class TestRefusals:
    def latent(self, law):
        def program():
            pyro.sample("k", law)

        return program

    def test_a_site_that_is_not_reparametrised(self):
        program = self.latent(dist.Bernoulli(0.3))
        with pytest.raises(ValueError, match="site 'k' is drawn from Bernoulli, which is not reparametrised"):
            DReG_ELBO().loss(program, program)

    def test_a_discrete_latent_of_the_model_alone(self):
        def model():
            pyro.sample("k", dist.Categorical(torch.ones(3)), infer={"enumerate": "parallel"})

        with pytest.warns(UserWarning, match="not guide"), pytest.raises(ValueError, match=r"'k' .*TraceEnum_ELBO"):
            DReG_ELBO().loss(model, lambda: None)

    def test_a_euclidean_guide_for_a_point_of_the_ball(self):
        model = self.latent(hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(0.7)))
        guide = self.latent(dist.Normal(torch.zeros(2), 0.01).to_event(1))
        with pytest.raises(ValueError, match="'k' is a point of poincare_ball"):
            DReG_ELBO().loss(model, guide)

    def test_dropout_in_the_guide(self):
        dropout = nn.Dropout(0.5)

        def model():
            with pyro.plate("data", 4):
                pyro.sample("z", dist.Normal(0.0, 1.0))

        def guide():
            with pyro.plate("data", 4):
                pyro.sample("z", dist.Normal(dropout(pyro.param("loc", torch.ones(4))), 1.0))

        with pytest.raises(ValueError, match="draws random numbers apart from its sample sites"):
            DReG_ELBO().loss_and_grads(model, guide)
        dropout.eval()
        assert math.isfinite(DReG_ELBO().loss_and_grads(model, guide))

    @pytest.mark.parametrize("fast", [FastSVI, EnsembleSVI])
    def test_dropout_in_the_guide_of_a_fast_step(self, fast):
        vaes = [small_vae() for _ in range(2)]
        for vae in vaes:
            vae.encoder.register_forward_pre_hook(lambda module, inputs: (nn.functional.dropout(inputs[0]),))
        pairs = [(vae.model, vae.guide) for vae in vaes]
        first = [pairs] if fast is EnsembleSVI else pairs[0]
        svi = fast(*first, pyro.optim.Adam({"lr": 0.01}), losses(4, True)[1])
        with pytest.raises(ValueError, match="draws random numbers apart from its sample sites"):
            svi.step(torch.randn(7, 5), **({"shared": True} if fast is EnsembleSVI else {}))

    def test_no_sample_sites(self):
        with pytest.raises(ValueError, match="have no sample sites"):
            DReG_ELBO().loss(lambda: None, lambda: None)

    def test_a_guide_messenger(self):
        from pyro.infer.autoguide import AutoNormalMessenger

        model = self.latent(dist.Normal(0.0, 1.0))
        with pytest.raises(ValueError, match="GuideMessenger"):
            DReG_ELBO().loss(model, AutoNormalMessenger(model))

    @pytest.mark.parametrize("count", [0, -1, 2.5, True])
    def test_number_of_particles(self, count):
        with pytest.raises(ValueError, match="num_particles must be a positive integer"):
            DReG_ELBO(num_particles=count)
