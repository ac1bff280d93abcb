"""FastSVI against pyro.infer.SVI, step for step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoIAFNormal
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.infer import FastSVI
from pyro_hyperbolic.models import HyperbolicVAE
from tests.accelerate.nets import Net, adam, losses, regression, trainer
from tests.accelerate.pairs import PROGRAMS, Programs
from tests.helpers import in_turns, same

pytestmark = pytest.mark.usefixtures("double")

STEPS = 4
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


LOSSES: dict[str, Callable[[], Any]] = {
    "Trace": Trace_ELBO,
    "Trace of 3": lambda: Trace_ELBO(num_particles=3),
    "Trace of 3 at once": lambda: Trace_ELBO(num_particles=3, vectorize_particles=True),
    "MeanField": TraceMeanField_ELBO,
    "MeanField of 3 at once": lambda: TraceMeanField_ELBO(num_particles=3, vectorize_particles=True),
    "IWAE of 1": lambda: RenyiELBO(alpha=0, num_particles=1),
    "IWAE of 3": lambda: RenyiELBO(alpha=0, num_particles=3),
    "Renyi of 3": lambda: RenyiELBO(alpha=0.5, num_particles=3),
    "Renyi of 3 at once": lambda: RenyiELBO(alpha=0.5, num_particles=3, vectorize_particles=True),
}


def rate_by_name(name: str) -> dict[str, Any]:
    # The curvature is shared between latent and decoder; Pyro knows it by the last of its names.
    return {"lr": {"decoder.embed.manifold.raw": 0.05, "latent.manifold.raw": 0.5}.get(name, 0.01)}


def rate_by_module(module: str, name: str) -> dict[str, Any]:
    return {"lr": 0.02 if module == "encoder" else 0.01, "betas": (0.8, 0.9) if name.endswith("bias") else (0.9, 0.99)}


def clip_by_name(module: str, name: str) -> dict[str, Any]:
    return {"clip_norm": 0.5} if module == "encoder" else {"clip_value": 0.1} if "bias" in name else {}


def exponential() -> Any:
    return pyro.optim.ExponentialLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.02}, "gamma": 0.5}, {"clip_norm": 1.0}
    )


OPTIMISERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: pyro.optim.Adam({"lr": 0.01}),
    "Adam, options by name": lambda: pyro.optim.Adam(rate_by_name),
    "Adam, options by module and name": lambda: pyro.optim.Adam(rate_by_module),
    "Adam, clipped by norm": lambda: pyro.optim.Adam({"lr": 0.01}, {"clip_norm": 0.5}),
    "Adam, clipped by value": lambda: pyro.optim.Adam({"lr": 0.01}, {"clip_value": 0.1}),
    "Adam, clipped by both": lambda: pyro.optim.Adam({"lr": 0.01}, {"clip_norm": 0.5, "clip_value": 0.1}),
    "Adam, clipped by name": lambda: pyro.optim.Adam({"lr": 0.01}, clip_by_name),
    "AdamW": lambda: pyro.optim.AdamW({"lr": 0.01, "weight_decay": 0.1}),
    "ClippedAdam": lambda: pyro.optim.ClippedAdam({"lr": 0.02, "clip_norm": 0.5, "lrd": 0.9}),
    "SGD": lambda: pyro.optim.SGD({"lr": 1e-3, "momentum": 0.9}),
    "RMSprop": lambda: pyro.optim.RMSprop({"lr": 0.01}),
    "ExponentialLR": exponential,
}

CASES = (
    [(name, "Trace", "Adam") for name in PROGRAMS if "enumerated" not in name]
    + [("modules", loss, "Adam") for loss in LOSSES if loss != "Trace"]
    + [("wrapped", loss, "SGD") for loss in ("MeanField", "Renyi of 3", "Trace of 3 at once", "Renyi of 3 at once")]
    + [("riemannian", "Renyi of 3 at once", "Adam"), ("graph", "Trace of 3 at once", "Adam")]
    + [("registered", "MeanField", "Adam"), ("AutoNormal", "MeanField", "Adam"), ("minibatch", "IWAE of 3", "Adam")]
    + [("learnable curvature", "Trace", "Adam, options by name")]
    + [("registered", "Trace", optim) for optim in OPTIMISERS if optim not in ("Adam", "Adam, options by name")]
    + [("bare", "Trace", optim) for optim in ("Adam, clipped by name", "ClippedAdam", "ExponentialLR")]
    + [("modules", "Trace", optim) for optim in ("Adam, options by module and name", "Adam, clipped by norm")]
)


def train(
    kind: Any, programs: str, loss: str = "Trace", optim: str = "Adam", steps: int = STEPS, **options: Any
) -> Any:
    """Losses, and the unconstrained parameters by their names in Pyro's store."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    model, guide, args, kwargs, _ = PROGRAMS[programs]()
    optimiser = OPTIMISERS[optim]()
    svi = kind(model, guide, optimiser, LOSSES[loss](), **options)
    torch.manual_seed(1)
    losses = []
    for i in range(steps):
        losses.append(svi.step(*args, **kwargs))
        if optim == "ExponentialLR" and i % 3 == 2:
            optimiser.step()
    after = torch.rand(())
    return torch.stack([torch.as_tensor(x) for x in losses]), stored(), after


