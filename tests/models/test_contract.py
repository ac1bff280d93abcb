"""What every model owes to Pyro, whatever its latent space and its data."""

import copy
import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, RenyiELBO, Trace_ELBO
from pyro.optim import SGD, Adam

from pyro_hyperbolic import Stereographic
from pyro_hyperbolic.models import DISTRIBUTIONS
from pyro_hyperbolic.nn import DECODERS
from tests.helpers import each, in_turns
from tests.models.cases import LOSSES, MODELS, VAES, VGAES, VAECase

every_model = each("case", MODELS)
every_loss = pytest.mark.parametrize("loss", LOSSES)
some_models = pytest.mark.parametrize("case", [VAES[0], VGAES[0]], ids=str)
learnable = pytest.mark.parametrize("case", [case for case in MODELS if case.learnable], ids=str)


@pytest.fixture(autouse=True)
def _validated():
    with pyro.validation_enabled(True):
        yield


def evaluate(case, net, num_particles=30):
    """The loss with the same noise at every call."""
    pyro.set_rng_seed(5)
    loss = Trace_ELBO(num_particles=num_particles, vectorize_particles=True)
    return loss.loss(net.model, net.guide, *case.args, **case.kwargs)


def train(case, net, loss, num_steps, learning_rate=0.03):
    svi = SVI(net.model, net.guide, Adam({"lr": learning_rate}), loss)
    return [svi.step(*case.args, **case.kwargs) for _ in range(num_steps)]


def traces(case, net, seed=5, particles=None):
    """Traces of the guide and of the model with the guide's latents."""
    guide, model = net.guide, net.model
    if particles is not None:
        guide, model = (pyro.plate("particles", particles, dim=-2)(f) for f in (guide, model))
    pyro.set_rng_seed(seed)
    guide_trace = poutine.trace(guide).get_trace(*case.args, **case.kwargs)
    replayed = poutine.replay(model, trace=guide_trace)
    model_trace = poutine.trace(replayed).get_trace(*case.args, **case.kwargs)
    return guide_trace, model_trace


def by_hand(case, net, guide_trace, model_trace):
    """log p(x | z) + log p(z) - log q(z | x) per latent for data, in all for a graph, by the distributions."""
    z = guide_trace.nodes["z"]["value"].clone()
    if isinstance(case, VAECase):
        (x,) = case.args
        sizes = case.kwargs.get("size_factors", net.size_factors(x))
        likelihood = net.decode(z, **case.kwargs | ({} if sizes is None else {"size_factors": sizes})).log_prob(x)
        return likelihood + weight(net) * (net.prior().log_prob(z) - net.encode(x, **case.kwargs).log_prob(z))
    observed = [site for name, site in model_trace.nodes.items() if name.startswith("x")]
    likelihood = sum(site["scale"] * site["fn"].log_prob(site["value"]).squeeze(-1) for site in observed)
    return likelihood + (net.prior().log_prob(z) - net.encode().log_prob(z)).sum(-1)


def weight(net):
    return 1.0 if getattr(net, "beta", None) is None else net.beta


CHOICES = [
    ("decoder", "gyroplane", DECODERS),
    ("posterior", "wrapped", DISTRIBUTIONS),
    ("prior", "wrapped", DISTRIBUTIONS),
]


@pytest.mark.parametrize(("option", "default", "names"), CHOICES, ids=[row[0] for row in CHOICES])
def test_every_choice_is_in_the_table(option, default, names):
    assert {case.options.get(option, default) for case in VAES} == set(names)


# All losses on one model of each kind, on the others one, in turns; the slow tests have all of them on all.
LOSS_ROWS = [
    (case, loss)
    for i, case in enumerate(MODELS)
    for j, loss in enumerate(LOSSES)
    if case in (VAES[0], VAES[1], VGAES[0]) or (i + j) % len(LOSSES) == 0
]


@pytest.mark.parametrize(("case", "loss"), LOSS_ROWS, ids=str)
def test_loss_and_gradients_are_finite(case, loss):
    net = case.build()
    value = LOSSES[loss]().loss_and_grads(net.model, net.guide, *case.args, **case.kwargs)
    assert math.isfinite(value)
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


# Every eighth row, each distribution and chart among them: the slow tests have all.
@pytest.mark.parametrize(
    "case", [case for i, case in enumerate(MODELS) if i % 8 == 1 or case.chart is Stereographic], ids=str
)
def test_training_lowers_the_loss(case):
    net = case.build()
    before = evaluate(case, net)
    losses = train(case, net, Trace_ELBO(), 20, learning_rate=0.06)
    assert all(math.isfinite(loss) for loss in losses)
    assert evaluate(case, net) < before - 0.5


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if "looped" not in loss])
def test_every_loss_trains(loss):
    case = VAES[0]
    net = case.build()
    before = evaluate(case, net)
    losses = train(case, net, LOSSES[loss](), 12, learning_rate=0.1)
    assert all(math.isfinite(loss) for loss in losses)
    assert evaluate(case, net) < before - 0.5


