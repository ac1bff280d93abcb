"""The distributions inside Pyro programs: plates, handlers, particles."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    MCMC,
    NUTS,
    SVI,
    JitTrace_ELBO,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall
from tests.distributions.cases import DISTRIBUTIONS, NORMALS, tensors
from tests.helpers import each, in_turns

every_distribution = each("case", DISTRIBUTIONS)
every_normal = each("case", NORMALS)


def _radial(case, z):
    """A number for each point, which an observation can be about."""
    return case.manifold.dist0(z)


@every_distribution
def test_trace_records_the_density(case):
    distribution = case.make((3,))
    trace = poutine.trace(lambda: pyro.sample("z", distribution.to_event(1))).get_trace()
    trace.compute_log_prob()
    site = trace.nodes["z"]
    torch.testing.assert_close(site["log_prob"], distribution.log_prob(site["value"].clone()).sum())


@every_distribution
def test_observed_site(case):
    distribution = case.make()
    data = distribution.sample()
    trace = poutine.trace(lambda: pyro.sample("z", distribution, obs=data)).get_trace()
    assert trace.nodes["z"]["is_observed"]
    torch.testing.assert_close(trace.log_prob_sum(), distribution.log_prob(data))


@every_distribution
def test_condition(case):
    distribution = case.make()
    data = distribution.sample()
    trace = poutine.trace(poutine.condition(lambda: pyro.sample("z", distribution), data={"z": data})).get_trace()
    assert trace.nodes["z"]["value"] is data
    torch.testing.assert_close(trace.log_prob_sum(), distribution.log_prob(data))


@every_distribution
def test_replay_scores_the_value_of_one_distribution_by_another(case):
    guide = poutine.trace(lambda: pyro.sample("z", case.make((3,)).expand((2, 3)).to_event(2))).get_trace()
    distribution = case.make((3,))
    model = poutine.trace(
        poutine.replay(lambda: pyro.sample("z", distribution.expand((2, 3)).to_event(2)), trace=guide)
    ).get_trace()
    value = guide.nodes["z"]["value"]
    assert model.nodes["z"]["value"] is value
    torch.testing.assert_close(model.log_prob_sum(), distribution.log_prob(value.clone()).sum())


@every_distribution
def test_block_hides_the_site(case):
    def model():
        pyro.sample("z", case.make())
        pyro.sample("x", dist.Normal(0.0, 1.0))

    assert list(poutine.trace(poutine.block(model, hide=["z"])).get_trace().stochastic_nodes) == ["x"]


@every_distribution
def test_plate_expands_the_distribution(case):
    def model():
        with pyro.plate("a", 3, dim=-1), pyro.plate("b", 2, dim=-2):
            return pyro.sample("z", case.make())

    trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    assert trace.nodes["z"]["value"].shape == (2, 3, *case.event_shape)
    assert trace.nodes["z"]["log_prob"].shape == (2, 3)


@every_distribution
def test_subsampling_plate_scales_the_density(case):
    distribution = case.make()
    data = distribution.sample((10,))

    def model():
        with pyro.plate("data", 10, subsample=torch.tensor([1, 4, 7, 8])) as index:
            pyro.sample("z", distribution, obs=data[index])

    expected = distribution.log_prob(data[[1, 4, 7, 8]]).sum() * 10 / 4
    torch.testing.assert_close(poutine.trace(model).get_trace().log_prob_sum(), expected)


@every_distribution
def test_mask_handler(case):
    distribution = case.make((3,))

    def model():
        with pyro.plate("a", 3), poutine.mask(mask=torch.tensor([True, False, False])):
            pyro.sample("z", distribution)

    trace = poutine.trace(model).get_trace()
    expected = distribution.log_prob(trace.nodes["z"]["value"].clone())[0]
    torch.testing.assert_close(trace.log_prob_sum(), expected)


@every_distribution
def test_predictive_in_parallel(case):
    def model():
        with pyro.plate("a", 3):
            pyro.sample("z", case.make((3,)))

    samples = Predictive(model, num_samples=5, parallel=True)()["z"]
    assert samples.shape == (5, 3, *case.event_shape)
    assert case.make().support.check(samples).all()


def _model(case, distribution):
    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", distribution)
            pyro.sample("x", dist.Normal(_radial(case, z), 1.0), obs=torch.ones(3, dtype=torch.float64))

    return model


def _guide(distribution):
    def guide():
        with pyro.plate("data", 3):
            pyro.sample("z", distribution)

    return guide


@every_normal
def test_vectorised_particles(case):
    # Model and guide share the distribution, so the bound is the expected log-likelihood of the guide's samples.
    torch.manual_seed(3)
    z = case.make((3,)).expand((7, 3)).rsample()
    expected = dist.Normal(_radial(case, z), 1.0).log_prob(torch.ones((), dtype=torch.float64)).sum(-1).mean()
    elbo = Trace_ELBO(num_particles=7, vectorize_particles=True, max_plate_nesting=1)
    torch.manual_seed(3)
    loss = elbo.loss(_model(case, case.make((3,))), _guide(case.make((3,))))
    assert loss == pytest.approx(-expected.item(), rel=1e-9)


BOUNDS = [Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, RenyiELBO]
# Two bounds for each distribution, in turns.
BOUND_ROWS = [(case, BOUNDS[(i + k) % 4]) for i, case in enumerate(NORMALS) for k in (0, 2)]


@each(("case", "loss"), BOUND_ROWS)
def test_every_bound_gives_gradients(case, loss):
    leaves = tensors(case.params((3,)))

    def guide():
        params = {name: pyro.param(name, leaf) for name, leaf in leaves.items()}
        _guide(case.on({**case.params((3,)), **params}))()

    elbo = loss(num_particles=7, vectorize_particles=True, max_plate_nesting=1)
    elbo.loss_and_grads(_model(case, case.make()), guide)
    assert all(leaf.grad.isfinite().all() and (leaf.grad != 0).any() for leaf in leaves.values())


# One row for each distribution and chart; those of the ball in every run.
ON_SURFACES = {(case.distribution, case.chart): case for case in NORMALS if case.dim == 2}


@pytest.mark.parametrize(
    "case",
    [
        case if chart is PoincareBall else pytest.param(case, marks=pytest.mark.slow)
        for (_, chart), case in ON_SURFACES.items()
    ],
    ids=str,
)
def test_score_function_gradient_is_the_reparametrised_one(case):
    # Without rsample Pyro uses the score function; both estimate the gradient of E[d(0, z)]. The standard error of
    # the first is below 0.015.
    def gradient(reparametrised):
        torch.manual_seed(0)
        leaves = tensors(case.coords())
        distribution = case.on({**case.coords(), **leaves}).expand((100_000,)).has_rsample_(reparametrised)
        z = distribution()
        assert z.requires_grad == reparametrised
        cost = _radial(case, z)
        surrogate = cost if reparametrised else (cost - cost.mean()) * distribution.log_prob(z)
        surrogate.mean().backward()
        return {name: leaf.grad.tril() if name == "scale_tril" else leaf.grad for name, leaf in leaves.items()}

    torch.testing.assert_close(gradient(False), gradient(True), rtol=0, atol=0.05)


def _radius_of(distribution, manifold, scale):
    """Points at distance 1 from the origin, more or less."""

    def model():
        z = pyro.sample("z", distribution(manifold.origin(2), scale, manifold))
        pyro.sample("x", dist.Normal(manifold.dist0(z), 0.1), obs=torch.tensor(1.0))

    return model


both_distributions = pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
both_charts = pytest.mark.parametrize("chart", [PoincareBall, Lorentz])


@pytest.mark.parametrize(
    ("distribution", "chart"), in_turns([hdist.WrappedNormal, hdist.RiemannianNormal], [PoincareBall, Lorentz])
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traced_bound(distribution, chart):
    manifold = chart(1.0)

    def guide():
        loc = pyro.param("loc", torch.tensor([0.3, 0.1]))
        scale = pyro.param("scale", torch.tensor(0.5), constraint=dist.constraints.positive)
        pyro.sample("z", distribution(manifold.from_normal_coords(None, loc), scale, manifold))

    losses = {}
    for bound in (Trace_ELBO(), JitTrace_ELBO()):
        pyro.clear_param_store()
        # Steps that move nothing: the first one of a traced bound draws other noise.
        svi = SVI(_radius_of(distribution, manifold, 1.0), guide, pyro.optim.Adam({"lr": 1e-9}), bound)
        svi.step()
        pyro.set_rng_seed(1)
        losses[type(bound)] = [svi.step() for _ in range(5)]
    assert losses[JitTrace_ELBO] == pytest.approx(losses[Trace_ELBO], rel=1e-4)


@pytest.mark.slow
@both_distributions
@both_charts
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traced_nuts(distribution, chart):
    kernel = NUTS(_radius_of(distribution, chart(1.0), 1.0), jit_compile=True)
    mcmc = MCMC(kernel, num_samples=40, warmup_steps=40, disable_progbar=True)
    mcmc.run()
    assert chart(1.0).dist0(mcmc.get_samples()["z"]).mean() == pytest.approx(1.0, abs=0.15)
