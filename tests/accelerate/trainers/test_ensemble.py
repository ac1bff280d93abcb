"""EnsembleSVI against separate runs of its members."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

from pyro_hyperbolic.infer import EnsembleSVI, FastSVI
from tests.accelerate.nets import Slope, SlopeGuide
from tests.accelerate.trainers.ensembles import MEMBERS, STEPS, adam, build, data, ensemble, together, wrapped
from tests.helpers import same

pytestmark = pytest.mark.usefixtures("double")
TOLERANCE = 1e-9


class Sizes(nn.Module):
    """Noise that torch draws in place, and modules that are registered with pyro.module."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.net = nn.Linear(6, 6), nn.Linear(6, 6)

    def model(self, x: Tensor) -> None:
        pyro.module("net", self.net)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Exponential(torch.ones(6)).to_event(1))
            w = pyro.sample("w", dist.Laplace(torch.zeros(6), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(self.net(z) + w, 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("rate", self.rate)
        rate = nn.functional.softplus(self.rate(x))
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Exponential(rate).to_event(1))
            pyro.sample("w", dist.Laplace(torch.zeros(6), rate).to_event(1))


def separate(modules: list[Any], args: list[tuple[Tensor, ...]], optim: Any = adam, loss: Any = Trace_ELBO) -> Any:
    """Losses ``(steps, E)`` and final parameters of copies of the members, each trained alone with the same noise."""
    columns, states = [], []
    for i, original in enumerate(modules):
        module = copy.deepcopy(original)
        svi = FastSVI(module.model, module.guide, optim(i) if optim is not adam else adam(), loss())
        torch.manual_seed(1)
        columns.append(torch.stack([svi.step(*args[i]) for _ in range(STEPS)]))
        states.append(module.state_dict())
    return torch.stack(columns, -1), states


def same_states(modules: list[Any], states: list[dict[str, Tensor]], tolerance: float = TOLERANCE) -> None:
    for module, state in zip(modules, states, strict=True):
        for name, value in module.state_dict().items():
            same(value, state[name], tolerance)


# What differs from these in its distributions alone is no other matter for the trainer.
QUICK = {"euclidean", "graphs", "one member", "curvatures", "learnable curvature"}


class TestAgainstSeparateRuns:
    @pytest.mark.parametrize(
        "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MEMBERS]
    )
    def test_shared_data(self, name):
        modules = build(name)
        args = data(modules)
        losses, states = separate(modules, [args] * len(modules))
        svi = ensemble(modules, randomness="same")
        same(together(svi, args, shared=True), losses, TOLERANCE)
        same_states(modules, states)
        assert len(svi) == len(modules)
        assert svi.steps == STEPS

    @pytest.mark.parametrize(
        "loss",
        [
            TraceMeanField_ELBO,
            lambda: Trace_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1),
            lambda: RenyiELBO(alpha=0.5, num_particles=2),
        ],
    )
    def test_losses(self, loss):
        modules = build("euclidean")
        args = data(modules)
        losses, _ = separate(modules, [args] * 3, loss=loss)
        same(together(ensemble(modules, loss=loss(), randomness="same"), args, shared=True), losses, TOLERANCE)

    def test_data_of_their_own(self):
        modules = build("curvatures")
        (x,) = data(modules, 3)
        losses, states = separate(modules, [(part,) for part in x])
        same(together(ensemble(modules, randomness="same"), (x,), shared=False), losses, TOLERANCE)
        same_states(modules, states)

    @pytest.mark.parametrize(
        ("name", "clip"),
        [
            ("euclidean", {"clip_norm": 0.5}),
            pytest.param("wrapped", {"clip_value": 0.1}, marks=pytest.mark.slow),
            pytest.param("learnable curvature", {"clip_norm": 0.5}, marks=pytest.mark.slow),
            ("graph", {"clip_norm": 0.5, "clip_value": 0.1}),
        ],
    )
    def test_each_is_clipped_apart(self, name, clip):
        modules = build(name)
        args = data(modules)
        losses, states = separate(modules, [args] * len(modules), optim=lambda i: adam(**clip))
        same(together(ensemble(modules, adam(**clip), randomness="same"), args, shared=True), losses, TOLERANCE)
        same_states(modules, states)

    @pytest.mark.parametrize(
        "optim",
        [
            lambda rate: pyro.optim.Adam({"lr": rate}),
            lambda rate: pyro.optim.SGD({"lr": rate, "momentum": 0.9}),
            lambda rate: pyro.optim.ClippedAdam({"lr": rate, "lrd": 0.8}),
            lambda rate: lambda parameters: torch.optim.Adam(parameters, lr=rate),
        ],
        ids=["Adam", "SGD", "ClippedAdam with decay", "factory"],
    )
    def test_learning_rates(self, optim):
        rates = torch.tensor([1e-3, 4e-3, 2e-2])
        modules = build("euclidean")
        args = data(modules)
        losses, states = separate(modules, [args] * 3, optim=lambda i: optim(rates[i].item()))
        svi = ensemble(modules, optim(5e-3), learning_rates=rates, randomness="same")
        same(together(svi, args, shared=True), losses, TOLERANCE)
        same_states(modules, states)

    def test_schedule_and_learning_rates(self):
        def schedule(rate: float) -> Any:
            options = {"optimizer": torch.optim.Adam, "optim_args": {"lr": rate}, "gamma": 0.5}
            return pyro.optim.ExponentialLR(options)

        rates = torch.tensor([5e-3, 2e-2])
        modules = build("euclidean")[:2]
        args = data(modules)
        expected = []
        for module, rate in zip(copy.deepcopy(modules), rates.tolist(), strict=True):
            optim = schedule(rate)
            alone = FastSVI(module.model, module.guide, optim, Trace_ELBO())
            torch.manual_seed(1)
            losses = []
            for _ in range(STEPS):
                losses.append(alone.step(*args))
                optim.step()
            expected.append(torch.stack(losses))
        optim = schedule(1e-2)
        svi = ensemble(modules, optim, learning_rates=rates, randomness="same")
        torch.manual_seed(1)
        actual = []
        for _ in range(STEPS):
            actual.append(svi.step(*args, shared=True))
            optim.step()
        same(torch.stack(actual), torch.stack(expected, -1), TOLERANCE)

    def test_programs_that_are_modules(self):
        pairs = [(Slope(size=6), SlopeGuide(6)) for _ in range(3)]
        x = torch.randn(10, 6)
        expected = []
        for model, guide in copy.deepcopy(pairs):
            pyro.clear_param_store()
            alone = FastSVI(model, guide, adam(), Trace_ELBO())
            torch.manual_seed(1)
            expected.append(torch.stack([alone.step(x) for _ in range(STEPS)]))
        svi = EnsembleSVI(pairs, adam(), Trace_ELBO(), randomness="same")
        same(together(svi, (x,), shared=True), torch.stack(expected, -1), TOLERANCE)
        assert not torch.equal(pairs[1][1].scale, pairs[2][1].scale)
        same(svi.parameters["scale"][1].exp(), pairs[1][1].scale, TOLERANCE)

    @pytest.mark.slow
    def test_compiled(self):
        pairs = [(Slope(size=6), SlopeGuide(6)) for _ in range(2)]
        x = torch.randn(10, 6)
        expected = together(EnsembleSVI(copy.deepcopy(pairs), adam(), Trace_ELBO()), (x,), shared=True)
        # Compiled programs draw their own random numbers unless told otherwise.
        with torch._inductor.config.patch(fallback_random=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            actual = together(EnsembleSVI(pairs, adam(), Trace_ELBO(), compile=True), (x,), shared=True)
        same(actual, expected, 1e-9)

    def test_options_by_name(self):
        """Of the names of a shared parameter Pyro's optimisers know the last."""

        def options(name: str) -> dict[str, float]:
            return {"lr": {"decoder.embed.manifold.raw": 0.1, "latent.manifold.raw": 0.0}.get(name, 0.01)}

        modules = build("learnable curvature")
        args = data(modules)
        losses, states = separate(modules, [args] * 2, optim=lambda i: pyro.optim.Adam(options))
        same(together(ensemble(modules, pyro.optim.Adam(options), randomness="same"), args, True), losses, TOLERANCE)
        same_states(modules, states)


class TestNoise:
    def test_different(self):
        module = wrapped()
        svi = ensemble([module, copy.deepcopy(module)])
        losses = svi.step(torch.rand(10, 6), shared=True)
        assert losses.shape == (2,)
        assert losses[0] != losses[1]

    def test_same(self):
        module = wrapped()
        svi = ensemble([module, copy.deepcopy(module)], randomness="same")
        losses = together(svi, (torch.rand(10, 6),), shared=True)
        assert torch.equal(losses[:, 0], losses[:, 1])

    def test_different_noise_of_torch(self):
        """torch.distributions draws in place, which is replaced; the first step's check must draw likewise."""
        module = Sizes()
        svi = ensemble([module, copy.deepcopy(module), Sizes()])
        losses = torch.stack([svi.step(torch.rand(10, 6), shared=True) for _ in range(3)])
        assert losses.isfinite().all()
        assert (losses[0] != losses[0].roll(1)).all()

    def test_set_up_draws_nothing(self):
        modules = build("euclidean")
        args = data(modules)
        one, two = ensemble(modules), ensemble(copy.deepcopy(modules))
        torch.manual_seed(3)
        one.evaluate_loss(*args, shared=True)
        torch.manual_seed(1)
        expected = one.step(*args, shared=True)
        torch.manual_seed(1)
        assert torch.equal(two.step(*args, shared=True), expected)
