"""EnsembleSVI against separate runs of its members."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.infer import EnsembleSVI, FastSVI, Minibatches, log_marginal_likelihood
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE, HyperbolicVGAE
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same
from tests.infer.nets import Slope, SlopeGuide

STEPS = 4
TOLERANCE = 1e-9
EDGES = torch.tensor([[0, 1], [0, 2], [1, 3], [1, 4], [2, 5]])
GRAPHS = [EDGES, torch.tensor([[0, 5], [1, 2], [2, 3], [3, 4], [4, 5]])]  # as many edges, other ones


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def wrapped(c: float = 1.0, **options: Any) -> HyperbolicVAE:
    return HyperbolicVAE(PoincareBall(c), 2, 6, hidden_dim=8, **options)


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


MEMBERS: dict[str, list[Callable[[], Any]]] = {
    "wrapped": [wrapped, wrapped, wrapped],
    "riemannian": [lambda: wrapped(prior="riemannian", posterior="riemannian")] * 2,
    "euclidean": [lambda: EuclideanVAE(2, 6, hidden_dim=8)] * 2,
    "graph": [lambda: HyperbolicVGAE(PoincareBall(1.0), 6, EDGES, latent_dim=2, hidden_dim=4)] * 2,
    "graphs": [lambda edges=edges: HyperbolicVGAE(PoincareBall(1.0), 6, edges, latent_dim=2) for edges in GRAPHS],
    "hyperboloid": [lambda: HyperbolicVAE(Lorentz(1.0), 2, 6, hidden_dim=8)] * 2,
    "one member": [wrapped],
    "curvatures": [lambda: wrapped(0.1), lambda: wrapped(1.0), lambda: wrapped(1.4)],
    "curvatures, riemannian": [
        lambda: wrapped(0.3, prior="riemannian", posterior="riemannian"),
        lambda: wrapped(1.4, prior="riemannian", posterior="riemannian"),
    ],
    "prior scales": [lambda: wrapped(prior_scale=0.5), lambda: wrapped(prior_scale=2.0)],
    "learnable curvature": [
        lambda: HyperbolicVAE(ManifoldModule(PoincareBall(0.5), learnable=True), 2, 6, hidden_dim=8),
        lambda: HyperbolicVAE(ManifoldModule(PoincareBall(1.0), learnable=True), 2, 6, hidden_dim=8),
    ],
}


def adam(**clip: float) -> Any:
    return pyro.optim.Adam({"lr": 0.01}, clip or None)


def build(name: str) -> list[Any]:
    return [make() for make in MEMBERS[name]]


def ensemble(modules: list[Any], optim: Any = None, loss: Any = None, **options: Any) -> EnsembleSVI:
    optim, loss = optim or adam(), loss or Trace_ELBO()
    return EnsembleSVI([(m.model, m.guide) for m in modules], optim, loss, **options)


def data(modules: list[Any], *lead: int) -> tuple[Tensor, ...]:
    return () if isinstance(modules[0], HyperbolicVGAE) else (torch.rand(*lead, 10, 6),)


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


def together(svi: EnsembleSVI, args: tuple[Tensor, ...], shared: bool) -> Tensor:
    torch.manual_seed(1)
    return torch.stack([svi.step(*args, shared=shared) for _ in range(STEPS)])


def same_states(modules: list[Any], states: list[dict[str, Tensor]], tolerance: float = TOLERANCE) -> None:
    for module, state in zip(modules, states, strict=True):
        for name, value in module.state_dict().items():
            same(value, state[name], tolerance)


class TestAgainstSeparateRuns:
    @pytest.mark.parametrize("name", MEMBERS)
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
        modules = build("curvatures")
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
            ("wrapped", {"clip_norm": 0.5}),
            ("wrapped", {"clip_value": 0.1}),
            ("learnable curvature", {"clip_norm": 0.5}),
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
        modules = build("wrapped")
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
        modules = build("wrapped")[:2]
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
        modules = build("wrapped")
        args = data(modules)
        one, two = ensemble(modules), ensemble(copy.deepcopy(modules))
        torch.manual_seed(3)
        one.evaluate_loss(*args, shared=True)
        torch.manual_seed(1)
        expected = one.step(*args, shared=True)
        torch.manual_seed(1)
        assert torch.equal(two.step(*args, shared=True), expected)


class TestMembers:
    def test_are_always_current(self):
        modules = build("curvatures")
        args = data(modules)
        svi = ensemble(modules, randomness="same")
        for _ in range(3):
            before = copy.deepcopy(modules[1].state_dict())
            svi.step(*args, shared=True)
            assert not torch.equal(before["encoder.loc.weight"], modules[1].state_dict()["encoder.loc.weight"])
            torch.manual_seed(7)
            losses = svi.evaluate_loss(*args, shared=True)
            for i, module in enumerate(modules):
                torch.manual_seed(7)
                same(losses[i], Trace_ELBO().loss(module.model, module.guide, *args), 1e-10)

    def test_state_loads_into_a_new_model(self):
        modules = build("curvatures")
        (x,) = data(modules)
        ensemble(modules).step(x, shared=True)
        fresh = wrapped(0.7)
        fresh.load_state_dict(modules[2].state_dict())
        assert torch.equal(fresh.reconstruct(x), modules[2].reconstruct(x))

    def test_can_be_set(self):
        """A state loaded into a member is what the ensemble goes on from."""
        modules = build("wrapped")
        args = data(modules)
        svi = ensemble(modules, randomness="same")
        svi.step(*args, shared=True)
        modules[1].load_state_dict(modules[0].state_dict())
        losses = svi.evaluate_loss(*args, shared=True)
        assert losses[0] == losses[1] != losses[2]

    @pytest.mark.filterwarnings("ignore:the loss of member 1 is not finite")
    @pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.5, "clip_value": 0.1}])
    def test_one_that_diverges_disturbs_no_other(self, clip):
        modules = build("wrapped")
        args = data(modules)
        healthy = together(ensemble(copy.deepcopy(modules), adam(**clip)), args, shared=True)
        rates = torch.full((3,), 0.01)  # the step is rescaled by 1
        svi = ensemble(modules, adam(**clip), learning_rates=rates)
        torch.manual_seed(1)
        losses = [svi.step(*args, shared=True)]
        with torch.no_grad():
            modules[1].encoder.loc.weight.fill_(torch.nan)
        losses += [svi.step(*args, shared=True) for _ in range(STEPS - 1)]
        actual = torch.stack(losses)
        assert torch.equal(actual[:, [0, 2]], healthy[:, [0, 2]])
        assert actual[1:, 1].isnan().all()

    def test_one_that_is_nan_from_the_start_is_reported(self):
        modules = build("wrapped")
        with torch.no_grad():
            modules[2].encoder.loc.weight.fill_(torch.nan)
        svi = ensemble(modules)
        with (
            pyro.validation_enabled(False),
            pytest.warns(UserWarning, match="the loss of member 2 is not finite since step 1$") as record,
        ):
            losses = svi.step(*data(modules), shared=True)
        assert record[0].filename == __file__
        assert losses.isfinite().tolist() == [True, True, False]

    def test_minibatches(self):
        modules = build("wrapped")
        svi = ensemble(modules, pyro.optim.Adam({"lr": 0.01}))
        x = torch.rand(20, 6).round()
        means = []
        for epoch in range(12):
            losses = [svi.step(batch) for batch in Minibatches(x, 6, members=3).epoch(epoch)]
            means.append(torch.stack(losses).sum(0))
        assert (means[-1] < means[0]).all()


class TestMarginalLikelihood:
    @pytest.mark.parametrize("name", ["curvatures", "riemannian", "euclidean"])
    def test_agrees_with_each_member(self, name):
        modules = build(name)
        (x,) = data(modules)
        svi = ensemble(modules)
        svi.step(x, shared=True)
        values, errors = svi.log_marginal_likelihood(x, num_samples=600, chunk=4000, standard_error=True)
        assert values.shape == errors.shape == (len(modules), 10)
        for i, module in enumerate(modules):
            own, error = log_marginal_likelihood(module.model, module.guide, x, num_samples=600, standard_error=True)
            assert ((values[i] - own).abs() < 6 * (errors[i].square() + error.square()).sqrt()).all()

    def test_data_of_their_own(self):
        modules = build("curvatures")
        x = torch.rand(len(modules), 4, 6)
        svi = ensemble(modules)
        svi.step(x)
        values, errors = svi.log_marginal_likelihood(x, num_samples=600, chunk=4000, shared=False, standard_error=True)
        assert values.shape == (len(modules), 4)
        for i, module in enumerate(modules):
            own, error = log_marginal_likelihood(module.model, module.guide, x[i], num_samples=600, standard_error=True)
            assert ((values[i] - own).abs() < 6 * (errors[i].square() + error.square()).sqrt()).all()

    def test_before_the_first_step(self):
        with pytest.raises(ValueError, match="after the first step"):
            ensemble(build("wrapped")).log_marginal_likelihood(torch.rand(3, 6))


class TestState:
    @pytest.mark.parametrize("started", [False, True], ids=["before the first step", "after a step"])
    def test_resumption_is_exact(self, started):
        modules = build("curvatures")
        args = data(modules)
        svi = ensemble(modules)
        for _ in range(3):
            svi.step(*args, shared=True)
        state, generator = svi.state_dict(), torch.get_rng_state()
        expected = torch.stack([svi.step(*args, shared=True) for _ in range(3)])

        others = build("curvatures")
        new = ensemble(others)
        if started:
            new.step(*args, shared=True)
        new.load_state_dict(state)
        torch.set_rng_state(generator)
        actual = torch.stack([new.step(*args, shared=True) for _ in range(3)])
        assert torch.equal(actual, expected)
        assert new.steps == 6
        for one, other in zip(modules, others, strict=True):
            assert torch.equal(one.encoder.loc.weight, other.encoder.loc.weight)

    def test_of_other_members(self):
        donor = ensemble(build("wrapped"))
        x = torch.rand(4, 6)
        with pytest.raises(ValueError, match="before the first step"):
            donor.state_dict()
        donor.step(x, shared=True)
        svi = ensemble(build("riemannian"))
        svi.load_state_dict(donor.state_dict())
        for _ in range(2):
            with pytest.raises(ValueError, match="ensemble of other members"):
                svi.step(x, shared=True)


class Tempered(HyperbolicVAE):
    """A number that is neither a parameter nor a buffer."""

    temperature = 1.0

    def encode(self, x: Tensor, **_: Any) -> Any:
        loc, scale = self.encoder(x)
        return self.latent.posterior(loc, self.temperature * scale)


class TestRefused:
    def test_other_shapes(self):
        modules = [wrapped(), HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=9)]
        with pytest.raises(ValueError, match="member 1 has other parameters or buffers"):
            ensemble(modules).step(torch.rand(3, 6), shared=True)

    @pytest.mark.parametrize("attribute", ["likelihood", "temperature"])
    def test_other_attributes(self, attribute):
        modules = [Tempered(PoincareBall(1.0), 2, 6, hidden_dim=8) for _ in range(3)]
        other = Tempered(PoincareBall(1.0), 2, 6, hidden_dim=8, likelihood="normal")
        other.temperature = 0.5
        setattr(modules[2], attribute, getattr(other, attribute))
        svi = ensemble(modules)
        for _ in range(2):  # trying again does not help
            with pytest.raises(ValueError, match=r"member 2 has loss .* neither a parameter nor a buffer"):
                svi.step(torch.rand(3, 6), shared=True)
        setattr(modules[2], attribute, getattr(modules[0], attribute))
        assert svi.step(torch.rand(3, 6), shared=True).isfinite().all()

    def test_shared_parameters(self):
        module = wrapped()
        with pytest.raises(ValueError, match="member 1 shares parameters"):
            ensemble([module, module]).step(torch.rand(3, 6), shared=True)

    def test_parameters_without_a_module(self):
        def model() -> None:
            pyro.sample("z", dist.Normal(0.0, 1.0))

        def guide() -> None:
            pyro.sample("z", dist.Normal(pyro.param("loc", torch.tensor(0.0)), 1.0))

        with pytest.raises(ValueError, match=r"parameters \['loc'\] in Pyro's store"):
            EnsembleSVI([(model, guide)], adam(), Trace_ELBO()).step(shared=True)

    def test_no_parameters(self):
        def program() -> None:
            pyro.sample("z", dist.Normal(0.0, 1.0))

        with pytest.raises(ValueError, match="no parameters"):
            EnsembleSVI([(program, program)], adam(), Trace_ELBO()).step(shared=True)

    def test_wrong_number_of_batches(self):
        svi = ensemble(build("wrapped"))
        for size in (2, 4):
            with pytest.raises((ValueError, IndexError)):
                svi.step(torch.rand(size, 5, 6))

    def test_arguments(self):
        with pytest.raises(ValueError, match="at least one pair"):
            EnsembleSVI([], adam(), Trace_ELBO())
        with pytest.raises(ValueError, match="randomness must be 'different' or 'same', got 'error'"):
            ensemble(build("wrapped"), randomness="error")
        with pytest.raises(ValueError, match=r"learning_rates must have shape \(3,\), got \(2,\)"):
            ensemble(build("wrapped"), learning_rates=torch.ones(2))


class TestValidation:
    def test_a_member_that_leaves_the_ball_is_named(self):
        vaes = [HyperbolicVAE(PoincareBall(1.0), 2, 5, hidden_dim=4, likelihood="normal") for _ in range(3)]
        svi = ensemble(vaes, validate_every=1)
        x = torch.randn(6, 5)
        svi.step(x, shared=True)
        with torch.no_grad():
            vaes[1].encoder.loc.bias.fill_(50.0)
        with pytest.warns(UserWarning, match=r"member 1, step 1: .*coordinates end at") as record:
            svi.step(x, shared=True)
        assert record[0].filename == __file__
        # The others are looked at as before, and this one is not reported again.
        with torch.no_grad():
            vaes[2].encoder.loc.bias.fill_(50.0)
        with pytest.warns(UserWarning, match=r"member 2, step 2: .*coordinates end at"):
            svi.step(x, shared=True)
        for _ in range(3):
            svi.step(x, shared=True)

    def test_validation_leaves_no_trace(self):
        losses = []
        for validate_every in (1, 1000):
            pyro.set_rng_seed(0)
            modules = build("wrapped")
            svi = ensemble(modules, validate_every=validate_every)
            torch.manual_seed(1)
            losses.append(torch.stack([svi.step(*data(modules), shared=True) for _ in range(4)]))
        assert torch.equal(*losses)

    def test_bad_interval(self):
        with pytest.raises(ValueError, match="validate_every must be a positive integer, got 0"):
            ensemble(build("wrapped"), validate_every=0)
