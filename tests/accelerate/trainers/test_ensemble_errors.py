"""What EnsembleSVI refuses, and what its validation finds."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.infer import EnsembleSVI, Minibatches
from pyro_hyperbolic.models import HyperbolicVAE
from pyro_hyperbolic.nn import exp0
from tests.accelerate.trainers.ensembles import adam, build, data, ensemble, wrapped

pytestmark = pytest.mark.usefixtures("double")


class Tempered(HyperbolicVAE):
    """A number that is neither a parameter nor a buffer."""

    temperature = 1.0

    def encode(self, x: Tensor, **_: Any) -> Any:
        loc, scale = self.encoder(x)
        return self.latent.posterior(loc, self.temperature * scale)


class TestRefused:
    def test_other_shapes(self):
        modules = [wrapped(), HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=9)]
        with pytest.raises(ValueError, match=r"member 1 has other parameters or .*, 'HyperbolicVAE\.\S+' for one"):
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

    @pytest.mark.parametrize("started", [False, True])
    @pytest.mark.parametrize("size", [1, 2, 4])
    def test_wrong_number_of_batches(self, size, started):
        svi, x = ensemble(build("euclidean")), torch.rand(size, 5, 6)
        if started:
            svi.step(torch.rand(5, 6), shared=True)
        evaluations = [svi.step, svi.evaluate_loss]
        if started:
            evaluations.append(lambda x: svi.log_marginal_likelihood(x, shared=False, num_samples=2))
        for evaluate in evaluations:
            with pytest.raises(ValueError, match=rf"of the 3 members, got shape \({size}, 5, 6\); use shared=True"):
                evaluate(x)
        assert svi.step(torch.rand(3, 5, 6)).isfinite().all()

    def test_batches_of_all_members(self):
        """An epoch of ``Minibatches`` without members."""
        with pytest.raises(ValueError, match=r"got shape \(5, 6\); use shared=True .* or Minibatches with members=3"):
            ensemble(build("euclidean")).run(Minibatches(torch.rand(10, 6), 5).epoch(1))

    @pytest.mark.parametrize(
        ("x", "options", "message"),
        [
            (torch.rand(4, 6), {"chunk": 0}, "chunk must be a positive integer, got 0"),
            (torch.rand(3), {"shared": False}, r"must have the shape \(members, data, ...\), got \(3,\)"),
        ],
    )
    def test_estimates(self, x, options, message):
        svi = ensemble(build("euclidean"))
        svi.step(torch.rand(4, 6), shared=True)
        with pytest.raises(ValueError, match=message):
            svi.log_marginal_likelihood(x, num_samples=2, **options)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"randomness": "error"}, "randomness must be 'different' or 'same', got 'error'"),
            ({"learning_rates": torch.ones(2)}, r"learning_rates must have shape \(3,\), one per member, got \(2,\)"),
            ({"learning_rates": [0.1, 0.2]}, r"learning_rates must have shape \(3,\), one per member, got \(2,\)"),
            ({"learning_rates": 0.1}, r"learning_rates must have shape \(3,\), one per member, got \(\)"),
            ({"learning_rates": "abc"}, "learning_rates must be 3 numbers, one per member, got 'abc'"),
            ({"learning_rates": [0.1, -0.2, 0.3]}, "must be finite and not negative, got -0.2 for member 1"),
            ({"learning_rates": torch.tensor([0.1, 0.2, torch.nan])}, "not negative, got nan for member 2"),
            ({"loss": Trace_ELBO}, r"got the class Trace_ELBO; pass loss=Trace_ELBO\(\)"),
            ({"validate_every": "x"}, "validate_every must be a positive integer, got 'x'"),
            ({"compile": "fast"}, "compile must be False, True or 'tuned', got 'fast'"),
        ],
        ids=str,
    )
    def test_arguments(self, options, message):
        with pytest.raises(ValueError, match=message):
            ensemble(build("euclidean"), **options)

    @pytest.mark.parametrize(
        ("members", "message"),
        [
            (lambda m: [], "members must hold at least one pair"),
            (lambda m: None, r"members must be a list of pairs \(model, guide\), got NoneType"),
            (
                lambda m: [m.model, m.guide],
                r"member 0 must be a pair .* got method; of one pair pass \[\(model, guide\)\]",
            ),
            (lambda m: [(m.model, m.guide), m], "member 1 must be a pair .* got HyperbolicVAE"),
            (lambda m: [(m.model, m.guide, 1)], "member 0 must be a pair .* got 3 of them"),
            (lambda m: ["ab"], "member 0 must be a pair .* got str"),
            (lambda m: [(m.model, None)], "guide of member 0 must be a function or a module, got None"),
            (lambda m: [(m, m)], r"model of member 0 must .* forward method, .* such as vae\.model"),
        ],
    )
    def test_members(self, members, message):
        with pytest.raises(ValueError, match=message):
            EnsembleSVI(members(wrapped()), adam(), Trace_ELBO())

    def test_a_step_that_is_captured_needs_a_cuda_device(self):
        with pytest.raises(ValueError, match="capture=True needs parameters on a CUDA device, they are on cpu"):
            ensemble(build("euclidean"), capture=True).step(torch.rand(3, 6), shared=True)


class Aside(PyroModule):
    """A PyroModule that is not called: Pyro does not see what its methods read."""

    def __init__(self, scale: float, is_registered: bool = False) -> None:
        super().__init__()
        self.scale = PyroParam(torch.tensor(scale), constraints.positive)
        self.layer = nn.Linear(2, 2)
        self.is_registered = is_registered

    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    def guide(self, x: Tensor) -> None:
        if self.is_registered:
            pyro.module("aside", self)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(self.layer(x), self.scale).to_event(1))


class HalfAside(Aside):
    """Pyro sees a part of it."""

    def guide(self, x: Tensor) -> None:
        pyro.module("layer", self.layer)
        super().guide(x)


class TestPyroModulesThatAreNotCalled:
    remedy = r"'scale_unconstrained' is a parameter of a module that Pyro is not told of .*pyro\.module\('name', self\)"

    @pytest.mark.parametrize(("kind", "trouble"), [(Aside, "no parameters; "), (HalfAside, "member 1 has loss .*")])
    def test_are_named(self, kind, trouble):
        members = [kind(scale) for scale in (0.5, 2.0)]
        svi = EnsembleSVI([(m.model, m.guide) for m in members], adam(), Trace_ELBO())
        with pytest.raises(ValueError, match=trouble + self.remedy):
            svi.step(torch.rand(3, 2), shared=True)

    def test_the_remedy_helps(self):
        members = [Aside(scale, is_registered=True) for scale in (0.5, 2.0)]
        svi = EnsembleSVI([(m.model, m.guide) for m in members], adam(), Trace_ELBO())
        svi.step(torch.rand(3, 2), shared=True)
        assert members[0].scale != 0.5
        assert members[1].scale != 2.0


class Unbounded(HyperbolicVAE):
    """An encoder that does not stay within the reach of its dtype."""

    def encode(self, x, **_):
        loc, scale = self.encoder(x)
        return WrappedNormal(exp0(self.manifold, loc), scale, self.manifold)


class TestValidation:
    def test_a_member_that_leaves_the_ball_is_named(self):
        vaes = [Unbounded(PoincareBall(1.0), 2, 5, hidden_dim=4, likelihood="normal") for _ in range(3)]
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
            modules = build("euclidean")
            svi = ensemble(modules, validate_every=validate_every)
            torch.manual_seed(1)
            losses.append(torch.stack([svi.step(*data(modules), shared=True) for _ in range(4)]))
        assert torch.equal(*losses)

    def test_the_warnings_of_a_run_point_at_it(self):
        vaes = [Unbounded(PoincareBall(1.0), 2, 5, hidden_dim=4, likelihood="normal") for _ in range(2)]
        svi, x = ensemble(vaes, validate_every=1), torch.randn(6, 5)
        svi.step(x, shared=True)
        with torch.no_grad():
            vaes[1].encoder.loc.bias.fill_(50.0)
        with pytest.warns(UserWarning, match=r"member 1, step 1: .*coordinates end at") as record:
            svi.run([x], shared=True)
        assert record[0].filename == __file__
