"""Flow matching: the velocities it regresses on, what it learns, and its arguments."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Product, Sphere, Stereographic
from pyro_hyperbolic.infer import flow_matching
from pyro_hyperbolic.infer.matching import matched
from tests.helpers import each

SPHERE = Sphere(1.0)
SPACES = [
    (PoincareBall(0.7), 2),
    (Lorentz(1.3), 3),
    (Euclidean(), 1),
    (SPHERE, 2),
    (Stereographic(0.7), 2),
    (Stereographic(-0.7), 2),
    (Product((Sphere(2.0), 2), (Lorentz(1.0), 1)), 3),
]


def normal(space, dim, scale=0.8, dtype=torch.float64):
    return hdist.WrappedNormal(space.origin(dim, dtype=dtype), scale, space)


@each(("space", "dim"), SPACES)
def test_velocities_lead_to_the_data(space, dim):
    """To the one point that there is, averaged or not."""
    end = normal(space, dim).sample()
    for average in (False, True):
        x, v, time = matched(space, dim, normal(space, dim), end.expand(20, -1), average=average)
        reached = space.from_normal_coords(x, (1 - time) * v)
        torch.testing.assert_close(reached, end.expand(20, -1), rtol=1e-6, atol=1e-6)


@each(("space", "dim"), [(Lorentz(1.0), 2), (SPHERE, 2), (Product((SPHERE, 1), (PoincareBall(1.0), 1)), 2)])
def test_averages_are_those_of_single_velocities(space, dim):
    """Both lead to the same sums against any function of place and time."""
    base, count = normal(space, dim), 80
    ends = normal(space, dim, 0.5).sample((4,)).repeat(count // 4, 1)
    sums = []
    for average in (False, True):
        rows = [matched(space, dim, base, ends, average=average) for _ in range(20)]
        x, v, time = (torch.cat(parts) for parts in zip(*rows, strict=True))
        tests = torch.stack([time, x[:, :1], x[:, :1] * time, x[:, -1:]], -1).squeeze(-2)
        products = tests.unsqueeze(-1) * v.unsqueeze(-2)
        sums.append((products.mean(0), products.std(0) / len(x) ** 0.5))
    (one, error), (mean, other) = sums
    assert ((one - mean).abs() < 4.5 * (error.square() + other.square()).sqrt()).all()
    assert (other <= error).all()


def test_a_seed_determines_the_flow():
    x = normal(SPHERE, 2, 0.3, torch.float32).sample((40,))
    flows = []
    for _ in range(2):
        pyro.set_rng_seed(1)
        flow = hdist.continuous_flow(SPHERE, 2, hidden_dims=(8,), waves=2, steps=2)
        torch.randn(3)
        flow_matching(flow, hdist.HypersphericalUniform(3), x, steps=3, batch_size=8, seed=5)
        flows.append(torch.cat([p.flatten() for p in flow.parameters()]))
    torch.testing.assert_close(*flows, rtol=0, atol=0)


def test_the_best_parameters_are_kept():
    x = normal(SPHERE, 2, 0.3, torch.float32).sample((60,))
    flow, base = hdist.continuous_flow(SPHERE, 2, hidden_dims=(8,), waves=2, steps=4), hdist.HypersphericalUniform(3)
    history = flow_matching(flow, base, x[:40], validation=x[40:], steps=20, batch_size=20, learning_rate=0.3)
    assert history.losses.shape == history.validation.shape == (20,)
    assert history.best_step == 1 + history.validation.argmin()
    with torch.no_grad():
        loss = -dist.TransformedDistribution(base, [flow]).log_prob(x[40:]).mean()
    torch.testing.assert_close(loss, history.validation.min())


def test_a_conditional_flow_is_learned():
    """The context is the side on which the points are."""
    plane = Lorentz(1.0)
    context = torch.tensor([[1.0], [-1.0]]).repeat(100, 1)
    x = plane.from_normal_coords(None, torch.cat([context, torch.zeros_like(context)], -1) + 0.2 * torch.randn(200, 2))
    flow = hdist.conditional_continuous_flow(plane, 2, 1, hidden_dims=(16,), waves=0, steps=4)
    base = normal(plane, 2, 1.0, torch.float32)
    flow_matching(flow, base, (x, context), validation=(x, context), steps=60, learning_rate=0.02)
    with torch.no_grad():
        right, wrong = (
            dist.TransformedDistribution(base, [flow.condition(c)]).log_prob(x).mean() for c in (context, -context)
        )
    assert right > base.log_prob(x).mean() + 0.3
    assert right > wrong + 1


@pytest.mark.slow
@pytest.mark.parametrize(("space", "base"), [(SPHERE, "uniform"), (Lorentz(1.0), "normal")], ids=str)
def test_two_bumps_are_learned(space, base):
    """The loss of new points is the entropy, to a twentieth of a nat."""
    pyro.set_rng_seed(0)
    ends = space.from_normal_coords(None, torch.tensor([[1.2, 0.0], [-0.5, 1.0]]))
    bumps = hdist.WrappedNormal(ends, torch.tensor([0.2, 0.3]), space)
    mixture = hdist.ManifoldMixture(dist.Categorical(torch.tensor([0.3, 0.7])), bumps)
    p = hdist.HypersphericalUniform(3) if base == "uniform" else normal(space, 2, 1.0, torch.float32)
    flow = hdist.continuous_flow(space, 2, waves=8, resolution=0.3)
    flow_matching(flow, p, mixture.sample((4000,)), steps=500, batch_size=128, learning_rate=1e-2)
    x = mixture.sample((1000,))
    with torch.no_grad():
        loss = dist.TransformedDistribution(p, [flow]).log_prob(x) - mixture.log_prob(x)
    assert loss.mean().abs() < 0.05


FLOW = hdist.continuous_flow(SPHERE, 2, hidden_dims=(4,), waves=0)
UNIFORM = hdist.HypersphericalUniform(3)
POINTS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: flow_matching(hdist.manifold_flow(SPHERE, 2), UNIFORM, POINTS), "flow must be a continuous flow"),
        (
            lambda: flow_matching(FLOW, dist.Normal(0.0, 1.0), POINTS),
            r"base must be a distribution of points of Sphere",
        ),
        (
            lambda: flow_matching(FLOW, dist.Normal(torch.zeros(3), 1.0).to_event(1), POINTS),
            "base must be a distribution of points of",
        ),
        (lambda: flow_matching(FLOW, UNIFORM.expand((2,)), POINTS), r"with batch_shape \(\) and event_shape \(3,\)"),
        (lambda: flow_matching(FLOW, UNIFORM, POINTS[0]), r"data must be points .* as a tensor \(N, 3\), got \(3,\)"),
        (lambda: flow_matching(FLOW, UNIFORM, 2 * POINTS), r"data has 2 rows that are no points .* with its projx"),
        (lambda: flow_matching(FLOW, UNIFORM, POINTS, validation="all"), "validation must be points"),
        (lambda: flow_matching(FLOW, UNIFORM, (POINTS, POINTS)), "pass the points alone"),
        (lambda: flow_matching(FLOW, UNIFORM, POINTS, steps=0), "steps must be a positive integer, got 0"),
        (lambda: flow_matching(FLOW, UNIFORM, POINTS, learning_rate=-1), "learning_rate must be a positive number"),
        (
            lambda: flow_matching(hdist.conditional_continuous_flow(SPHERE, 2, 4), UNIFORM, POINTS),
            r"got none; pass a pair, points and contexts \(2, 4\)",
        ),
    ],
)
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
