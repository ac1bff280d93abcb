"""Curvatures that are latents: which sites are found, what becomes of them, and what algorithms do with them."""

import copy
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.infer.mcmc.util import initialize_model
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import pyro_method

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import (
    DrawnCurvature,
    with_drawn_curvature,
)
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same
from tests.infer.reparam.drawn_models import (
    CURVATURE,
    FOUND,
    distances,
    every_chart,
    every_family,
    learned,
    of_groups,
    point,
)


def latents(model, *args):
    return {name for name in poutine.trace(model).get_trace(*args).stochastic_nodes if name != "points"}


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


def test_wrong_input():
    with pytest.raises(ValueError, match=r"collection of names of sites, got 'z'; for one site use \['z'\]"):
        with_drawn_curvature(FOUND["itself"], centered="z")
    with pytest.raises(ValueError, match="model must be a Pyro program, got 3; pass the function"):
        with_drawn_curvature(3)


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


@with_drawn_curvature
def decorated():
    return point(pyro.sample("c", CURVATURE))


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
    # Those that stand under the name of their program: as `mp_context="spawn"` passes them to the processes of chains.
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    one = Decorated()
    for _ in range(2):
        assert latents(pickle.loads(pickle.dumps(one.model))) == latents(one.model) == {"c", "z_base"}


def test_a_site_that_the_first_run_did_not_have():
    @with_drawn_curvature
    def model(more=False):
        c = pyro.sample("c", CURVATURE)
        point(c)
        if more:
            point(c, "late")

    assert latents(model) == {"c", "z_coords"}
    assert latents(model, True) == {"c", "z_coords", "late_coords"}


def test_each_run_by_itself():
    # What a run is given, or a handler makes of a parameter, decides what is drawn.
    @with_drawn_curvature
    def model(c=None):
        point(pyro.sample("c", CURVATURE) if c is None else c)

    for _ in range(2):
        assert latents(model, torch.tensor(1.0)) == {"z"}
        assert latents(model) == {"c", "z_coords"}

    lifted = poutine.lift(with_drawn_curvature(lambda: point(learned())), prior={"learned": CURVATURE})
    assert latents(lifted) == {"learned", "z_coords"}
    strategy = DrawnCurvature()
    for c, site in ((1.0, "z"), (torch.tensor(1.0), "z_coords")):
        assert latents(poutine.reparam(lambda c=c: point(c), strategy)) == {site}


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
        distribution = hdist.WrappedNormal(torch.zeros(2), 0.5, PoincareBall(u.exp()))
        expected = -dist.Normal(0.0, 0.5).log_prob(u) - distribution.lebesgue_log_prob(x).sum()
        same(potential({"c": u}), expected, 1e-5)
    # The same program without the observation.
    assert latents(wrapped, None) == {"c", "z_coords"}
