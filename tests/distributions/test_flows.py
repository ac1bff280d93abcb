"""Flows: determinants, inverses, integrals, and what a distribution of points owes to torch and Pyro."""

import copy
import math
import pickle
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Product, Sphere, Stereographic
from pyro_hyperbolic.distributions.flow_steps import axes
from pyro_hyperbolic.infer import FastSVI
from tests.distributions import test_contract as contract
from tests.helpers import GEOMETRY, each, gauss_legendre

SPACES = [
    (PoincareBall(0.7), 2),
    (PoincareBall(0.0), 2),
    (Lorentz(1.3), 3),
    (Euclidean(), 1),
    (Sphere(0.7), 1),
    (Sphere(0.7), 2),
    (Sphere(1.4), 4),
    (Stereographic(0.7), 2),
    (Stereographic(torch.tensor(-0.7, dtype=torch.float64)), 2),
    (Product((Sphere(2.0), 2), (PoincareBall(1.0), 1), (Euclidean(), 2)), 5),
]
every_space = each(("space", "dim"), SPACES)
KINDS = ("layers", "field")
every_kind = pytest.mark.parametrize("kind", KINDS)


def new_flow(space, dim, kind="layers", context_dim=None, **options):
    if kind == "layers":
        made, conditional = hdist.manifold_flow, hdist.conditional_manifold_flow
        options = {"layers": 2, "hidden_dims": (8,), "bins": 4, **options}
    else:
        made, conditional = hdist.continuous_flow, hdist.conditional_continuous_flow
        options = {"steps": 12, "hidden_dims": (8,), "waves": 4, "resolution": 0.8, **options}
    return made(space, dim, **options) if context_dim is None else conditional(space, dim, context_dim, **options)


def random_flow(space, dim, kind="layers", context_dim=None, spread=None, **options):
    """A flow whose parameters are far from those that it starts with."""
    if spread is None:
        spread = 0.3 if kind == "layers" else 0.15
    flow = new_flow(space, dim, kind, context_dim, **options).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return flow


def base(space, dim, scale=0.8):
    return hdist.WrappedNormal(space.origin(dim, dtype=torch.float64), scale, space)


