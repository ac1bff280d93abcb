"""Model and guide that do not belong together, and who says so."""

import functools
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro.poutine.guide import GuideMessenger
from torch import nn

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz, Sphere
from pyro_hyperbolic.infer import AutoWrappedNormal, DReG_ELBO, EnsembleSVI, FastSVI, check_model_guide
from pyro_hyperbolic.nn import ManifoldModule

BALL = PoincareBall(1.0)


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    torch.manual_seed(0)


def program(distribution):
    def sample():
        scale = pyro.param("scale", torch.tensor(1.0))
        with pyro.plate("data", 3):
            pyro.sample("z", distribution.mask(scale > 0))

    return sample


MODEL = program(hdist.WrappedNormal(torch.zeros(2), 1.0, BALL))
SMALL = dist.Normal(torch.zeros(2), 0.01).to_event(1)  # whose draws all fall inside the ball
WRONG = {
    "Euclidean": (MODEL, program(SMALL), r"'z' is a point of PoincareBall\(c=1.0\) in the model, .* from Normal,"),
    "transformed": (
        MODEL,
        program(dist.TransformedDistribution(SMALL, [dist.transforms.TanhTransform()])),
        "'z' is a point .* from TransformedDistribution,",
    ),
    "other curvature": (
        MODEL,
        program(hdist.RiemannianNormal(torch.zeros(2), 0.1, PoincareBall(0.5))),
        r"'z'(?s:.*)(c=1.0\) in the model .*c=0.5\) in the guide|drawn on PoincareBall\(c=0.5\), .* PoincareBall\(c=1)",
    ),
    "other learned curvature": (
        MODEL,
        program(hdist.WrappedNormal(torch.zeros(2), 0.1, PoincareBall(torch.tensor(0.5, requires_grad=True)))),
        r"'z'(?s:.*)(c=0.5\) in the guide|drawn on PoincareBall\(c=0.5\), .* PoincareBall\(c=1)",
    ),
    "the other way round": (
        program(SMALL),
        MODEL,
        r"'z' is drawn from Normal in the model, but the guide makes it a point of PoincareBall\(c=1.0\)",
    ),
}
every_mistake = pytest.mark.parametrize("mistake", WRONG)


@every_mistake
def test_check(mistake):
    model, guide, message = WRONG[mistake]
    with pytest.raises(ValueError, match=message):
        check_model_guide(model, guide)


@every_mistake
@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO])
def test_fast_svi_checks_by_itself(mistake, loss):
    model, guide, message = WRONG[mistake]
    svi = FastSVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss())
    with pytest.raises(ValueError, match=message):
        svi.step()


def test_ensemble_checks_by_itself():
    class Member(nn.Module):
        def __init__(self):
            super().__init__()
            self.loc = nn.Parameter(torch.zeros(2))

        def model(self):
            pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, BALL))

        def guide(self):
            pyro.module("member", self)
            pyro.sample("z", dist.Normal(self.loc, 0.01).to_event(1))

    members = [Member(), Member()]
    svi = EnsembleSVI([(m.model, m.guide) for m in members], pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with pytest.raises(ValueError, match="'z' is a point of PoincareBall"):
        svi.step(shared=True)


def test_another_chart():
    chart = Lorentz(1.0)
    guide = program(hdist.WrappedNormal(chart.origin(1), 0.1, chart))
    with pytest.raises(ValueError, match=r"PoincareBall\(c=1.0\) in the model and of Lorentz\(c=1.0\) in the"):
        check_model_guide(MODEL, guide)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(BALL, Lorentz(1.0)), (BALL, Sphere(1.0)), (Lorentz(1.0), BALL), (BALL, PoincareBall(0.01))],
    ids=str,
)
def test_another_space_is_named_before_a_likelihood_sees_it(ours, theirs):
    far = ours.from_normal_coords(None, torch.ones(2))

    def model(likelihood):
        z = pyro.sample("z", hdist.WrappedNormal(ours.origin(2), 1.0, ours))
        pyro.sample("x", dist.Bernoulli(logits=likelihood(z)), obs=torch.tensor(1.0))

    def guide(likelihood):
        pyro.sample("z", hdist.WrappedNormal(theirs.from_normal_coords(None, torch.ones(2)), 1.0, theirs))

    adam = pyro.optim.Adam({"lr": 0.01})
    checks = [FastSVI(model, guide, adam, loss).step for loss in (Trace_ELBO(), Trace_ELBO(2), DReG_ELBO())]
    for run in (functools.partial(check_model_guide, model, guide), *checks):
        for likelihood in (ours.dist0, functools.partial(ours.dist, far)):
            with pytest.raises(ValueError, match=r"site 'z' is a point of .* in the model and of .* in the guide; use"):
                run(likelihood)


