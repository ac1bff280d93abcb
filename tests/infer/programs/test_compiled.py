"""Compiled steps: those of programs that are traced, and what cannot be."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor, nn
from torch._inductor import compile_fx

from pyro_hyperbolic.infer import FastSVI
from tests.helpers import same
from tests.infer.nets import STEPS, Net, adam, losses, trainer

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """That of torch; in its place, what has been traced runs as it is."""
    original = compile_fx.compile_fx
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, *_, **__: graph)
    return original


def guide(x: Tensor) -> None:
    pyro.sample("a", dist.Normal(pyro.param("loc", torch.zeros(1)), 1.0).to_event(1))


def test_branch_is_reported_by_the_first_step(x):
    def model(x: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(a[0], 1.0 if a > 0 else 2.0), obs=x[0, 0])

    svi = FastSVI(model, guide, adam(), Trace_ELBO(), compile=True)
    with pytest.raises(ValueError, match=r"cannot be compiled: .*data-dependent.*site 'a'.*use compile=False"):
        svi.step(x)


def test_distribution_made_outside_with_validation(x):
    prior = dist.Normal(0.0, 1.0, validate_args=True).expand([1]).to_event(1)

    def model(x: Tensor) -> None:
        a = pyro.sample("a", prior)
        pyro.sample("x", dist.Normal(a[0], 1.0), obs=x[0, 0])

    runs = []
    for compile in (False, True):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        runs.append(losses(FastSVI(model, guide, adam(), Trace_ELBO(), compile=compile), x))
    same(runs[1], runs[0], 1e-12)
    assert prior.base_dist._validate_args


def test_parameter_in_a_subsampled_plate(x):
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


def test_training_mode_is_part_of_a_compiled_step(x):
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


def test_compiler_that_fails(x, compiler, monkeypatch):
    def codegen(self: Any) -> Any:
        raise RuntimeError("PassManager::run failed")

    expected = losses(trainer(FastSVI, Net()), x)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compiler)
    monkeypatch.setattr("torch._inductor.graph.GraphLowering.codegen", codegen)
    svi = trainer(FastSVI, Net(), compile=True)
    with (
        torch._inductor.config.patch(force_disable_caches=True),
        pytest.warns(RuntimeWarning, match="PassManager::run failed.* run uncompiled") as caught,
    ):
        actual = losses(svi, x)
    assert len([w for w in caught if w.category is RuntimeWarning]) == 1
    same(actual, expected, 1e-9)