def stored() -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in pyro.get_param_store().named_parameters()}


def same_run(actual: Any, expected: Any, tolerance: float) -> None:
    same(actual[0], expected[0], tolerance)
    assert actual[1].keys() == expected[1].keys()
    assert expected[1]
    for name, value in expected[1].items():
        same(actual[1][name], value, tolerance)


class TestAgainstSVI:
    @pytest.mark.parametrize(("programs", "loss", "optim"), CASES)
    def test_losses_and_parameters(self, programs, loss, optim):
        expected = train(SVI, programs, loss, optim)
        actual = train(FastSVI, programs, loss, optim)
        same_run(actual, expected, TOLERANCE[torch.float64])
        assert torch.equal(actual[2], expected[2]), "other random numbers have been drawn"

    @pytest.mark.parametrize("programs", ["wrapped", "riemannian", "registered"])
    def test_single_precision(self, programs):
        torch.set_default_dtype(torch.float32)
        expected = train(SVI, programs, "Trace", "SGD")
        same_run(train(FastSVI, programs, "Trace", "SGD"), expected, TOLERANCE[torch.float32])

    def test_parameters_have_moved(self):
        torch.manual_seed(0)
        PROGRAMS["learnable curvature"]()
        _, after, _ = train(FastSVI, "learnable curvature")
        _, before, _ = train(FastSVI, "learnable curvature", steps=1)
        assert all(not torch.equal(before[name], after[name]) for name in before)

    def test_torch_factory(self):
        expected = train(SVI, "wrapped")
        pyro.clear_param_store()
        torch.manual_seed(0)
        model, guide, args, *_ = PROGRAMS["wrapped"]()
        svi = FastSVI(model, guide, lambda parameters: torch.optim.Adam(parameters, lr=0.01), Trace_ELBO())
        torch.manual_seed(1)
        losses = torch.stack([svi.step(*args) for _ in range(STEPS)])
        same_run((losses, stored()), expected, TOLERANCE[torch.float64])

    def test_loss_given_as_a_function(self):
        expected = train(SVI, "wrapped")
        torch.manual_seed(0)
        model, guide, args, *_ = PROGRAMS["wrapped"]()
        svi = FastSVI(model, guide, OPTIMISERS["Adam"](), Trace_ELBO().differentiable_loss)
        torch.manual_seed(1)
        same(torch.stack([svi.step(*args) for _ in range(STEPS)]), expected[0], TOLERANCE[torch.float64])

    def test_two_models_in_turns(self):
        """Both programs use the same names in Pyro's store."""
        torch.manual_seed(0)
        first = PROGRAMS["wrapped"]()
        alone = train(FastSVI, "wrapped")
        second = PROGRAMS["wrapped"]()
        runs = [FastSVI(p.model, p.guide, OPTIMISERS["Adam"](), Trace_ELBO()) for p in (first, second)]
        torch.manual_seed(1)
        losses = []
        for _ in range(STEPS):
            losses.append(runs[0].step(*first.args))
            state = torch.get_rng_state()
            runs[1].step(*second.args)
            torch.set_rng_state(state)
        same(torch.stack(losses), alone[0], TOLERANCE[torch.float64])

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


