"""vmap, grad, compile and tracing: what fast training rests on."""

import pytest
import torch
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall

DISTRIBUTIONS = [hdist.WrappedNormal, hdist.RiemannianNormal]
every_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS)
N, DIM = 6, 2

# Which of loc, scale, c and value are batched.
MAPPED = [(0, 0, 0, 0), (0, None, None, None), (None, 0, None, None), (None, None, 0, None), (None, None, None, 0)]
every_mapping = pytest.mark.parametrize("in_dims", MAPPED, ids=str)


@pytest.fixture
def batch():
    """Six of everything: loc, scale, c and a value."""
    torch.manual_seed(2)
    return (
        0.3 * torch.randn(N, DIM, dtype=torch.float64).tanh(),
        0.5 + torch.rand(N, 1, dtype=torch.float64),
        0.2 + torch.rand(N, dtype=torch.float64),
        0.4 * torch.randn(N, DIM, dtype=torch.float64).tanh(),
    )


def _mapped(batch, in_dims):
    return tuple(x if dim == 0 else x[0] for x, dim in zip(batch, in_dims, strict=True))


def _loop(function, args, in_dims):
    rows = [function(*(x[i] if d == 0 else x for x, d in zip(args, in_dims, strict=True))) for i in range(N)]
    return torch.stack(rows)


@pytest.mark.parametrize("validate_args", [True, False])
@every_mapping
@every_distribution
def test_vmap_of_the_density_is_a_loop(distribution, in_dims, validate_args, batch):
    def log_prob(loc, scale, c, value):
        return distribution(loc, scale, PoincareBall(c), validate_args=validate_args).log_prob(value)

    args = _mapped(batch, in_dims)
    torch.testing.assert_close(vmap(log_prob, in_dims)(*args), _loop(log_prob, args, in_dims))


@every_mapping
@every_distribution
def test_grad_through_vmap_is_a_loop(distribution, in_dims, batch):
    def slope(loc, scale, c, value):
        def log_prob(loc, scale, c):
            return distribution(loc, scale, PoincareBall(c)).log_prob(value)

        return torch.cat([x.flatten() for x in grad(log_prob, argnums=(0, 1, 2))(loc, scale, c)])

    args = _mapped(batch, in_dims)
    torch.testing.assert_close(vmap(slope, in_dims)(*args), _loop(slope, args, in_dims))


@pytest.mark.parametrize("validate_args", [True, False])
@pytest.mark.parametrize("in_dims", [dims[:3] for dims in MAPPED[:4]], ids=str)
@every_distribution
def test_vmap_of_samples_has_different_noise(distribution, in_dims, validate_args, batch):
    def standardised(loc, scale, c):
        p = distribution(loc, scale, PoincareBall(c), validate_args=validate_args)
        return p.manifold.to_normal_coords(loc, p.rsample((3,))) / scale

    v = vmap(standardised, in_dims, randomness="different")(*_mapped(batch[:3], in_dims))
    assert v.shape == (N, 3, DIM)
    assert torch.pdist(v.reshape(3 * N, DIM)).min() > 1e-6


@every_distribution
def test_vmap_with_the_same_noise(distribution, batch):
    def sample(loc, scale, c):
        return distribution(loc, scale, PoincareBall(c)).rsample((3,))

    torch.manual_seed(0)
    together = vmap(sample, randomness="same")(*batch[:3])
    for i in range(N):
        torch.manual_seed(0)
        torch.testing.assert_close(together[i], sample(*(x[i] for x in batch[:3])))


@every_distribution
def test_grad_of_a_sampled_bound_through_vmap(distribution, batch):
    def bound(loc, scale, c):
        ball = PoincareBall(c)
        q, p = distribution(loc, scale, ball), distribution(torch.zeros_like(loc), 1.0, ball)
        z = q.rsample((4,))
        return (p.log_prob(z) - q.log_prob(z)).mean()

    gradients = vmap(grad(bound, argnums=(0, 1, 2)), randomness="different")(*batch[:3])
    for gradient, parameter in zip(gradients, batch[:3], strict=True):
        assert gradient.shape == parameter.shape
        assert gradient.isfinite().all()
        assert (gradient != 0).all()