@pytest.mark.parametrize("chart", [Lorentz(1.0), Sphere(1.0)], ids=str)
def test_another_chart_is_an_error_of_losses_of_pyro(chart):
    """They do not compare spaces; what has no point of its own chart is not a number."""

    def model():
        z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, BALL))
        pyro.sample("x", dist.Bernoulli(logits=BALL.dist0(z)), obs=torch.tensor(1.0))

    def guide():
        pyro.sample("z", hdist.WrappedNormal(chart.origin(2), 0.1, chart))

    with pytest.raises(ValueError, match="nan"):
        Trace_ELBO().loss(model, guide)
    with pytest.raises(ValueError, match="use one manifold in both"):
        check_model_guide(model, guide)


@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
@pytest.mark.parametrize("c", [1.0, torch.tensor(1.0), torch.tensor(1.0, requires_grad=True)], ids=str)
def test_distributions_of_one_manifold_belong_together(distribution, c):
    check_model_guide(MODEL, program(distribution(torch.zeros(2), 0.3, PoincareBall(c))))


@pytest.mark.parametrize("guide", [AutoDelta, AutoNormal, AutoMultivariateNormal, AutoWrappedNormal])
def test_automatic_guides_belong_to_their_model(guide):
    check_model_guide(MODEL, guide(MODEL))


def test_a_learned_curvature_that_is_shared():
    manifold = ManifoldModule(PoincareBall(0.7), learnable=True)

    def both():
        pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, manifold()).expand((3,)).to_event(1))

    check_model_guide(both, both)


def test_a_latent_that_the_guide_lacks():
    with pytest.raises(ValueError, match="site 'z' of the model is neither observed nor in the guide"):
        check_model_guide(MODEL, lambda: None)


def test_a_latent_that_is_enumerated():
    @config_enumerate
    def model():
        k = pyro.sample("k", dist.Categorical(torch.ones(2)))
        pyro.sample("x", dist.Normal(k.to(torch.float32), 1.0), obs=torch.tensor(0.3))

    check_model_guide(model, lambda: None)
    svi = FastSVI(model, lambda: None, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with pytest.warns(UserWarning, match="not guide"), pytest.raises(ValueError, match=r"'k' .*TraceEnum_ELBO"):
        svi.step()


def test_it_leaves_no_trace():
    with pyro.poutine.trace() as outer:
        check_model_guide(MODEL, MODEL)
    assert not outer.trace.nodes or set(outer.trace.nodes) == {"_INPUT", "_RETURN"}


def test_it_takes_no_random_numbers():
    before = torch.get_rng_state()
    check_model_guide(MODEL, MODEL)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("distribution", "right"), [(hdist.WrappedNormal(torch.zeros(2), 0.1, BALL), True), (SMALL, False)]
)
def test_a_guide_that_runs_with_the_model(distribution, right):
    class Guide(GuideMessenger):
        def get_posterior(self, name, prior):
            return distribution

    model = program(hdist.WrappedNormal(torch.zeros(2), pyro.param("scale", torch.tensor(1.0)), BALL))
    svi = FastSVI(model, Guide(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with nullcontext() if right else pytest.raises(ValueError, match=r"'z' is a point of .* from Normal,"):
        assert svi.step().isfinite()