def build(programs: str = "wrapped", optim: str = "Adam", **options: Any) -> tuple[FastSVI, Programs, Any]:
    torch.manual_seed(0)
    pair = PROGRAMS[programs]()
    optimiser = OPTIMISERS[optim]()
    return FastSVI(pair.model, pair.guide, optimiser, Trace_ELBO(), **options), pair, optimiser


class TestStep:
    def test_loss_is_a_scalar_tensor(self):
        svi, (_, _, args, *_), _ = build()
        for loss in (svi.step(*args), svi.step(*args), svi.evaluate_loss(*args)):
            assert isinstance(loss, Tensor)
            assert loss.shape == ()
            assert not loss.requires_grad
        assert svi.steps == 2

    @pytest.mark.parametrize("steps", [0, 2])
    def test_evaluation_changes_nothing(self, steps):
        svi, (model, guide, args, *_), _ = build()
        for _ in range(steps):
            svi.step(*args)
        before = [p.clone() for p in model.__self__.parameters()]
        torch.manual_seed(5)
        loss = svi.evaluate_loss(*args)
        torch.manual_seed(5)
        same(loss, Trace_ELBO().loss(model, guide, *args), 1e-12)
        assert svi.steps == steps
        assert all(torch.equal(a, b) for a, b in zip(before, model.__self__.parameters(), strict=True))

    def test_named_parameters(self):
        svi, (_, _, args, *_), _ = build("bare")
        assert svi.named_parameters() == {}
        svi.step(*args)
        assert set(svi.named_parameters()) == {"rate", "scale", "loc", "log"}
        same(svi.named_parameters()["scale"].exp(), pyro.param("scale"), 1e-12)

    def test_keyword_and_shape_may_change(self):
        svi, _, _ = build()
        for size in (3, 7, 3):
            assert svi.step(torch.rand(size, 6), data_size=20).isfinite()