@every_distribution
def test_score_inside_func_grad(distribution, batch):
    # A sample drawn under no_grad has no graph, in function transforms too.
    loc, scale, _, _ = (x[0] for x in batch)

    def score(loc, copied):
        torch.manual_seed(0)
        p = distribution(loc, scale, PoincareBall(1.0))
        z = p.sample()
        return p.log_prob(z.clone() if copied else z)

    own = grad(score)(loc, False)
    assert (own != 0).all()
    torch.testing.assert_close(own, grad(score)(loc, True))


def _bound(distribution):
    def bound(loc, scale, c):
        p = distribution(loc, scale, PoincareBall(c), validate_args=False)
        z = p.rsample((5,))
        return z, p.log_prob(z)

    return bound


def _compiled_equals_eager(distribution, backend, batch):
    torch._dynamo.reset()
    args = [x.float().requires_grad_() for x in (batch[0], batch[1], batch[2][0])]
    compiled = torch.compile(_bound(distribution), fullgraph=True, backend=backend)
    z, log_prob = compiled(*args)
    # Noise may come in another order, so the density of the compiled sample is compared, and its derivatives.
    eager = distribution(args[0], args[1], PoincareBall(args[2])).log_prob(z.detach())
    torch.testing.assert_close(log_prob, eager, rtol=1e-4, atol=1e-4)
    (total,) = torch.autograd.grad(log_prob.sum(), args[1])
    assert total.isfinite().all()


@pytest.mark.parametrize(
    "distribution", [hdist.WrappedNormal, pytest.param(hdist.RiemannianNormal, marks=pytest.mark.slow)]
)
def test_compile_whole(distribution, batch):
    _compiled_equals_eager(distribution, "aot_eager", batch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # inductor's own
@every_distribution
def test_compile_whole_with_inductor(distribution, batch):
    _compiled_equals_eager(distribution, "inductor", batch)


@every_distribution
def test_compiled_noise_is_eager_noise_without_inductor(distribution, batch):
    torch._dynamo.reset()
    args = batch[0], batch[1], batch[2][0]
    torch.manual_seed(0)
    expected = _bound(distribution)(*args)
    compiled = torch.compile(_bound(distribution), fullgraph=True, backend="eager")
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(*args), expected)


@pytest.mark.parametrize("traced_c", [False, True], ids=["c a number", "c traced"])
@every_distribution
def test_tracing(distribution, traced_c, batch):
    args = batch[0], batch[1], batch[2][0]
    function = _bound(distribution) if traced_c else lambda loc, scale, c: _bound(distribution)(loc, scale, 0.7)
    graph = make_fx(function)(*args)
    torch.manual_seed(0)
    expected = function(*args)
    torch.manual_seed(0)
    torch.testing.assert_close(graph(*args), expected)
    moved = args[0] / 2, args[1] * 1.5, args[2]  # nothing but the noise is baked into the graph
    torch.manual_seed(0)
    expected = function(*moved)
    torch.manual_seed(0)
    torch.testing.assert_close(graph(*moved), expected)


def _at_coordinates(distribution, chart):
    """From the normal coordinates of loc and the scale, to a sample and its density."""

    def bound(u, scale):
        manifold = chart(0.7)
        p = distribution(manifold.from_normal_coords(None, u), scale, manifold, validate_args=False)
        z = p.rsample()
        return z, p.log_prob(z), p.log_prob(manifold.from_normal_coords(None, u / 2))

    return bound


both_charts = pytest.mark.parametrize("chart", [PoincareBall, Lorentz])


@both_charts
@every_distribution
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_jit_trace(distribution, chart, batch):
    function = _at_coordinates(distribution, chart)
    traced = torch.jit.trace(function, (batch[0], batch[1]), check_trace=False)
    moved = batch[0].flip(0) / 2, batch[1] * 1.5
    torch.manual_seed(0)
    expected = function(*moved)
    torch.manual_seed(0)
    torch.testing.assert_close(traced(*moved), expected)


@pytest.mark.slow
@pytest.mark.parametrize("chart", [PoincareBall, Lorentz], ids=lambda chart: chart.__name__)
@every_distribution
def test_compile_with_dynamic_shapes(distribution, chart, batch):
    torch._dynamo.reset()
    function = _at_coordinates(distribution, chart)
    compiled = torch.compile(function, dynamic=True, fullgraph=True, backend="eager")
    for rows in (6, 4, 5):
        args = batch[0][:rows], batch[1][:rows]
        torch.manual_seed(0)
        expected = function(*args)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(*args), expected)
