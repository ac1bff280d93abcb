"""What FastSVI refuses."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import JitTrace_ELBO, RenyiELBO, Trace_ELBO, TraceGraph_ELBO
from torch.distributions import constraints

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import FastSVI
from pyro_hyperbolic.models import HyperbolicVAE
from tests.accelerate.nets import Net, adam, trainer

pytestmark = pytest.mark.usefixtures("double")


def fast(model: Any, guide: Any, loss: Any = None, **options: Any) -> FastSVI:
    return FastSVI(model, guide, adam(), Trace_ELBO() if loss is None else loss, **options)


def test_no_parameters():
    def program() -> None:
        pyro.sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="no parameters"):
        fast(program, program).step()


@pytest.mark.parametrize("loss", [Trace_ELBO, lambda: RenyiELBO(num_particles=2)])
def test_site_that_needs_a_score_function(loss):
    def model() -> None:
        pyro.sample("coin", dist.Bernoulli(torch.full((2,), 0.5)).to_event(1))

    def guide() -> None:
        p = pyro.param("p", torch.full((2,), 0.5), constraint=constraints.unit_interval)
        pyro.sample("coin", dist.Bernoulli(p).to_event(1))

    with pytest.raises(ValueError, match=r"site 'coin' is drawn from Bernoulli, which is not reparametrised"):
        fast(model, guide, loss()).step()


@pytest.mark.filterwarnings("ignore:(?s).*need to use TraceEnum_ELBO instead")
def test_enumerated_site():
    def model() -> None:
        pyro.sample("coin", dist.Bernoulli(0.5))

    def guide() -> None:
        p = pyro.param("p", torch.tensor(0.5), constraint=constraints.unit_interval)
        pyro.sample("coin", dist.Bernoulli(p), infer={"enumerate": "parallel"})

    with pytest.raises(ValueError, match=r"site 'coin' is enumerated.*TraceEnum_ELBO"):
        fast(model, guide).step()


def test_other_losses():
    with pytest.raises(ValueError, match="got TraceGraph_ELBO"):
        fast(None, None, TraceGraph_ELBO())
    with pytest.raises(ValueError, match=r"got JitTrace_ELBO; use Trace_ELBO .*compile=True"):
        fast(None, None, JitTrace_ELBO())
    with pytest.raises(ValueError, match="loss must be an ELBO or a function"):
        fast(None, None, "elbo")
    with pytest.raises(ValueError, match=r"got the class Trace_ELBO; pass loss=Trace_ELBO\(\)"):
        fast(None, None, Trace_ELBO)


@pytest.mark.parametrize(
    ("optim", "message"),
    [
        ("adam", "optim must be a PyroOptim or a function of the parameters, got 'adam'"),
        (torch.optim.Adam([torch.zeros(1)]), r"(?s)got Adam .*; pass lambda parameters: torch\.optim\.Adam"),
        (pyro.optim.Adam, r"optim must be called with its options, got Adam; pass Adam\(\{...\}\)"),
        (lambda parameters: None, "optim must return a torch optimiser, got NoneType"),
    ],
)
def test_optimiser(x, optim, message):
    with pytest.raises(ValueError, match=message):
        trainer(FastSVI, Net(), optim).step(x)


@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, True, "x"])
def test_validate_every(value):
    with pytest.raises(ValueError, match=f"validate_every must be a positive integer, got {value!r}"):
        fast(None, None, validate_every=value)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (None, "model must be a function or a module, got None"),
        (HyperbolicVAE, "got the class HyperbolicVAE; pass an object"),
        (HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=4), r"with a forward method, .* such as vae\.model"),
    ],
)
def test_programs(program, message):
    with pytest.raises(ValueError, match=message):
        fast(program, lambda: None)


def test_capture_on_a_cpu(x):
    svi = trainer(FastSVI, Net(), capture=True)
    for _ in range(2):  # trying again does not help
        with pytest.raises(ValueError, match="capture=True needs parameters on a CUDA device, they are on cpu"):
            svi.step(x)


def test_parameter_that_appears_while_compiling():
    """It would never be trained."""
    calls = 0

    def model() -> None:
        pyro.sample("z", dist.Normal(0.0, 1.0))

    def guide() -> None:
        nonlocal calls
        calls += 1
        late = pyro.param("late", torch.tensor(0.0)) if calls > 1 else 0.0
        pyro.sample("z", dist.Normal(pyro.param("loc", torch.tensor(0.0)) + late, 1.0))

    with pytest.raises(ValueError, match="parameter 'late' was not there when the programs first ran"):
        fast(model, guide, compile=True).step()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Trace_ELBO().loss, "loss must return a tensor, got float.*loss=Trace_ELBO"),
        (lambda *args: torch.zeros(2, requires_grad=True), r"must return one number, got shape \(2,\)"),
        (lambda *args: Trace_ELBO().differentiable_loss(*args).detach(), "without gradients.*do not detach"),
    ],
)
def test_function_that_is_no_loss(x, loss, message):
    net = Net()
    with pytest.raises(ValueError, match=message):
        fast(net.model, net.guide, loss).step(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_and_grads": lambda *args: 0.0}, "loss_and_grads must be None"),
        ({"num_samples": 5}, "num_samples and num_steps must be 0, got 5.*Predictive"),
        ({"compile": 1}, "compile must be False, True or 'tuned', got 1"),
    ],
)
def test_deprecated_options(options, message):
    with pytest.raises(ValueError, match=message):
        fast(None, None, **options)