@pytest.mark.slow
@every_loss
@pytest.mark.parametrize("case", MODELS, ids=str)
def test_every_loss_trains_every_model(case, loss):
    net = case.build()
    before = evaluate(case, net)
    losses = train(case, net, LOSSES[loss](), 60)
    assert all(math.isfinite(loss) for loss in losses)
    assert evaluate(case, net) < before - 0.5


@every_model
def test_elbo_by_hand(case):
    net = case.build()
    expected = -by_hand(case, net, *traces(case, net)).sum()
    pyro.set_rng_seed(5)
    loss = Trace_ELBO().loss(net.model, net.guide, *case.args, **case.kwargs)
    assert loss == pytest.approx(expected.item(), rel=1e-5)


@every_model
def test_importance_weighted_bound_by_hand(case):
    net = case.build()
    weights = by_hand(case, net, *traces(case, net, particles=4))
    # Data are independent, so their bounds add up; the edges of a graph are not.
    assert weights.shape == ((4, case.num_latents) if isinstance(case, VAECase) else (4,))
    expected = -(weights.logsumexp(0) - math.log(4)).sum()
    pyro.set_rng_seed(5)
    loss = RenyiELBO(alpha=0, num_particles=4, vectorize_particles=True, max_plate_nesting=1)
    value = loss.loss(net.model, net.guide, *case.args, **case.kwargs)
    assert value == pytest.approx(expected.item(), rel=1e-5)
    assert value < -weights.mean(0).sum().item()


@every_model
def test_sites(case):
    net = case.build()
    guide_trace, model_trace = traces(case, net)
    # Pyro counts a plate among the stochastic sites: it may draw a minibatch.
    assert guide_trace.stochastic_nodes == model_trace.stochastic_nodes == ["data", "z"]
    observed = ["x", "x_negatives"] if "num_negatives" in case.kwargs else ["x"]
    assert model_trace.observation_nodes == observed
    for trace in (guide_trace, model_trace):
        (frame,) = trace.nodes["z"]["cond_indep_stack"]
        assert (frame.name, frame.dim, frame.size) == ("data", -1, case.num_latents)


@each(("case", "particles"), in_turns(MODELS, [None, 3]))
def test_trace_shapes(case, particles):
    net = case.build()
    batch = () if particles is None else (particles,)
    dtype = case.options.get("latent_dtype") or torch.float32
    for trace in traces(case, net, particles=particles):
        trace.compute_log_prob()
        site = trace.nodes["z"]
        assert site["value"].shape == (*batch, case.num_latents, case.num_coordinates)
        assert site["value"].dtype == dtype
        assert site["log_prob"].shape == (*batch, case.num_latents)
    # A site outside of the plate has its dimension with size 1.
    assert trace.nodes["x"]["log_prob"].shape == (*batch, case.num_latents if isinstance(case, VAECase) else 1)


@every_model
def test_programs_return_the_latents(case):
    for trace in traces(case, case.build()):
        assert trace.nodes["_RETURN"]["value"] is trace.nodes["z"]["value"]


@every_model
def test_condition_on_the_latents(case):
    net = case.build()
    z = net.prior().sample((case.num_latents,))
    conditioned = poutine.condition(net.model, data={"z": z})
    with torch.no_grad():  # with derivatives, points are refused that do not move with a learned curvature
        trace = poutine.trace(conditioned).get_trace(*case.args, **case.kwargs)
        assert trace.nodes["z"]["is_observed"]
        assert trace.nodes["z"]["value"] is z
        trace.compute_log_prob()
        torch.testing.assert_close(trace.nodes["z"]["log_prob"], weight(net) * net.prior().log_prob(z))


@each(("case", "parallel"), in_turns(MODELS, [False, True]))
def test_posterior_predictive(case, parallel):
    net = case.build()
    predictive = Predictive(poutine.uncondition(net.model), guide=net.guide, num_samples=3, parallel=parallel)
    samples = predictive(*case.args, **({} if case in VGAES else case.kwargs))
    assert samples["z"].shape[0] == 3
    assert samples["z"].shape[-2:] == (case.num_latents, case.num_coordinates)
    event = case.args[0].shape if isinstance(case, VAECase) else (1, case.num_latents, case.num_latents)
    assert samples["x"].shape == (3, *event)
    assert samples["x"].std(0).max() > 0
    if case in VGAES or case.likelihood == "bernoulli":
        assert set(samples["x"].unique().tolist()) == {0.0, 1.0}


