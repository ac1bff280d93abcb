"""The members of EnsembleSVI while they are trained: their parameters, evaluations and checkpoints."""

from __future__ import annotations

import copy

import pyro
import pyro.optim
import pytest
import torch
from pyro.infer import Trace_ELBO

from pyro_hyperbolic.infer import EnsembleSVI, Minibatches, load_checkpoint, log_marginal_likelihood, save_checkpoint
from tests.accelerate.trainers.ensembles import STEPS, adam, build, data, ensemble, together, wrapped
from tests.helpers import same

pytestmark = pytest.mark.usefixtures("double")


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
        modules = build("euclidean")
        args = data(modules)
        svi = ensemble(modules, randomness="same")
        svi.step(*args, shared=True)
        modules[1].load_state_dict(modules[0].state_dict())
        losses = svi.evaluate_loss(*args, shared=True)
        assert losses[0] == losses[1] != losses[2]

    @pytest.mark.filterwarnings("ignore:the loss of member 1 is not finite")
    @pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.5, "clip_value": 0.1}])
    def test_one_that_diverges_disturbs_no_other(self, clip):
        modules = build("euclidean")
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
        modules = build("euclidean")
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
        modules = build("euclidean")
        svi = ensemble(modules, pyro.optim.Adam({"lr": 0.03}))
        x = torch.rand(20, 6).round()
        means = []
        for epoch in range(6):
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
            ensemble(build("euclidean")).log_marginal_likelihood(torch.rand(3, 6))


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

    def test_of_a_schedule_goes_through_a_file(self, tmp_path):
        def scheduled() -> pyro.optim.PyroOptim:
            return pyro.optim.ExponentialLR(
                {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.01}, "gamma": 0.5}, {"clip_norm": 5.0}
            )

        def epoch(svi: EnsembleSVI) -> torch.Tensor:
            losses = svi.run([args] * 3, shared=True)
            svi.optim.step()
            return losses

        modules = build("curvatures")
        args = data(modules)
        svi = ensemble(modules, scheduled())
        epoch(svi)
        save_checkpoint(svi.state_dict(), tmp_path / "state.pt")
        expected = epoch(svi)
        new = ensemble(build("curvatures"), scheduled())
        new.load_state_dict(load_checkpoint(tmp_path / "state.pt"))
        assert torch.equal(epoch(new), expected)

    def test_of_other_members(self):
        donor = ensemble(build("euclidean"))
        x = torch.rand(4, 6)
        with pytest.raises(ValueError, match="before the first step"):
            donor.state_dict()
        donor.step(x, shared=True)
        svi = ensemble(build("riemannian"))
        svi.load_state_dict(donor.state_dict())
        for _ in range(2):
            with pytest.raises(ValueError, match="ensemble of other members"):
                svi.step(x, shared=True)
