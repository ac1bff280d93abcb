"""What users of pyro.infer.SVI do, and what the fast trainers make of it."""

from __future__ import annotations

import copy
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoIAFNormal, AutoLowRankMultivariateNormal
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import EnsembleSVI, FastSVI
from pyro_hyperbolic.infer.programs.modes import OutOfPlaceRandom
from pyro_hyperbolic.models import HyperbolicVAE
from tests.helpers import same
from tests.infer.nets import STEPS, Net, adam, losses, trainer

pytestmark = pytest.mark.usefixtures("double")


def regression(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=x.sum(-1))


class TestState:
    def test_evaluation_of_a_loaded_state(self, x):
        svi = trainer(FastSVI, Net())
        losses(svi, x)
        state = svi.state_dict()
        torch.manual_seed(9)
        expected = svi.evaluate_loss(x)
        fresh = trainer(FastSVI, Net(seed=1))
        fresh.load_state_dict(state)
        assert fresh.state_dict() is state
        torch.manual_seed(9)
        same(fresh.evaluate_loss(x), expected, 1e-14)

    def test_guide_with_buffers(self, x):
        def start() -> FastSVI:
            pyro.clear_param_store()
            return FastSVI(regression, AutoIAFNormal(regression, hidden_dim=[8]), adam(), Trace_ELBO())

        pyro.set_rng_seed(0)
        svi = start()
        losses(svi, x)
        state, generator = svi.state_dict(), torch.get_rng_state()
        expected = losses(svi, x)
        pyro.set_rng_seed(3)  # other random permutations
        resumed = start()
        resumed.load_state_dict(state)
        torch.set_rng_state(generator)
        same(losses(resumed, x), expected, 1e-12)

    def test_statistics_of_batches_are_those_of_svi(self, x):
        counts = []
        for kind, options in ((SVI, {}), (FastSVI, {"validate_every": 3})):
            net = Net(lambda: nn.BatchNorm1d(6))
            losses(trainer(kind, net, **options), x, steps=8)
            counts.append(net.encoder[1].state_dict())
        for name, value in counts[0].items():
            same(counts[1][name].double(), value.double(), 1e-8)

    def test_two_parameters_of_one_plain_name(self, x):
        class Model(PyroModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = PyroModule[nn.Linear](2, 3)

            def forward(self, x: Tensor) -> None:
                with pyro.plate("data", len(x)):
                    z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
                    pyro.sample("x", dist.Normal(self.net(z), 1.0).to_event(1), obs=x)

        runs = []
        for kind in (SVI, FastSVI):
            pyro.clear_param_store()
            pyro.set_rng_seed(0)
            net, model = nn.Linear(3, 2), Model()

            def guide(x: Tensor, net: nn.Module = net) -> None:
                pyro.module("net", net)
                with pyro.plate("data", len(x)):
                    pyro.sample("z", dist.Normal(net(x), 0.5).to_event(1))

            runs.append(losses(kind(model, guide, adam(), Trace_ELBO()), x))
        same(runs[1], runs[0], 1e-12)


class TestCaptured:
    def test_tensors_in_containers_are_given_to_the_graph(self, x, replayed):
        class Nested(Net):
            def model(self, batch: Any) -> None:
                super().model(batch["x"])

            def guide(self, batch: Any) -> None:
                super().guide(batch["x"])

        runs = []
        for kind, options in ((SVI, {}), (FastSVI, {"capture": True})):
            svi = trainer(kind, Nested(), **options)
            runs.append(torch.stack([torch.as_tensor(svi.step({"x": i * x})) for i in range(5)]))
        same(runs[1], runs[0], 1e-8)  # a captured learning rate is float32

    def test_warm_up_leaves_no_trace_in_buffers(self, x, replayed):
        net = Net(lambda: nn.BatchNorm1d(6))
        losses(trainer(FastSVI, net, capture=True), x, steps=5)
        assert net.encoder[1].num_batches_tracked == 5

    def test_optimiser_of_torch(self, x, replayed):
        expected = losses(trainer(FastSVI, Net(), lambda p: torch.optim.Adam(p, lr=0.01)), x)
        svi = trainer(FastSVI, Net(), lambda p: torch.optim.Adam(p, lr=0.01, fused=True), capture=True)
        same(losses(svi, x), expected, 1e-6)
        assert svi._optimiser.torch.param_groups[0]["capturable"]

    def test_optimiser_that_cannot_be_captured(self, x):
        with pytest.raises(ValueError, match=r"steps of ClippedAdam cannot be captured.*capture=False"):
            trainer(FastSVI, Net(), pyro.optim.ClippedAdam({"lr": 0.01}), capture=True).step(x)

    def test_argument_that_is_no_plain_value(self, x, replayed):
        class Anything(Net):
            def model(self, x: Tensor, other: Any) -> None:
                super().model(x)

            def guide(self, x: Tensor, other: Any) -> None:
                super().guide(x)

        svi = trainer(FastSVI, Anything(), capture=True)
        with pytest.raises(ValueError, match="must be a tensor or a plain value, got one of type bytearray"):
            losses(svi, x, bytearray(2))


class TestCompiled:
    @pytest.fixture(autouse=True)
    def eager(self, monkeypatch):
        monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)

    def guide(self, x: Tensor) -> None:
        pyro.sample("a", dist.Normal(pyro.param("loc", torch.zeros(1)), 1.0).to_event(1))

    def test_branch_is_reported_by_the_first_step(self, x):
        def model(x: Tensor) -> None:
            a = pyro.sample("a", dist.Normal(torch.zeros(1), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(a[0], 1.0 if a > 0 else 2.0), obs=x[0, 0])

        svi = FastSVI(model, self.guide, adam(), Trace_ELBO(), compile=True)
        with pytest.raises(ValueError, match=r"cannot be compiled: .*data-dependent.*site 'a'.*use compile=False"):
            svi.step(x)

    def test_law_made_outside_with_validation(self, x):
        prior = dist.Normal(0.0, 1.0, validate_args=True).expand([1]).to_event(1)

        def model(x: Tensor) -> None:
            a = pyro.sample("a", prior)
            pyro.sample("x", dist.Normal(a[0], 1.0), obs=x[0, 0])

        runs = []
        for compile in (False, True):
            pyro.clear_param_store()
            pyro.set_rng_seed(0)
            runs.append(losses(FastSVI(model, self.guide, adam(), Trace_ELBO(), compile=compile), x))
        same(runs[1], runs[0], 1e-12)
        assert prior.base_dist._validate_args

    def test_parameter_in_a_subsampled_plate(self, x):
        def model(x: Tensor) -> None:
            with pyro.plate("data", len(x), subsample=torch.arange(0, 12, 3)) as i:
                pyro.sample("x", dist.Normal(pyro.sample("z", dist.Normal(0.0, 1.0)), 1.0), obs=x[i, 0])

        def guide(x: Tensor) -> None:
            with pyro.plate("data", len(x), subsample=torch.arange(0, 12, 3)):
                pyro.sample("z", dist.Normal(pyro.param("loc", torch.zeros(12), event_dim=0), 1.0))

        runs = []
        for kind, options in ((SVI, {}), (FastSVI, {"compile": True})):
            pyro.clear_param_store()
            pyro.set_rng_seed(0)
            runs.append(losses(kind(model, guide, adam(), Trace_ELBO(), **options), x))
        same(runs[1], runs[0], 1e-12)

    def test_training_mode_is_part_of_a_compiled_step(self, x):
        runs = []
        for kind, options in ((SVI, {}), (FastSVI, {"compile": True})):
            net = Net(lambda: nn.Dropout(0.5))
            svi = trainer(kind, net, **options)
            net.eval()
            first = losses(svi, x)
            net.train()
            torch.manual_seed(1)
            runs.append(torch.cat([first, losses(svi, x, steps=1)]))
        same(runs[1][:STEPS], runs[0][:STEPS], 1e-12)
        assert len(svi._compiled) == 2


class Slope(PyroModule):
    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.noise = PyroParam(0.5 + torch.rand(()), constraint=constraints.positive)
        self.register_buffer("beta", torch.tensor(beta))

    def forward(self, x: Tensor) -> None:
        with poutine.scale(scale=self.beta):
            w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, self.noise), obs=x.sum(-1))