@every_kind
@every_space
def test_it_starts_as_the_identity(space, dim, kind):
    x = base(space, dim).sample((50,))
    flow = new_flow(space, dim, kind, **({} if kind == "layers" else {"steps": 1})).double()
    y = flow(x)
    torch.testing.assert_close(y, x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(flow.log_abs_det_jacobian(x, y), torch.zeros_like(x[..., 0]), rtol=0, atol=1e-12)


@every_kind
@every_space
def test_inverse_and_determinant_of_given_points(space, dim, kind):
    flow = random_flow(space, dim) if kind == "layers" else random_flow(space, dim, kind, steps=16)
    solver = 0 if kind == "layers" else 1e-5
    x = base(space, dim).sample((30,))
    with torch.no_grad():
        y = flow(x)
        log_det = flow.log_abs_det_jacobian(x, y)
        assert space.contains(y).all()
        assert (y - x).abs().amax() > 0.05
        given = y.clone()
        again = flow.inv(given)
        back = flow.inv.log_abs_det_jacobian(given, again)  # as the inverse has found it
    torch.testing.assert_close(again, x, rtol=1e-7, atol=1e-7 + solver)
    torch.testing.assert_close(-back, log_det, rtol=1e-6, atol=1e-6 + 10 * solver)

    def in_normal_coords(start, end):
        slope = torch.autograd.functional.jacobian(
            lambda v: space.to_normal_coords(end, flow(space.from_normal_coords(start, v))),
            torch.full((dim,), 1e-7, dtype=torch.float64),  # logarithms are not differentiable at 0 to rounding
        )
        return torch.linalg.slogdet(slope)[1]

    torch.testing.assert_close(in_normal_coords(x[0], y[0]), log_det[0], rtol=1e-4, atol=1e-4)


def _gauss(count, low, high):
    nodes, weights = gauss_legendre(count)
    half = (high - low) / 2
    return torch.tensor(low + half * (1 + nodes)), torch.tensor(half * weights)


def _circle(count):
    angle = 2 * math.pi * torch.arange(count, dtype=torch.float64) / count
    return torch.stack([angle.cos(), angle.sin()], -1), torch.full((count,), 2 * math.pi / count, dtype=torch.float64)


def _plane(c, count):
    """Normal coordinates of the hyperbolic plane, and weights in its volume."""
    r, weight = _gauss(count, 0.0, 9.0)
    direction, share = _circle(count)
    volume = weight * torch.sinh(math.sqrt(c) * r) / math.sqrt(c)
    return (r[:, None, None] * direction).flatten(0, 1), (volume[:, None] * share).flatten()


def _total(distribution, points, weights):
    with torch.no_grad():
        return (distribution.log_prob(points).exp() * weights).sum().item()


@each(
    ("space", "normal", "kind"),
    [
        (PoincareBall(0.7), hdist.WrappedNormal, "layers"),
        (Lorentz(1.3), hdist.RiemannianNormal, "layers"),
        (Stereographic(-0.7), hdist.WrappedNormal, "layers"),
        (Lorentz(1.3), hdist.RiemannianNormal, "field"),
        (Stereographic(-0.7), hdist.WrappedNormal, "field"),
    ],
)
def test_integral_on_the_hyperbolic_plane(space, normal, kind):
    v, weights = _plane(abs(space.c), 160)
    p = normal(space.origin(2, dtype=torch.float64), 0.6, space)
    q = dist.TransformedDistribution(p, [random_flow(space, 2, kind)])
    assert _total(q, space.from_normal_coords(None, v), weights) == pytest.approx(1, abs=1e-4)


@each(
    ("make", "kind", "count"),
    [
        (lambda: hdist.HypersphericalUniform(3, torch.float64), "layers", 240),
        (lambda: base(Sphere(1.0), 2), "layers", 240),
        (lambda: hdist.HypersphericalUniform(3, torch.float64), "field", 80),
    ],
)
def test_integral_on_the_sphere(make, kind, count):
    height, weight = _gauss(count, -1.0, 1.0)
    direction, share = _circle(count)
    side = (1 - height.square()).sqrt()[:, None, None] * direction
    points = torch.cat([height[:, None, None].expand(-1, count, 1), side], -1).flatten(0, 1)
    q = dist.TransformedDistribution(make(), [random_flow(Sphere(1.0), 2, kind)])
    assert _total(q, points, (weight[:, None] * share).flatten()) == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_integral_on_a_product():
    space = Product((Sphere(1.0), 1), (Lorentz(1.0), 2))
    circle, share = _circle(96)
    v, weights = _plane(1.0, 160)
    plane = Lorentz(1.0).from_normal_coords(None, v)
    q = dist.TransformedDistribution(base(space, 3, 0.6), [random_flow(space, 3)])
    total = sum(
        _total(q, torch.cat([u.expand(len(plane), 2), plane], -1), s * weights)
        for u, s in zip(circle, share, strict=True)
    )
    assert total == pytest.approx(1, abs=1e-4)


@each(("kind", "count", "options"), [("layers", 300, {"bound": 3.0}), ("field", 80, {})])
def test_integral_on_either_sign(kind, count, options):
    space = Stereographic(0.7)
    v, weights = _gauss(count, 0.0, math.pi / math.sqrt(0.7))
    direction, share = _circle(200 if kind == "layers" else 80)
    volume = (weights * torch.sin(math.sqrt(0.7) * v) / math.sqrt(0.7))[:, None] * share
    points = space.from_normal_coords(None, v[:, None, None] * direction)
    q = dist.TransformedDistribution(base(space, 2), [random_flow(space, 2, kind, **options)])
    assert _total(q, points, volume) == pytest.approx(1, abs=1e-4)


@every_kind
@each("space", [Sphere(1.0), Sphere(torch.tensor(2.0, dtype=torch.float64)), Stereographic(1.0)])
def test_nothing_breaks_at_poles_and_antipodes(space, kind):
    """Where coordinates end: at the antipode, and at the poles of the axes of every layer."""
    dim = 2
    flow = random_flow(space, dim, layers=1) if kind == "layers" else random_flow(space, dim, kind, steps=16)
    antipode = space.from_normal_coords(
        None, torch.tensor([space.period(torch.zeros(1)) / 2, 0.0], dtype=torch.float64)
    )
    points = [antipode, space.origin(dim, dtype=torch.float64)]
    if isinstance(space, Sphere) and kind == "layers":
        axis = axes([flow.layers.layers[0][0].turn], torch.float64)[0, :, 0].detach() / torch.as_tensor(space.c).sqrt()
        pulled = flow.layers.layers[0][0]._pulled
        points += [pulled(sign * axis * torch.as_tensor(space.c).sqrt(), torch.zeros(0), True)[0] for sign in (1, -1)]
        points[2:] = [point.detach() / torch.as_tensor(space.c).sqrt() for point in points[2:]]
    x = torch.stack(points).requires_grad_()
    y = flow(x)
    log_det = flow.log_abs_det_jacobian(x, y)
    (gradient,) = torch.autograd.grad(log_det.sum() + y.clamp(-5, 5).sum(), x)
    assert log_det.isfinite().all()
    assert gradient.isfinite().all()
    near = space.from_normal_coords(x.detach(), torch.full((len(points), dim), 1e-6, dtype=torch.float64))
    torch.testing.assert_close(flow.log_abs_det_jacobian(near, flow(near)), log_det, rtol=0, atol=1e-3)
    assert (space.dist(flow.inv(y.detach()), x.detach()) < 1e-5).all()


@each(
    ("space", "dim", "kind"),
    [
        *((space, 2, "layers") for space in (PoincareBall, Lorentz, Sphere, Stereographic)),
        *((space, 2, "field") for space in (Lorentz, Stereographic)),
    ],
)
def test_gradient_in_the_curvature(space, dim, kind):
    flow = random_flow(space(0.7), dim, kind)
    v = 0.5 * torch.randn(20, dim, dtype=torch.float64)

    def density(c):
        there = space(c)
        y = there.from_normal_coords(None, v)
        return dist.TransformedDistribution(base(there, dim), [flow.on(there)]).log_prob(y).sum()

    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(density(c), c)
    with torch.no_grad():
        step = (density(c + 1e-5) - density(c - 1e-5)) / 2e-5
    torch.testing.assert_close(slope, step, rtol=1e-5, atol=1e-6)
    assert slope.abs() > 1e-3


@every_kind
def test_a_batch_of_curvatures_is_a_loop(kind):
    c = torch.tensor([0.2, 0.7, 1.5], dtype=torch.float64)
    flow = random_flow(PoincareBall(1.0), 2, kind)
    x = 0.3 * torch.randn(5, 3, 2, dtype=torch.float64).tanh()
    together = flow.on(PoincareBall(c))
    y = together(x)
    for i in range(3):
        alone = flow.on(PoincareBall(c[i]))
        torch.testing.assert_close(alone(x[:, i]), y[:, i])
        torch.testing.assert_close(
            alone.log_abs_det_jacobian(x[:, i], y[:, i]), together.log_abs_det_jacobian(x, y)[:, i]
        )
    assert together.forward_shape((2,)) == (3, 2)


@each(
    ("space", "scale", "far", "kind"),
    [(PoincareBall(1.0), 3.0, 8, "layers"), (Lorentz(1.0), 10.0, 25, "layers"), (Lorentz(1.0), 10.0, 25, "field")],
)
def test_far_out_in_float32(space, scale, far, kind):
    """The density of a sample is that of its base point in float64, wherever both are."""
    wide, narrow = random_flow(space, 2, kind), new_flow(space, 2, kind)
    narrow.load_state_dict(wide.state_dict())
    normals = [
        hdist.WrappedNormal(space.origin(2, dtype=dtype), scale, space) for dtype in (torch.float32, torch.float64)
    ]
    q = dist.TransformedDistribution(normals[0], [narrow])
    z = q.rsample((200,))
    assert space.dist0(z).amax() > far
    x = space.from_normal_coords(None, normals[0]._last[0].double())
    expected = normals[1].log_prob(x) - wide.log_abs_det_jacobian(x, wide(x))
    torch.testing.assert_close(q.log_prob(z).double(), expected, rtol=GEOMETRY[torch.float32], atol=1e-3)
    assert q.log_prob(z.detach().clone()).isfinite().all()


@every_kind
def test_gradients_reach_every_parameter(kind):
    space = Product((Sphere(1.0), 2), (PoincareBall(1.0), 2))
    flow = random_flow(space, 4, kind)
    q = dist.TransformedDistribution(base(space, 4), [flow])
    y = q.sample((40,))
    for point in (q.rsample((40,)), y, y.clone()):
        gradients = torch.autograd.grad(q.log_prob(point).sum(), list(flow.parameters()))
        assert all(gradient.isfinite().all() and gradient.abs().amax() > 0 for gradient in gradients)
    # Of a sample without a graph, those of the same point given.
    torch.testing.assert_close(q.log_prob(y), q.log_prob(y.clone()))


@every_kind
def test_the_density_of_a_sample_follows_the_flow(kind):
    """Neither a given point nor a sample, which is kept with its determinant, is scored with what was before."""
    space = PoincareBall(0.7)
    flow = random_flow(space, 2, kind)
    q = dist.TransformedDistribution(base(space, 2), [flow])
    with torch.no_grad():
        given = base(space, 2).sample((4,))
        before = q.log_prob(given)
        x = q.sample((4,))
        known = q.log_prob(x)
        for parameter in flow.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        assert (q.log_prob(x) - known).abs().min() > 1e-4
        assert (q.log_prob(given) - before).abs().min() > 1e-4
        torch.testing.assert_close(q.log_prob(x), q.log_prob(x.clone()))
        if kind == "field":
            x = q.sample((4,))
            flow.layers.steps = 5
            torch.testing.assert_close(q.log_prob(x), q.log_prob(x.clone()), rtol=0, atol=0)


def test_samples_are_those_of_the_density():
    sphere = Sphere(1.0)
    q = dist.TransformedDistribution(hdist.HypersphericalUniform(3, torch.float64), [random_flow(sphere, 2)])
    with torch.no_grad():
        u = hdist.HypersphericalUniform(3, torch.float64).sample((40_000,))
        weights = q.log_prob(u).exp() * 4 * math.pi
        z = q.sample((40_000,))
    for moment in (lambda x: x, lambda x: x * x, lambda x: x * x.roll(1, -1)):
        error = moment(z).mean(0) - (weights.unsqueeze(-1) * moment(u)).mean(0)
        assert (error.abs() < 5 * (weights.unsqueeze(-1) * moment(u)).std(0) / 100).all()


@every_kind
def test_members_of_an_ensemble(kind):
    ball = PoincareBall(1.0)
    flows = [random_flow(ball, 2, kind) for _ in range(3)]
    parameters, buffers = stack_module_state([flow.layers for flow in flows])
    x = 0.5 * torch.randn(7, 2, dtype=torch.float64).tanh()

    class Density(torch.nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers.transformed(ball, x, x.new_zeros(0), True)[1]

    one = Density(copy.deepcopy(flows[0].layers))
    states = {f"layers.{name}": value for name, value in {**parameters, **buffers}.items()}
    found = vmap(lambda state: functional_call(one, state, (x,)))(states)
    torch.testing.assert_close(found, torch.stack([Density(flow.layers)(x) for flow in flows]))


@each(
    ("space", "dim", "kind"),
    [
        *((space, dim, "layers") for space, dim in [(PoincareBall(1.0), 2), (Sphere(1.0), 1), (Euclidean(), 1)]),
        *((Sphere(1.0), 2, kind) for kind in KINDS),
    ],
)
def test_conditional_flows(space, dim, kind):
    flow = random_flow(space, dim, kind, context_dim=3)
    context = torch.randn(6, 3, dtype=torch.float64)
    q = dist.ConditionalTransformedDistribution(base(space, dim).expand((6,)), [flow]).condition(context)
    z = q.rsample((4,))
    assert z.shape == (4, 6, space.ambient_dim(dim))
    for i in range(6):
        alone = dist.TransformedDistribution(base(space, dim), [flow.condition(context[i])])
        torch.testing.assert_close(alone.log_prob(z[:, i].detach()), q.log_prob(z)[:, i], rtol=1e-6, atol=2e-5)
    assert (q.log_prob(z[:, :1].detach().expand_as(z)).std(-1) > 1e-4).all()


@pytest.mark.parametrize("drawn", [False, True])
def test_observed_points_under_a_curvature_that_moves_are_refused(drawn):
    """As by the distributions themselves; draws of the flow have a density there."""
    flow = hdist.manifold_flow(PoincareBall(1.0), 2, layers=1, hidden_dims=(4,))

    def model(x):
        if drawn:
            c = pyro.sample("c", dist.LogNormal(0.0, 0.1))
        else:
            c = pyro.param("c", torch.tensor(1.0))
        ball = PoincareBall(c)
        base = hdist.WrappedNormal(torch.zeros(2), 1.0, ball)
        pyro.sample("z", dist.TransformedDistribution(base, [flow.on(ball)]), obs=x)

    pyro.clear_param_store()
    assert pyro.poutine.trace(model).get_trace(None).log_prob_sum().isfinite()
    with pytest.raises(ValueError, match="the likelihood of observed coordinates under a curvature that moves"):
        pyro.poutine.trace(model).get_trace(torch.tensor([0.1, 0.2])).log_prob_sum()


@each(("kind", "words"), [("layers", "layers=2"), ("field", "steps=12")])
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_copies_transform_alike(copier, kind, words):
    flow = random_flow(PoincareBall(0.7), 2, kind)
    x = 0.3 * torch.randn(5, 2, dtype=torch.float64).tanh()
    y = flow(x.requires_grad_())
    torch.testing.assert_close(copier(flow)(x), y, rtol=0, atol=0)
    assert repr(copier(flow)) == f"ManifoldFlow(PoincareBall(c=0.7), {words})"


@dataclass(frozen=True)
class FlowCase:
    """A flow of a wrapped normal, as a row of the table of distributions."""

    space: object
    dim: int
    kind: str = "layers"
    distribution = dist.TransformedDistribution

    @property
    def event_shape(self):
        return (self.space.ambient_dim(self.dim),)

    def make(self, batch=(), other=(), dtype=torch.float64, validate_args=None):
        loc = self.space.origin(self.dim, dtype=dtype).expand(*batch, -1)
        normal = hdist.WrappedNormal(loc, 0.6, self.space, validate_args=validate_args)
        # Of a field that is weak enough for an inverse to rounding.
        options = {} if self.kind == "layers" else {"spread": 0.003, "steps": 4}
        flow = random_flow(self.space, self.dim, self.kind, **options).to(dtype).requires_grad_(False)
        return dist.TransformedDistribution(normal, [flow], validate_args=validate_args)


PRODUCT = Product((Sphere(1.0), 2), (Euclidean(), 1))


@each("case", [FlowCase(PoincareBall(1.0), 2), FlowCase(PRODUCT, 3), FlowCase(PRODUCT, 3, "field")])
@pytest.mark.parametrize(
    "test",
    [
        contract.test_sample_shape_may_be_any_sequence,
        contract.test_empty_batch,
        contract.test_support_has_the_event_dimension,
        contract.test_log_prob_broadcasts_one_distribution_over_many_values,
        contract.test_expanded_samples_differ_along_the_new_dimension,
        contract.test_expand_by,
        contract.test_to_event,
        contract.test_torch_independent,
        contract.test_mask,
        contract.test_deepcopy_draws_the_same,
        contract.test_a_seed_determines_the_samples,
        contract.test_a_sample_may_be_changed_or_become_a_parameter,
        contract.test_validation_off_reads_nothing_on_the_host,
    ],
    ids=lambda test: test.__name__,
)
def test_the_contract_of_distributions(test, case):
    # Transforms follow the default, whatever a distribution is told.
    with pyro.validation_enabled(test is not contract.test_validation_off_reads_nothing_on_the_host):
        test.__wrapped__(case)


@each(
    ("base", "space", "words"),
    [
        (hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(1.0)), Lorentz(1.0), "have 3 coordinates"),
        (hdist.WrappedNormal(Lorentz(2.0).origin(2), 1.0, Lorentz(2.0)), Lorentz(1.0), "not on Lorentz"),
        (dist.Normal(torch.zeros(2), 9.0).to_event(1), PoincareBall(1.0), "not on PoincareBall"),
    ],
)
def test_bases_on_other_spaces(base, space, words):
    with pytest.raises(ValueError, match=words):
        dist.TransformedDistribution(base, [hdist.manifold_flow(space, 2)]).sample((9,))


def _program(space, dim, kind="layers", **options):
    flow = new_flow(space, dim, kind, **options)

    def model(x):
        pyro.module("flow", flow)
        loc = pyro.param("loc", torch.zeros(dim))
        normal = hdist.WrappedNormal(space.from_normal_coords(None, loc), 0.5, space)
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.TransformedDistribution(normal, [flow]), obs=x)

    return model


