"""A curvature that is drawn, in programs without the wrapper: never silently wrong."""

import copy
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import HMC, NUTS, SVI, Importance, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal, init_to_value
from pyro.infer.mcmc import RandomWalkKernel
from torch import nn

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Euclidean, PoincareBall, Product
from pyro_hyperbolic.infer import (
    AutoWrappedNormal,
    FastNUTS,
    FastSVI,
    check_model_guide,
    log_marginal_likelihood,
    with_drawn_curvature,
)
from tests.helpers import same
from tests.infer.reparam.drawn_models import CURVATURE, FOUND, distances, every_chart, learned, point, run

REMEDY = r"(?s)'z'.*with_drawn_curvature\(model\)"


@every_chart
@pytest.mark.parametrize("kernel", [HMC, NUTS])
@pytest.mark.parametrize("validate", [True, False])
def test_chains_on_the_program_as_it_is_say_what_to_do(chart, kernel, validate):
    with pyro.validation_enabled(validate), pytest.raises(ValueError, match=REMEDY):
        run(kernel, distances(chart))


@pytest.mark.filterwarnings("ignore")  # the tracer's
@pytest.mark.parametrize(("kernel", "options"), [(NUTS, {"jit_compile": True}), (FastNUTS, {})])
def test_compiled_chains_say_what_to_do(kernel, options):
    with pytest.raises(ValueError, match=REMEDY):
        run(kernel, distances(), **options)


COMPILED = partial(FastSVI, compile=True)