class SlopeGuide(PyroModule):
    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.randn(3))
        self.scale = PyroParam(0.1 + torch.rand(3), constraint=constraints.positive)

    def forward(self, x: Tensor) -> Any:
        return pyro.sample("w", dist.Normal(self.loc, self.scale).to_event(1))


class TestEnsemble:
    def test_members_with_constrained_parameters_stay_usable(self, x, tmp_path):
        members = [(Slope(), SlopeGuide()) for _ in range(2)]
        svi = EnsembleSVI(members, adam(), Trace_ELBO())
        svi.step(x, shared=True)
        assert list(pyro.get_param_store()) == []
        assert members[1][1](x).shape == (3,)
        pyro.get_param_store().save(tmp_path / "store.pt")

    def test_buffers_are_those_of_the_members(self, x):
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

    def test_buffers_are_part_of_the_state(self, x):
        members = [(Slope(beta), SlopeGuide()) for beta in (1.0, 2.0)]
        svi = EnsembleSVI(members, adam(), Trace_ELBO())
        svi.step(x, shared=True)
        state = svi.state_dict()
        others = [(Slope(beta), SlopeGuide()) for beta in (3.0, 4.0)]
        resumed = EnsembleSVI(others, adam(), Trace_ELBO())
        resumed.load_state_dict(copy.deepcopy(state))
        resumed.step(x, shared=True)
        assert [model.beta.item() for model, _ in others] == [1.0, 2.0]

    def test_parameters_drawn_by_the_first_run_differ(self, x):
        members = [(regression, AutoLowRankMultivariateNormal(regression, rank=1)) for _ in range(2)]
        EnsembleSVI(members, adam(), Trace_ELBO()).step(x, shared=True)
        first, second = (guide.cov_factor for _, guide in members)
        assert not torch.allclose(first, second)

    def test_attributes_that_differ_are_named(self, x):
        vaes = [HyperbolicVAE(PoincareBall(1.0), 2, 3, hidden_dim=5, likelihood="normal") for _ in range(2)]
        for number, vae in enumerate(vaes):
            vae.weight = 1.0 + number
        svi = EnsembleSVI([(v.model, v.guide) for v in vaes], adam(), Trace_ELBO())
        with pytest.warns(UserWarning, match=r"HyperbolicVAE.weight is 2.0 in member 1 and 1.0 in member 0") as record:
            svi.step(x, shared=True)
        assert record[0].filename == __file__

    def test_learning_rates_with_options_per_parameter(self, x):
        optim = pyro.optim.Adam(lambda name: {"lr": 0.1 if name == "loc" else 0.01})
        members = [(Slope(), SlopeGuide()) for _ in range(2)]
        svi = EnsembleSVI(members, optim, Trace_ELBO(), learning_rates=torch.tensor([0.1, 0.2]))
        with pytest.raises(ValueError, match="learning_rates need an optim with one positive learning rate"):
            svi.step(x, shared=True)

    def test_tensor_without_members(self, x):
        svi = EnsembleSVI([(Slope(), SlopeGuide()) for _ in range(2)], adam(), Trace_ELBO())
        with pytest.raises(ValueError, match="a tensor without dimensions has none over members"):
            svi.step(torch.tensor(1.0))

    def test_program_that_cannot_be_batched(self, x):
        class Branching(Slope):
            def forward(self, x: Tensor) -> None:
                w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
                with pyro.plate("data", len(x)):
                    pyro.sample("y", dist.Normal(x @ w, 1.0 if w[0] > 0 else self.noise), obs=x.sum(-1))

        svi = EnsembleSVI([(Branching(), SlopeGuide()) for _ in range(2)], adam(), Trace_ELBO())
        with pytest.raises(
            ValueError, match=r"cannot be run as one ensemble: .*site 'w'.*train the members by FastSVI"
        ):
            svi.step(x, shared=True)