@each(("space", "dim"), [(Lorentz(1.0), 2), (Sphere(1.0), 2)])
def test_a_flow_is_learned(space, dim):
    """Two clusters, which no wrapped normal fits."""
    ends = torch.tensor([[1.0] * dim, [-1.0] * dim])
    x = space.from_normal_coords(None, ends.repeat(50, 1) + 0.1 * torch.randn(100, dim))
    model = _program(space, dim)
    svi = pyro.infer.SVI(model, lambda x: None, pyro.optim.Adam({"lr": 0.05}), pyro.infer.Trace_ELBO())
    losses = [svi.step(x) for _ in range(12)]
    assert losses[-1] < losses[0] - 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "dim", "kind", "options"),
    [
        (Lorentz(1.0), 2, "layers", {"layers": 1}),
        (Sphere(1.0), 2, "layers", {"layers": 1}),
        (Sphere(1.0), 2, "field", {"steps": 1, "waves": 0}),
    ],
    ids=str,
)
def test_compiled_steps_are_plain_ones(space, dim, kind, options):
    x = space.from_normal_coords(None, torch.randn(64, dim))
    losses = {}
    for compiled in (False, True):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = _program(space, dim, kind, **options)
        svi = FastSVI(model, lambda x: None, pyro.optim.Adam({"lr": 0.01}), pyro.infer.Trace_ELBO(), compile=compiled)
        losses[compiled] = [float(svi.step(x)) for _ in range(5)]
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
    assert losses[True][-1] < losses[True][0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hdist.manifold_flow("h2", 2), "manifold must be a manifold, got 'h2'"),
        (lambda: hdist.manifold_flow(Lorentz(1.0), 0), "dim must be a positive integer, got 0"),
        (lambda: hdist.manifold_flow(Lorentz(1.0), 2, layers=0), "layers must be a positive integer, got 0"),
        (lambda: hdist.manifold_flow(Lorentz(1.0), 2, hidden_dims=3), "hidden_dims must be a sequence of sizes"),
        (lambda: hdist.manifold_flow(Lorentz(1.0), 2, bins=1), "bins must be an integer of at least 2, got 1"),
        (lambda: hdist.manifold_flow(Lorentz(1.0), 2, bound=-1.0), "bound must be a positive number, got -1.0"),
        (lambda: hdist.manifold_flow(Lorentz(1.0), 2).on(Sphere(1.0)), "space must be a Lorentz"),
        (lambda: hdist.continuous_flow(Lorentz(1.0), 2, steps=0), "steps must be a positive integer, got 0"),
        (lambda: hdist.continuous_flow(Lorentz(1.0), 2, waves=-1), "waves must be an integer of at least 0, got -1"),
        (lambda: hdist.continuous_flow(Lorentz(1.0), 2, resolution=0), "resolution must be a positive number, got 0"),
        (lambda: hdist.conditional_manifold_flow(Lorentz(1.0), 2, 0), "context_dim must be a positive integer"),
        (
            lambda: hdist.conditional_manifold_flow(Lorentz(1.0), 2, 3).condition(torch.zeros(2)),
            r"context must be a tensor \(..., 3\), got \(2,\); set context_dim",
        ),
    ],
)
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