@pytest.mark.parametrize("trainer", [SVI, FastSVI])
@pytest.mark.parametrize("guide", [AutoDelta, AutoNormal, AutoMultivariateNormal])
def test_guides_on_the_program_as_it_is_say_what_to_do(trainer, guide):
    # test_pyro_autoguides has the others.
    model = distances()
    svi = trainer(model, guide(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with pytest.raises(ValueError, match=REMEDY):
        [svi.step() for _ in range(2)]


@pytest.mark.parametrize("trainer", [SVI, FastSVI, COMPILED])
@pytest.mark.parametrize("guide", [AutoDelta, AutoNormal, AutoMultivariateNormal])
def test_guides_that_keep_a_learned_curvature_are_refused_at_once(trainer, guide):
    def model():
        point(learned())

    svi = trainer(model, guide(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with pytest.raises(ValueError, match=r"(?s)'z'.*where it is learned use infer.AutoWrappedNormal"):
        svi.step()


def test_a_traced_step_tells_by_the_graph():
    # Where no value can be read: the parameters of a compiled step are others than those that the point knows.
    def model():
        point(learned())

    def guide():
        v = pyro.param("v", torch.zeros(2))
        pyro.sample("z", dist.Delta(PoincareBall(learned().detach()).from_normal_coords(None, v), event_dim=1))

    svi = COMPILED(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with pytest.raises(ValueError, match=r"(?s)'z'.*does not move with the curvature.*without detach"):
        svi.step()


def test_the_check_says_what_to_do():
    model = distances()
    with pytest.raises(ValueError, match=REMEDY):
        check_model_guide(model, AutoNormal(model))


def hand_written(own):
    def guide():
        loc, scale = pyro.param("loc", torch.zeros(3, 2)), pyro.param("scale", torch.full((3, 2), 0.1))
        c = pyro.sample("c", dist.LogNormal(pyro.param("log_c", torch.tensor(0.1)), 0.1))
        space = PoincareBall(own(c))
        with pyro.plate("points", 3):
            pyro.sample("z", hdist.WrappedNormal(space.from_normal_coords(None, loc), scale, space))

    return guide


def test_a_guide_of_another_curvature_is_refused():
    for own in (lambda c: c + 0.01, lambda c: 1.0):
        pyro.clear_param_store()
        svi = SVI(distances(), hand_written(own), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        with pytest.raises(ValueError, match=r"(?s)'z'.*use one manifold in model and guide"):
            svi.step()


@pytest.mark.parametrize("trainer", [SVI, FastSVI])
def test_a_guide_that_draws_the_same_curvature_is_right(trainer):
    svi = trainer(distances(), hand_written(lambda c: c), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert all(torch.as_tensor(svi.step()).isfinite() for _ in range(3))
    check_model_guide(distances(), hand_written(lambda c: c.double()))


def test_an_observed_point_on_the_program_as_it_is():
    with pytest.raises(ValueError, match=r"(?s)'z'.*observed coordinates.*with_drawn_curvature\(model\)"):
        run(NUTS, given())


def given(curvature=lambda c: c):
    def model():
        point(curvature(pyro.sample("c", CURVATURE)), obs=torch.tensor([0.3, 0.1]))

    return model


def test_the_density_remembers_nothing():
    x = torch.tensor([0.3, 0.1])

    def density(c, scored):
        c = torch.tensor(c, requires_grad=True)
        with poutine.trace():
            return getattr(hdist.WrappedNormal(torch.zeros(2), 0.5, PoincareBall(c)), scored)(x)

    for c in (1.0, 2.0, 2.0, 1.0):
        with pytest.raises(ValueError, match="observed coordinates"):
            density(c, "log_prob")
        outside = hdist.WrappedNormal(torch.zeros(2), 0.5, PoincareBall(c)).lebesgue_log_prob(x)
        same(density(c, "lebesgue_log_prob"), outside, 1e-6)


def test_a_draw_without_derivatives_does_not_move_with_its_curvature():
    # As in estimators of the score: the derivative of a density whose volume moves is not that of a distribution.
    c = torch.tensor(1.0, requires_grad=True)
    with torch.no_grad():
        z = poutine.trace(lambda: point(c)).get_trace().nodes["z"]["value"]
    model = poutine.condition(lambda: point(c), {"z": z})
    with pytest.raises(ValueError, match="does not move with the curvature"):
        poutine.trace(model).get_trace().log_prob_sum()
    with torch.no_grad():
        assert poutine.trace(model).get_trace().log_prob_sum().isfinite()


@pytest.mark.parametrize("validate", [True, False])
def test_importance_sampling_on_the_program_as_it_is(validate):
    with pyro.validation_enabled(validate), pytest.raises(ValueError, match="observed coordinates"):
        Importance(given(), num_samples=1).run()
    # Points that are drawn with their curvature are right.
    Importance(distances(), num_samples=1).run()
    Importance(distances(), hand_written(lambda c: c), num_samples=1).run()


@pytest.mark.parametrize("model", [distances(), given()])
def test_random_walks_on_the_program_as_it_is(model):
    with pytest.raises(ValueError, match=r"(?s)'z'.*with_drawn_curvature\(model\)"):
        run(RandomWalkKernel, model)


def of_each_datum(curvature):
    def model(x):
        with pyro.plate("points", len(x)):
            point(curvature(pyro.sample("c", CURVATURE)), obs=x)

    def guide(x):
        with pyro.plate("points", len(x)):
            pyro.sample("c", CURVATURE)

    return model, guide


@pytest.mark.parametrize("curvature", [lambda c: c, lambda c: 1.0 * c])
def test_evidence_of_observed_points_on_the_program_as_it_is(curvature):
    x = torch.tensor([[0.3, 0.1], [-0.2, 0.5]])
    model, guide = of_each_datum(curvature)
    for ask in (partial(log_marginal_likelihood, num_samples=2), check_model_guide):
        with pytest.raises(ValueError, match="observed coordinates"):
            ask(model, guide, x)
        ask(with_drawn_curvature(model), guide, x)


def minibatches(learns, size=20):
    """A program that makes a tensor of its own of a part of its data in each run."""
    torch.manual_seed(1)
    data = 0.3 * torch.randn(size, 2).clamp(-1, 1)

    def model():
        c = learned() if learns else pyro.sample("c", CURVATURE)
        with pyro.plate("points", size, subsample_size=5) as indices:
            point(c, obs=data[indices])

    return model


@pytest.mark.parametrize("learns", [True, False])
def test_observed_points_in_minibatches_on_the_program_as_it_is(learns):
    model = minibatches(learns)
    svi = SVI(model, AutoNormal(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with pytest.raises(ValueError, match=r"(?s)'z'.*observed coordinates.*with_drawn_curvature\(model\)"):
        [svi.step() for _ in range(20)]


def test_observed_points_in_minibatches():
    model = with_drawn_curvature(minibatches(False))
    svi = SVI(model, AutoNormal(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert torch.tensor([svi.step() for _ in range(20)]).isfinite().all()


@pytest.mark.parametrize("chart", [PoincareBall, lambda c: Product((Euclidean(), 1), (PoincareBall(c), 1))])
@pytest.mark.parametrize("validate", [True, False])
def test_a_point_outside_of_the_new_ball_is_refused(chart, validate):
    # What is computed from it is nan. With validation the distribution of the data may complain first.
    def model():
        space = chart(pyro.sample("c", CURVATURE))
        z = pyro.sample("z", hdist.WrappedNormal(space.origin(2), 3.0, space))
        pyro.sample("x", dist.Normal(space.dist0(z), 0.1), obs=torch.tensor(1.0))

    values = {"c": torch.tensor(1.0), "z": chart(1.0).from_normal_coords(None, torch.tensor([0.0, 9.0]))}
    svi = SVI(model, AutoNormal(model, init_loc_fn=init_to_value(values=values)), pyro.optim.Adam({}), Trace_ELBO())
    with pyro.validation_enabled(validate), pytest.raises(ValueError, match="nan" if validate else REMEDY):
        [svi.step() for _ in range(10)]


def test_the_same_number_is_not_shown_twice():
    # At the start of a chain the curvature is that of the first run.
    c = torch.tensor(1.0)
    z = torch.distributions.biject_to(hdist.constraints.on(PoincareBall(c)))(torch.ones(2) / 2)
    model = poutine.condition(FOUND["itself"], {"c": c.clone().requires_grad_(), "z": z})
    with pytest.raises(ValueError, match=r"made on PoincareBall\(c=1.0\), and its curvature, a constant then"):
        poutine.trace(model).get_trace().log_prob_sum()


# Pyro does not start a chain whose initial values depend on a parameter with a gradient.
FIXED = {"a number": lambda: 1.0, "a tensor": lambda: torch.tensor(1.0), "a parameter": lambda: learned().detach()}


@pytest.mark.parametrize("c", FIXED)
@every_chart
def test_no_alarm_in_a_chain(chart, c):
    def model():
        space = chart(FIXED[c]())
        z = pyro.sample("z", hdist.WrappedNormal(space.origin(2), 0.5, space))
        pyro.sample("x", dist.Normal(space.dist0(z), 0.1), obs=torch.tensor(1.0))

    run(NUTS, model, max_tree_depth=3)


def test_no_alarm_for_a_curvature_that_is_learned():
    # A leaf that the optimiser moves in place is the same in the guide; others go with AutoWrappedNormal.
    leaf = nn.Parameter(torch.tensor(0.7))

    def model(c):
        space = PoincareBall(c())
        z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 0.5, space))
        pyro.sample("x", dist.Normal(space.dist0(z), 0.1), obs=torch.tensor(1.0))

    for guide, c in ((AutoNormal, lambda: pyro.param("leaf", leaf)), (AutoWrappedNormal, learned)):
        svi = SVI(lambda c=c: model(c), guide(lambda c=c: model(c)), pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        [svi.step() for _ in range(3)]


def test_an_alarm_where_a_guide_keeps_a_learned_curvature():
    def model():
        space = PoincareBall(learned().detach())  # without which torch would complain before
        pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 0.5, space))

    guide = AutoNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    svi.step()
    pyro.get_param_store()["learned"] = torch.tensor(0.9)
    with pytest.raises(ValueError, match=r"(?s)'z'.*where it is learned use infer.AutoWrappedNormal"):
        svi.step()


def test_no_alarm_outside_of_programs():
    z = torch.distributions.biject_to(hdist.constraints.on(PoincareBall(1.0)))(torch.ones(2) / 2)
    values = [hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(c)).log_prob(z) for c in (0.5, 1.0)]
    assert values[0] != values[1]


def test_no_alarm_for_a_part_of_a_batch():
    # Each particle has a curvature of its own.
    with pyro.plate("particles", 3, dim=-2):
        trace = poutine.trace(distances()).get_trace()
    c, z = (trace.nodes[name]["value"] for name in ("c", "z"))
    for k in range(3):
        values = {"c": c[k].squeeze(), "z": z[k]}
        assert poutine.trace(poutine.condition(distances(), values)).get_trace().log_prob_sum().isfinite()


def test_points_can_be_saved_and_copied(tmp_path):
    # What is known of a point is not part of it.
    model = FOUND["itself"]
    z = poutine.trace(model).get_trace().nodes["z"]["value"]
    torch.save(z, tmp_path / "z")
    assert torch.equal(torch.load(tmp_path / "z", weights_only=True), z)
    assert torch.equal(copy.deepcopy(z), z)
