"""What the members of an ensemble may have: buffers, constrained parameters, attributes; and what they may not."""

from __future__ import annotations

import copy

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from torch import Tensor

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.accelerate.programs.modes import OutOfPlaceRandom
from pyro_hyperbolic.infer import EnsembleSVI
from pyro_hyperbolic.models import HyperbolicVAE
from tests.accelerate.nets import Slope, SlopeGuide, adam, regression
from tests.helpers import same

pytestmark = pytest.mark.usefixtures("double")


def test_members_with_constrained_parameters_stay_usable(x, tmp_path):
    members = [(Slope(), SlopeGuide()) for _ in range(2)]
    svi = EnsembleSVI(members, adam(), Trace_ELBO())
    svi.step(x, shared=True)
    assert list(pyro.get_param_store()) == []
    assert members[1][1](x).shape == (3,)
    pyro.get_param_store().save(tmp_path / "store.pt")


def test_buffers_are_those_of_the_members(x):
    members = [(Slope(beta), SlopeGuide()) for beta in (1.0, 2.0)]
    svi = EnsembleSVI(members, adam(), Trace_ELBO(), randomness="same")
    svi.step(x, shared=True)
    for model, _ in members:
        model.beta.mul_(0.01)
    torch.manual_seed(3)
    together = svi.evaluate_loss(x, shared=True)
    for i, (model, guide) in enumerate(members):
        torch.manual_seed(3)
        with OutOfPlaceRandom(), pyro.get_param_store().scope():
            same(together[i], torch.tensor(Trace_ELBO().loss(model, guide, x)), 1e-12)


def test_buffers_are_part_of_the_state(x):
    members = [(Slope(beta), SlopeGuide()) for beta in (1.0, 2.0)]
    svi = EnsembleSVI(members, adam(), Trace_ELBO())
    svi.step(x, shared=True)
    state = svi.state_dict()
    others = [(Slope(beta), SlopeGuide()) for beta in (3.0, 4.0)]
    resumed = EnsembleSVI(others, adam(), Trace_ELBO())
    resumed.load_state_dict(copy.deepcopy(state))
    resumed.step(x, shared=True)
    assert [model.beta.item() for model, _ in others] == [1.0, 2.0]


def test_parameters_drawn_by_the_first_run_differ(x):
    members = [(regression, AutoLowRankMultivariateNormal(regression, rank=1)) for _ in range(2)]
    EnsembleSVI(members, adam(), Trace_ELBO()).step(x, shared=True)
    first, second = (guide.cov_factor for _, guide in members)
    assert not torch.allclose(first, second)


def test_attributes_that_differ_are_named(x):
    vaes = [HyperbolicVAE(PoincareBall(1.0), 2, 3, hidden_dim=5, likelihood="normal") for _ in range(2)]
    for number, vae in enumerate(vaes):
        vae.weight = 1.0 + number
    svi = EnsembleSVI([(v.model, v.guide) for v in vaes], adam(), Trace_ELBO())
    with pytest.warns(UserWarning, match=r"HyperbolicVAE.weight is 2.0 in member 1 and 1.0 in member 0") as record:
        svi.step(x, shared=True)
    assert record[0].filename == __file__


def test_learning_rates_with_options_per_parameter(x):
    optim = pyro.optim.Adam(lambda name: {"lr": 0.1 if name == "loc" else 0.01})
    members = [(Slope(), SlopeGuide()) for _ in range(2)]
    svi = EnsembleSVI(members, optim, Trace_ELBO(), learning_rates=torch.tensor([0.1, 0.2]))
    with pytest.raises(ValueError, match="learning_rates need an optim with one positive learning rate"):
        svi.step(x, shared=True)


def test_tensor_without_members(x):
    svi = EnsembleSVI([(Slope(), SlopeGuide()) for _ in range(2)], adam(), Trace_ELBO())
    with pytest.raises(ValueError, match="a tensor without dimensions has no part per member"):
        svi.step(torch.tensor(1.0))


def test_program_that_cannot_be_batched(x):
    class Branching(Slope):
        def forward(self, x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(x @ w, 1.0 if w[0] > 0 else self.noise), obs=x.sum(-1))

    svi = EnsembleSVI([(Branching(), SlopeGuide()) for _ in range(2)], adam(), Trace_ELBO())
    with pytest.raises(ValueError, match=r"cannot be run as one ensemble: .*site 'w'.*train the members by FastSVI"):
        svi.step(x, shared=True)
