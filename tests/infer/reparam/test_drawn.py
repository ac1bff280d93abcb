"""Curvatures that are latents: which sites are found, what becomes of them, and what algorithms do with them."""

import copy
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import HMC, MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal, init_to_value
from pyro.infer.mcmc.util import initialize_model
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import pyro_method
from pyro.ops.integrator import potential_grad
from torch import nn

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Product
from pyro_hyperbolic.infer import (
    AutoWrappedNormal,
    DrawnCurvature,
    EnsembleSVI,
    FastSVI,
    check_model_guide,
    with_drawn_curvature,
)
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same
from tests.infer.reparam.drawn_models import distances

every_chart = pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
every_family = pytest.mark.parametrize("family", [hdist.WrappedNormal, hdist.RiemannianNormal])
every_centring = pytest.mark.parametrize("centered", [True, False])


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


def latents(model, *args):
    return {name for name in poutine.trace(model).get_trace(*args).stochastic_nodes if name != "points"}


def point(c, name="z", family=hdist.WrappedNormal, **kwargs):
    return pyro.sample(name, family(torch.zeros(2), 0.5, PoincareBall(c)), **kwargs)


def learned():
    return pyro.param("learned", torch.tensor(0.7), constraint=dist.constraints.positive)


CURVATURE = dist.LogNormal(0.0, 0.5)
GROUPS = torch.tensor([0, 1, 1])


def of_groups():
    with pyro.plate("groups", 2):
        c = pyro.sample("c", CURVATURE)
    with pyro.plate("points", 3):
        return point(c[..., GROUPS])


def of_a_component():
    k = pyro.sample("k", dist.Categorical(torch.ones(2)))
    return point(torch.tensor([0.5, 2.0])[k])


def without_gradient():
    with torch.no_grad():
        c = pyro.sample("c", CURVATURE) + 1.0
    return point(c)


def filled():
    c = torch.ones(2)
    c[0] = pyro.sample("c", CURVATURE)
    return point(c.sum())


def by_a_network():
    return point(nn.functional.softplus(torch.ones(1, 1) @ pyro.sample("c", CURVATURE).reshape(1, 1)).squeeze())


FOUND = {
    "itself": lambda: point(pyro.sample("c", CURVATURE)),
    "a function": lambda: point(torch.exp(pyro.sample("c", dist.Normal(0.0, 1.0)) / 2) + 0.1),
    "a network": by_a_network,
    "of groups": of_groups,
    "of a component": of_a_component,
    "without gradient": without_gradient,
    "detached": lambda: point(pyro.sample("c", CURVATURE).detach()),
    "in place": filled,
    "through a point": lambda: point(torch.linalg.vector_norm(point(1.0, "top")) + 0.1),
    "times a parameter": lambda: point(learned() * pyro.sample("c", CURVATURE)),
}
LEFT_ALONE = {
    "a number": lambda: (pyro.sample("c", CURVATURE), point(1.0)),
    "a tensor": lambda: (pyro.sample("c", CURVATURE), point(torch.tensor(1.0))),
    "a parameter": lambda: (pyro.sample("c", CURVATURE), point(learned())),
    "an observation": lambda: point(pyro.sample("c", CURVATURE, obs=torch.tensor(1.3))),
    "a condition": poutine.condition(FOUND["itself"], {"c": torch.tensor(1.3)}),
}


@pytest.mark.parametrize("case", FOUND)
def test_it_finds(case):
    model = with_drawn_curvature(FOUND[case])
    for _ in range(2):
        assert "z_coords" in latents(model)


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_it_leaves_alone(case):
    model = with_drawn_curvature(LEFT_ALONE[case])
    for _ in range(2):
        assert "z" in latents(model)


def test_a_module_that_learns_its_curvature_is_left_alone():
    space = ManifoldModule(PoincareBall(0.7), learnable=True)
    model = with_drawn_curvature(lambda: (pyro.module("space", space), point(space().c)))
    assert latents(model) == {"z"}