class TestState:
    @pytest.mark.parametrize("started", [False, True], ids=["before the first step", "after a step"])
    @pytest.mark.parametrize(
        ("optim", "programs"), in_turns(["Adam", "ExponentialLR", "ClippedAdam", "SGD"], ["registered", "bare"])
    )
    def test_resumption_is_exact(self, programs, started, optim):
        def go(svi: FastSVI, optimiser: Any, steps: int) -> list[Tensor]:
            losses = []
            for _ in range(steps):
                losses.append(svi.step(*args))
                if optim == "ExponentialLR":
                    optimiser.step()
            return losses

        svi, (_, _, args, *_), optimiser = build(programs, optim)
        go(svi, optimiser, 3)
        state, generator = svi.state_dict(), torch.get_rng_state()
        expected = go(svi, optimiser, 4)
        parameters = {name: t.clone() for name, t in svi.named_parameters().items()}

        pyro.clear_param_store()
        new, _, optimiser = build(programs, optim)
        if started:
            go(new, optimiser, 2)
        new.load_state_dict(state)
        torch.set_rng_state(generator)
        actual = go(new, optimiser, 4)
        assert torch.equal(torch.stack(actual), torch.stack(expected))
        assert new.steps == 7
        assert all(torch.equal(new.named_parameters()[name], t) for name, t in parameters.items())

    def test_state_is_a_snapshot(self):
        svi, (_, _, args, *_), _ = build()
        svi.step(*args)
        state = svi.state_dict()
        generator = torch.get_rng_state()
        first = svi.step(*args), svi.step(*args), svi.step(*args)
        for _ in range(2):  # loading must not tie the state to the run either
            svi.load_state_dict(state)
            torch.set_rng_state(generator)
            assert torch.equal(torch.stack([svi.step(*args) for _ in range(3)]), torch.stack(first))

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

    def test_no_state_before_the_first_step(self):
        with pytest.raises(ValueError, match="before the first step"):
            build()[0].state_dict()

    @pytest.mark.parametrize("started", [False, True])
    @pytest.mark.parametrize("other", ["bare", "wider"])
    def test_state_of_other_programs(self, other, started):
        """Refused as long as it is there: the run does not go on from nowhere; and nothing of it is taken over."""
        if other == "wider":
            module = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=9)
            donor, args = FastSVI(module.model, module.guide, OPTIMISERS["Adam"](), Trace_ELBO()), (torch.rand(3, 6),)
        else:
            donor, (_, _, args, *_), _ = build("bare")
        donor.step(*args)
        svi, (model, _, args, *_), _ = build()
        before = [p.clone() for p in model.__self__.parameters()]
        if started:
            svi.step(*args)
            before = [p.clone() for p in model.__self__.parameters()]
            with pytest.raises(ValueError, match="state belongs to other programs"):
                svi.load_state_dict(donor.state_dict())
        else:
            svi.load_state_dict(donor.state_dict())
            for _ in range(2):
                with pytest.raises(ValueError, match="state belongs to other programs"):
                    svi.step(*args)
        assert all(torch.equal(a, b) for a, b in zip(before, model.__self__.parameters(), strict=True))


def fast(model: Any, guide: Any, loss: Any = None, **options: Any) -> FastSVI:
    return FastSVI(model, guide, OPTIMISERS["Adam"](), Trace_ELBO() if loss is None else loss, **options)


class TestWatch:
    def test_loss_that_is_not_finite_is_reported_once(self):
        def model(x: Tensor) -> None:
            pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.factor("x", x * pyro.param("w", torch.tensor(1.0)))

        def guide(x: Tensor) -> None:
            pyro.sample("z", dist.Normal(pyro.param("loc", torch.tensor(0.0)), 1.0))

        svi = fast(model, guide)
        for _ in range(2):
            svi.step(torch.tensor(1.0))
        with pytest.warns(UserWarning, match="not finite since step 3$") as record:
            svi.step(torch.tensor(math.inf))
        assert len(record) == 1
        assert record[0].filename == __file__
        svi.step(torch.tensor(1.0))  # warnings are errors here
        pyro.clear_param_store()
        svi = fast(model, guide)
        with pytest.warns(UserWarning, match="not finite since step 2$") as record:
            svi.run([torch.tensor(1.0), torch.tensor(math.inf)])
        assert record[0].filename == __file__

    def test_posterior_that_leaves_the_ball(self):
        ball = PoincareBall(1.0)

        def model() -> None:
            pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, ball))

        def guide() -> None:
            width = pyro.param("width", torch.tensor(0.0))
            pyro.sample("z", WrappedNormal(torch.zeros(2), width.exp().unsqueeze(-1), ball))

        svi = fast(model, guide, validate_every=3)
        svi.step()
        with torch.no_grad():
            svi.named_parameters()["width"].fill_(5.0)
        svi.step()
        svi.step()
        with pytest.raises(ValueError, match=r"distance .* from the\s+origin.*Lorentz"):
            svi.step()

    def test_validation_leaves_no_trace(self):
        expected = train(FastSVI, "wrapped")
        actual = train(FastSVI, "wrapped", validate_every=1)
        assert torch.equal(actual[0], expected[0])
        assert torch.equal(actual[2], expected[2])
