"""Captured steps on a CUDA device; run by ``make test-gpu``."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import SVI, RenyiELBO, Trace_ELBO
from torch import Tensor

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.infer import DReG_ELBO, EnsembleSVI, FastSVI, log_marginal_likelihood
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE, HyperbolicVGAE

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-4  # float32 sums in another order, over the steps of one run
STEPS = 12


def vae(distribution: str = "wrapped", chart: Any = PoincareBall, c: float = 1.0) -> HyperbolicVAE:
    pyro.set_rng_seed(1)
    return HyperbolicVAE(chart(c), 3, 5, hidden_dim=20, prior=distribution, posterior=distribution).cuda()


def batches(size: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(STEPS, size, 5, generator=generator).cuda()


def adam() -> Any:
    return pyro.optim.Adam({"lr": 1e-2})


def losses(svi: Any, data: Any) -> Tensor:
    torch.manual_seed(3)
    return torch.tensor([float(svi.step(x)) for x in data])


def trained(trainer: Any, model: HyperbolicVAE, loss: Any, data: Any, optim: Any = None) -> Tensor:
    pyro.clear_param_store()
    return losses(trainer(model.model, model.guide, optim or adam(), loss), data)


@pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
@pytest.mark.parametrize("distribution", ["wrapped", "riemannian"])
@pytest.mark.parametrize(
    "loss",
    [
        Trace_ELBO,
        lambda: RenyiELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1),
        lambda: DReG_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1),
    ],
)
def test_captured_steps_equal_those_of_svi(chart: Any, distribution: str, loss: Any) -> None:
    one, other = vae(distribution, chart), vae(distribution, chart)
    torch.testing.assert_close(
        trained(FastSVI, one, loss(), batches()), trained(SVI, other, loss(), batches()), rtol=TOLERANCE, atol=0
    )
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def normal_vae() -> HyperbolicVAE:
    """Its likelihood has a plain number as a parameter."""
    pyro.set_rng_seed(1)
    return HyperbolicVAE(PoincareBall(1.0), 2, 5, hidden_dim=20, likelihood="normal").cuda()


@pytest.mark.parametrize("compile", [False, True])
def test_numbers_among_the_parameters_are_captured(compile: bool) -> None:
    stock = trained(SVI, normal_vae(), Trace_ELBO(), batches())
    # Compiled code would draw noise of its own.
    with torch._inductor.config.patch(fallback_random=True):
        fast = trained(partial(FastSVI, compile=compile), normal_vae(), Trace_ELBO(), batches())
    torch.testing.assert_close(fast, stock, rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("build", [normal_vae, lambda: EuclideanVAE(2, 5, hidden_dim=20).cuda()])
def test_captured_ensembles_learn(build: Any) -> None:
    members = [build() for _ in range(3)]
    svi = EnsembleSVI([(m.model, m.guide) for m in members], adam(), Trace_ELBO())
    data = batches()[0].expand(3, -1, -1)
    first = svi.evaluate_loss(data)
    for _ in range(50):
        svi.step(data)
    assert (svi.evaluate_loss(data) < first).all()


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
def test_ensemble_is_resumed(chart: Any, compile: bool) -> None:
    def ensemble() -> EnsembleSVI:
        members = [vae("riemannian", chart, c) for c in (0.7, 1.4)]
        return EnsembleSVI([(m.model, m.guide) for m in members], adam(), Trace_ELBO(), compile=compile)

    data = batches().unsqueeze(1).expand(-1, 2, -1, -1)
    whole, first, second = ensemble(), ensemble(), ensemble()
    with torch._inductor.config.patch(fallback_random=True):
        torch.manual_seed(3)
        expected = torch.stack([whole.step(x) for x in data])
        torch.manual_seed(3)
        begun = [first.step(x) for x in data[:5]]
        second.load_state_dict(first.state_dict())
        resumed = torch.stack(begun + [second.step(x) for x in data[5:]])
    torch.testing.assert_close(resumed, expected, rtol=TOLERANCE, atol=0)


def test_captured_ensemble_of_graphs() -> None:
    edges = [torch.tensor([[0, 1], [1, 2], [2, 3]]), torch.tensor([[0, 2], [1, 3], [0, 3]])]
    members = [HyperbolicVGAE(PoincareBall(1.0), 4, e, latent_dim=2).cuda() for e in edges]
    alone = [copy.deepcopy(m) for m in members]
    svi = EnsembleSVI([(m.model, m.guide) for m in members], adam(), Trace_ELBO(), randomness="same")
    torch.manual_seed(3)
    together = torch.stack([svi.step() for _ in range(STEPS)])
    for i, member in enumerate(alone):
        own = FastSVI(member.model, member.guide, adam(), Trace_ELBO())
        torch.manual_seed(3)
        separate = torch.stack([own.step() for _ in range(STEPS)])
        torch.testing.assert_close(together[:, i], separate, rtol=TOLERANCE, atol=TOLERANCE)


def test_another_shape_is_captured_anew() -> None:
    data = [x for pair in zip(batches(16), batches(9), strict=True) for x in pair]
    one, other = vae(), vae()
    torch.testing.assert_close(
        trained(FastSVI, one, Trace_ELBO(), data), trained(SVI, other, Trace_ELBO(), data), rtol=TOLERANCE, atol=0
    )


def test_an_old_graph_may_become_garbage_while_another_is_captured() -> None:
    old = torch.cuda.CUDAGraph()
    with torch.cuda.graph(old):
        torch.zeros(3, device="cuda")
    graphs = [old]
    del old
    programs = vae()

    def model(x: Tensor) -> None:
        if graphs and torch.cuda.is_current_stream_capturing():
            cycle: list[Any] = [graphs.pop()]
            cycle.append(cycle)
            del cycle
            [[] for _ in range(100_000)]  # enough to call the collector
        programs.model(x)

    svi = FastSVI(model, programs.guide, adam(), Trace_ELBO())
    assert losses(svi, batches()).isfinite().all()
    assert not graphs  # otherwise nothing was captured


def test_schedule_reaches_the_captured_graph() -> None:
    def run(trainer: Any) -> Tensor:
        pyro.clear_param_store()
        model = vae()
        options = {"optimizer": torch.optim.Adam, "optim_args": {"lr": 1e-2}, "gamma": 0.5}
        schedule = pyro.optim.ExponentialLR(options)
        svi = trainer(model.model, model.guide, schedule, Trace_ELBO())
        torch.manual_seed(3)
        out = []
        for x in batches():
            out.append(float(svi.step(x)))
            schedule.step()
        return torch.tensor(out)

    torch.testing.assert_close(run(FastSVI), run(SVI), rtol=TOLERANCE, atol=0)


def test_resumed_run_goes_on_as_it_would_have() -> None:
    data = batches()
    straight = vae()
    expected = trained(FastSVI, straight, Trace_ELBO(), data)
    pyro.clear_param_store()
    first = vae()
    svi = FastSVI(first.model, first.guide, adam(), Trace_ELBO())
    half = losses(svi, data[: STEPS // 2])
    state, rng = svi.state_dict(), torch.cuda.get_rng_state()
    pyro.clear_param_store()
    second = vae()
    svi = FastSVI(second.model, second.guide, adam(), Trace_ELBO())
    svi.load_state_dict(state)
    torch.cuda.set_rng_state(rng)
    rest = torch.tensor([float(svi.step(x)) for x in data[STEPS // 2 :]])
    torch.testing.assert_close(torch.cat([half, rest]), expected, rtol=TOLERANCE, atol=0)


def test_captured_ensemble_equals_separate_runs() -> None:
    members = [vae(c=c) for c in (0.1, 0.7, 1.4)]
    alone = [copy.deepcopy(member) for member in members]
    svi = EnsembleSVI([(m.model, m.guide) for m in members], adam(), Trace_ELBO(), randomness="same")
    torch.manual_seed(3)
    together = torch.stack([svi.step(x, shared=True) for x in batches()]).cpu()
    for i, member in enumerate(alone):
        separate = trained(FastSVI, member, Trace_ELBO(), batches())
        torch.testing.assert_close(together[:, i], separate, rtol=TOLERANCE, atol=0)


def test_evaluation_of_an_ensemble_agrees_with_its_members() -> None:
    members = [vae(c=c) for c in (0.1, 1.4)]
    svi = EnsembleSVI([(m.model, m.guide) for m in members], adam(), Trace_ELBO())
    x = batches()[0]
    svi.step(x, shared=True)
    estimates, errors = svi.log_marginal_likelihood(x, num_samples=4000, standard_error=True)
    for i, member in enumerate(members):
        own, own_errors = log_marginal_likelihood(member.model, member.guide, x, num_samples=4000, standard_error=True)
        spread = (errors[i].square() + own_errors.square()).sqrt()
        assert bool(((estimates[i] - own).abs() < 6 * spread + 1e-3).all())


def test_a_compiled_estimate_of_data_that_are_no_multiple_of_a_chunk() -> None:
    net, x = vae(), batches(11)[0]
    (plain, error), (compiled, other) = (
        log_marginal_likelihood(net.model, net.guide, x, num_samples=3000, standard_error=True, **options)
        for options in ({}, {"compile": True, "chunk": 4 * 3000})
    )
    assert bool(((plain - compiled).abs() < 6 * (error.square() + other.square()).sqrt() + 1e-3).all())