@every_family
def test_each_site_by_itself(family):
    def program():
        c = pyro.sample("c", CURVATURE)
        point(c, "a", family), point(c, "b", family), point(1.0, "fixed", family)

    assert latents(with_drawn_curvature(program)) == {"c", "a_coords", "b_coords", "fixed"}
    assert latents(with_drawn_curvature(program, centered=False)) == {"c", "a_base", "b_base", "fixed"}
    assert latents(with_drawn_curvature(program, centered=["a"])) == {"c", "a_coords", "b_base", "fixed"}


def test_a_name_is_no_collection():
    with pytest.raises(ValueError, match=r"collection of names of sites, got 'z'; for one site use \['z'\]"):
        with_drawn_curvature(FOUND["itself"], centered="z")


class Plain(PyroModule):
    def __init__(self, c=None):
        super().__init__()
        self.c = PyroSample(CURVATURE) if c is None else c

    def forward(self):
        return point(self.c)

    @pyro_method
    def model(self):
        return point(self.c)


class Decorated(Plain):
    forward = with_drawn_curvature(Plain.forward)

    @with_drawn_curvature(centered=False)
    @pyro_method
    def model(self):
        return point(self.c)


def test_as_a_decorator():
    @with_drawn_curvature
    def one():
        return point(pyro.sample("c", CURVATURE))

    @with_drawn_curvature(centered=False)
    def two():
        return point(pyro.sample("c", CURVATURE))

    @DrawnCurvature()
    def three():
        return point(pyro.sample("c", CURVATURE))

    assert [latents(f) for f in (one, two, three)] == [{"c", "z_coords"}, {"c", "z_base"}, {"c", "z_coords"}]
    assert one.__name__ == "one"


def test_methods_and_modules():
    assert latents(Decorated()) == {"c", "z_coords"}
    assert latents(Decorated().model) == {"c", "z_base"}
    assert latents(with_drawn_curvature(Plain())) == latents(with_drawn_curvature(Plain().model)) == {"c", "z_coords"}


def test_instances_do_not_share_what_they_found():
    fixed, drawn = Decorated(torch.tensor(1.0)), Decorated()
    for _ in range(2):
        assert latents(fixed.model) == {"z"}
        assert latents(drawn.model) == {"c", "z_base"}


def test_copies():
    model = with_drawn_curvature(distances())
    assert latents(copy.copy(model)) == {"c", "z_coords"}
    method = pickle.loads(pickle.dumps(with_drawn_curvature(of_groups)))
    assert latents(method) == {"c", "z_coords", "groups"}


def test_a_site_that_the_first_run_did_not_have():
    @with_drawn_curvature
    def model(more=False):
        c = pyro.sample("c", CURVATURE)
        point(c)
        if more:
            point(c, "late")

    assert latents(model) == {"c", "z_coords"}
    assert latents(model, True) == {"c", "z_coords", "late_coords"}


def test_the_first_run_may_end_early():
    model = with_drawn_curvature(FOUND["itself"])
    with pytest.raises(poutine.runtime.NonlocalExit):
        poutine.escape(model, lambda msg: msg["name"] == "c")()
    assert latents(model) == {"c", "z_coords"}


@every_chart
def test_initial_values(chart):
    values = {"c": torch.tensor(0.8), "z": chart(0.8).from_normal_coords(None, torch.ones(3, 2) / 3)}
    model = with_drawn_curvature(distances(chart))
    guide = AutoNormal(model, init_loc_fn=init_to_value(values=values))
    guide()
    same(guide.locs.z_coords, torch.ones(3, 2) / 3, 1e-5)


def test_an_observed_point():
    # The likelihood of coordinates: what a change of variables of the coordinates gives.
    x = torch.tensor([[0.3, 0.1], [-0.2, 0.5]])

    def model(z=x):
        c = pyro.sample("c", CURVATURE)
        with pyro.plate("points", 2):
            return point(c, obs=z)

    wrapped = with_drawn_curvature(model)
    potential = initialize_model(wrapped)[1]
    for u in torch.tensor([-1.0, 0.0, 0.7]):
        law = hdist.WrappedNormal(torch.zeros(2), 0.5, PoincareBall(u.exp()))
        expected = -dist.Normal(0.0, 0.5).log_prob(u) - law.lebesgue_log_prob(x).sum()
        same(potential({"c": u}), expected, 1e-5)
    # The same program without the observation.
    assert latents(wrapped, None) == {"c", "z_coords"}


