"""What EnsembleSVI refuses, and what its validation finds."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import EnsembleSVI
from pyro_hyperbolic.models import HyperbolicVAE
from tests.infer.trainers.ensembles import adam, build, data, ensemble, wrapped

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
        with pytest.raises(ValueError, match="validate_every must be a positive integer or None, got 0"):
            ensemble(build("wrapped"), validate_every=0)