@every_model
def test_observed_data_are_not_predicted(case):
    net = case.build()
    samples = Predictive(net.model, guide=net.guide, num_samples=2, return_sites=("x", "z"))
    samples = samples(*case.args, **({} if case in VGAES else case.kwargs))
    assert torch.equal(samples["x"][0], samples["x"][1])
    assert not torch.equal(samples["z"][0], samples["z"][1])


@pytest.mark.parametrize("case", MODELS[::5], ids=str)
def test_state_dict_reproduces_the_loss(case, tmp_path):
    net = case.build()
    train(case, net, Trace_ELBO(), 3)
    torch.save(net.state_dict(), tmp_path / "state")
    other = case.build(seed=1)
    assert evaluate(case, other, 2) != evaluate(case, net, 2)
    other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert evaluate(case, other, 2) == evaluate(case, net, 2)


@some_models
def test_a_second_model_in_the_same_process_trains_too(case):
    # No pyro.clear_param_store() in between.
    nets = [case.build(seed) for seed in (0, 1)]
    before = [evaluate(case, net) for net in nets]
    states = [copy.deepcopy(net.state_dict()) for net in nets]
    optimisers = [Adam({"lr": 0.05}) for _ in nets]
    svis = [SVI(net.model, net.guide, opt, Trace_ELBO()) for net, opt in zip(nets, optimisers, strict=True)]
    for _ in range(15):
        for svi in svis:
            svi.step(*case.args, **case.kwargs)
    assert all(evaluate(case, net) < start - 0.5 for net, start in zip(nets, before, strict=True))
    store = pyro.get_param_store()
    for net, state, optimiser in zip(nets, states, optimisers, strict=True):
        for name, parameter in net.named_parameters():
            assert not torch.equal(parameter, state[name]), name
        # Each optimiser can say whose state it holds.
        held = optimiser.get_state()
        assert len(held) == len(list(net.parameters()))
        assert {store.param_name(parameter) for parameter in net.parameters()} == held.keys()


@some_models
def test_tensors_in_the_place_of_parameters_do_not_reach_the_store(case):
    # Inference that runs programs as functions of their parameters swaps these for other tensors.
    net = case.build()
    traces(case, net)
    before = dict(pyro.get_param_store().named_parameters())
    layer = net.encoder.loc
    parameter = layer._parameters["weight"]
    layer._parameters["weight"] = 2 * parameter
    traces(case, net)
    layer._parameters["weight"] = parameter
    after = dict(pyro.get_param_store().named_parameters())
    assert before.keys() == after.keys()
    assert all(after[name] is value for name, value in before.items())


@learnable
def test_a_shared_curvature_takes_one_step_at_a_time(case):
    net = case.build()
    pyro.set_rng_seed(5)
    Trace_ELBO().loss_and_grads(net.model, net.guide, *case.args, **case.kwargs)
    raw = next(net.latent.manifold.parameters())
    expected = raw.detach() - 1e-4 * raw.grad
    pyro.set_rng_seed(5)
    net.zero_grad()
    SVI(net.model, net.guide, SGD({"lr": 1e-4}), Trace_ELBO()).step(*case.args, **case.kwargs)
    torch.testing.assert_close(raw.detach(), expected)
    names = [name for name, _ in net.named_parameters() if "raw" in name]
    assert len(names) == len(net.manifold.curvatures)


@learnable
def test_learned_curvature_is_that_of_the_manifold(case):
    net = case.build()
    train(case, net, Trace_ELBO(), 3)
    for present, kept in zip(net.manifold.curvatures, net.latent.manifold.curvatures, strict=True):
        assert present.item() == kept.item() != pytest.approx(case.c, abs=1e-3)
        assert present.item() > 0 or case.chart is Stereographic


@pytest.mark.parametrize("case", [case for case in MODELS if case.options.get("learn_prior_scale")], ids=str)
def test_prior_scale_learns(case):
    net = case.build()
    assert net.latent.log_scale.requires_grad
    train(case, net, Trace_ELBO(), 3)
    assert net.latent.log_scale.item() != 0.0
    distribution = net.prior()
    scale = distribution.base_dist.scale if case.c is None else distribution.scale
    torch.testing.assert_close(scale.max(), net.latent.log_scale.exp())


@pytest.mark.parametrize("case", [case for case in MODELS if "learn_prior_scale" not in case.options], ids=str)
def test_prior_scale_is_fixed(case):
    net = case.build()
    assert "latent.log_scale" in dict(net.named_buffers())
    distribution = net.prior()
    scale = distribution.base_dist.scale if case.c is None else distribution.scale
    assert scale.max().item() == pytest.approx(case.options.get("prior_scale", 1.0))
    assert distribution.batch_shape == ()
    assert distribution.event_shape == (case.num_coordinates,)