# Never silently wrong.

REMEDY = r"(?s)'z'.*with_drawn_curvature\(model\)"


def run(kernel, model, **kwargs):
    MCMC(kernel(model, **kwargs), num_samples=2, warmup_steps=2, disable_progbar=True).run()


@every_chart
@pytest.mark.parametrize("kernel", [HMC, NUTS])
@pytest.mark.parametrize("validate", [True, False])
def test_chains_on_the_program_as_it_is_say_what_to_do(chart, kernel, validate):
    with pyro.validation_enabled(validate), pytest.raises(ValueError, match=REMEDY):
        run(kernel, distances(chart))


@pytest.mark.filterwarnings("ignore")  # the tracer's
def test_compiled_chains_say_what_to_do():
    with pytest.raises(ValueError, match=REMEDY):
        run(NUTS, distances(), jit_compile=True)


@pytest.mark.parametrize("trainer", [SVI, FastSVI])
@pytest.mark.parametrize("guide", [AutoDelta, AutoNormal, AutoMultivariateNormal])
def test_guides_on_the_program_as_it_is_say_what_to_do(trainer, guide):
    # test_pyro_autoguides has the others.
    model = distances()
    svi = trainer(model, guide(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with pytest.raises(ValueError, match=REMEDY):
        [svi.step() for _ in range(2)]


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
    x = torch.tensor([0.3, 0.1])

    def model():
        point(pyro.sample("c", CURVATURE), obs=x)

    with pytest.raises(ValueError, match=r"(?s)'z'.*observed coordinates.*with_drawn_curvature\(model\)"):
        run(NUTS, model)


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
def test_a_point_outside_of_the_new_ball_says_what_to_do(chart):
    # What is computed from it is nan, and the distribution of the data would complain without knowing why.
    def model():
        space = chart(pyro.sample("c", CURVATURE))
        z = pyro.sample("z", hdist.WrappedNormal(space.origin(2), 3.0, space))
        pyro.sample("x", dist.Normal(space.dist0(z), 0.1), obs=torch.tensor(1.0))

    values = {"c": torch.tensor(1.0), "z": chart(1.0).from_normal_coords(None, torch.tensor([0.0, 9.0]))}
    svi = SVI(model, AutoNormal(model, init_loc_fn=init_to_value(values=values)), pyro.optim.Adam({}), Trace_ELBO())
    with pytest.raises(ValueError, match=r"(?s)'z'.*outside of the ball of c = .*with_drawn_curvature\(model\)"):
        [svi.step() for _ in range(10)]


def test_the_same_number_is_not_shown_twice():
    # At the start of a chain the curvature is that of the first run.
    c = torch.tensor(1.0)
    z = torch.distributions.biject_to(hdist.constraints.poincare_ball(c))(torch.ones(2) / 2)
    model = poutine.condition(FOUND["itself"], {"c": c.clone().requires_grad_(), "z": z})
    with pytest.raises(ValueError, match=r"made on PoincareBall\(c=1.0\), and its curvature, which did not move"):
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
    z = torch.distributions.biject_to(hdist.constraints.poincare_ball(1.0))(torch.ones(2) / 2)
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


# Chains and trainers on the wrapped program.


@every_chart
@every_family
@every_centring
def test_no_curvature_is_an_exception(chart, family, centered):
    model = with_drawn_curvature(distances(chart, family), centered=centered)
    params, potential, _, _ = initialize_model(model)
    with pyro.validation_enabled(False):  # as chains run
        for u in (-800.0, -100.0, 100.0, 800.0, torch.inf, -torch.inf, torch.nan):
            value = potential({**params, "c": torch.tensor(u)})
            assert value.shape == ()
            assert -100 <= u <= 100 or not value.isfinite()


@every_chart
@every_family
@every_centring
@pytest.mark.parametrize("c", [1e-8, 1e-4, 1.0, 1e4])
def test_the_range_of_curvatures(chart, family, centered, c):
    double = {"dtype": torch.float64}
    model = with_drawn_curvature(
        distances(chart, family, dist.LogNormal(torch.zeros((), **double), 4.0), scale=0.02), centered=centered
    )
    torch.set_default_dtype(torch.float64)
    try:
        params, potential, _, _ = initialize_model(model)
        params["c"] = torch.tensor(c, **double).log()
        grads, value = potential_grad(potential, params)
    finally:
        torch.set_default_dtype(torch.float32)
    assert value.isfinite()
    assert all(grad.isfinite().all() for grad in grads.values())


@every_chart
@every_centring
def test_chains_end(chart, centered):
    # Precise data make wild first steps; test_drawn_proofs has twenty seeds of each.
    for seed in range(2):
        pyro.set_rng_seed(seed)
        run(NUTS, with_drawn_curvature(distances(chart, noise=0.001), centered=centered), max_tree_depth=2)


@every_centring
@pytest.mark.parametrize("parallel", [False, True])
def test_predictions(centered, parallel):
    model = with_drawn_curvature(distances(), centered=centered)
    prior = Predictive(model, num_samples=4, parallel=parallel)()
    site = "z_coords" if centered else "z_base"
    assert prior["z"].shape == (4, 3, 2)
    assert PoincareBall(prior["c"]).contains(prior["z"]).all()
    samples = {name: prior[name] for name in ("c", site)}
    posterior = Predictive(model, samples, parallel=parallel, return_sites=["z", "x"])()
    same(posterior["z"], prior["z"], 1e-6)
    chain = {name: value.squeeze(1) if name == "c" else value for name, value in samples.items()}
    same(Predictive(model, chain, parallel=parallel, return_sites=["z"])()["z"], prior["z"], 1e-6)


@pytest.mark.parametrize("parallel", [False, True])
@every_chart
def test_predictions_of_the_program_as_it_is(chart, parallel):
    model = distances(chart)
    prior = Predictive(model, num_samples=4, parallel=parallel)()
    again = Predictive(model, {"c": prior["c"]}, parallel=parallel)()
    assert chart(prior["c"]).contains(again["z"]).all()


@every_centring
def test_a_draw_beyond_the_dtype(centered):
    model = with_drawn_curvature(distances(prior=dist.LogNormal(4.0, 0.1)), centered=centered)
    message = r"float32 coordinates end at .* use float64 .* or the hyperboloid"
    for _ in range(2):  # the first run and those after it
        with pyro.validation_enabled(False):
            assert Predictive(model, num_samples=2)()["x"].isfinite().all()
        with pytest.raises(ValueError, match=message):
            Predictive(model, num_samples=2)()


@every_centring
def test_fast_svi_does_the_same_steps(centered):
    losses = []
    for trainer in (SVI, FastSVI):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = with_drawn_curvature(distances(), centered=centered)
        svi = trainer(model, AutoNormal(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        losses.append(torch.tensor([float(svi.step()) for _ in range(3)]))
    same(losses[0], losses[1], 1e-4)


class Member(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(7))
        self.model = with_drawn_curvature(distances())

    def guide(self):
        pyro.module("member", self)
        pyro.sample("c", dist.LogNormal(self.loc[0], 0.1))
        with pyro.plate("points", 3):
            pyro.sample("z_coords", dist.Normal(self.loc[1:].reshape(3, 2), 0.1).to_event(1))


def test_ensembles():
    members = [Member(), Member()]
    svi = EnsembleSVI([(m.model, m.guide) for m in members], pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert all(svi.step(shared=True).isfinite().all() for _ in range(2))


def test_a_curvature_of_each_group():
    x = torch.tensor([1.0, 0.5, 2.0])

    @with_drawn_curvature
    def model():
        z = of_groups()
        space = PoincareBall(torch.ones(()))
        pyro.sample("x", dist.Normal(space.dist0(z), 0.3).to_event(1), obs=x)

    run(NUTS, model, max_tree_depth=3)
    guide = AutoNormal(model)
    loss = Trace_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss)
    assert torch.tensor([svi.step() for _ in range(2)]).isfinite().all()
