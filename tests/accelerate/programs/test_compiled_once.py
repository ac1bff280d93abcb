"""What is compiled, how often, and what it keeps."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import weakref
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch._inductor.async_compile import AsyncCompile

from pyro_hyperbolic.accelerate.bounds import marginal
from pyro_hyperbolic.accelerate.programs import compiled
from pyro_hyperbolic.infer import EnsembleSVI, FastSVI, log_marginal_likelihood
from tests.helpers import same


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are compiled; they run as they are, with the random numbers of uncompiled ones."""
    graphs: list[Any] = []

    def compile(graph: Any, *_: Any, **__: Any) -> Any:
        graphs.append(graph)
        return graph

    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", compile)
    monkeypatch.setattr(compiled, "_KNOWN", type(compiled._KNOWN)())
    return graphs


class Programs(nn.Module):
    """A factor model of five dimensions, with the scale of its noise as a buffer and a factor that is a number."""

    def __init__(self, noise: float = 0.5) -> None:
        super().__init__()
        self.factor = 1.5
        self.register_buffer("noise", torch.tensor(noise))
        self.decoder, self.encoder = nn.Linear(2, 5), nn.Linear(5, 2)

    def model(self, x: Tensor) -> None:
        pyro.module("programs", self)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(self.factor * self.decoder(z), self.noise).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("programs", self)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(self.encoder(x), 1.0).to_event(1))


def estimate(programs: Programs, x: Tensor, num_samples: int = 6) -> Tensor:
    """By a compiled program, which must be that of an uncompiled one."""
    found = []
    for compile in (True, False):
        pyro.set_rng_seed(1)
        found.append(
            log_marginal_likelihood(programs.model, programs.guide, x, num_samples=num_samples, compile=compile)
        )
    same(found[0], found[1], 1e-5)
    return found[0]


def test_an_estimate_is_compiled_once(compilations: list[Any]) -> None:
    x, programs = torch.randn(4, 5), Programs()
    first = estimate(programs, x)
    assert len(compilations) == 1
    with torch.no_grad():
        for parameter in programs.parameters():
            parameter.mul_(1.5)
    # The parameters are the present ones, and so are the data.
    assert not torch.allclose(estimate(programs, x), first)
    estimate(programs, x + 1)
    # So are those of another model of the same form, and its buffers.
    estimate(Programs(noise=0.3), x)
    assert len(compilations) == 1


def test_another_program_is_compiled_anew(compilations: list[Any]) -> None:
    x, programs = torch.randn(4, 5), Programs()
    estimate(programs, x)
    estimate(programs, x[:3])
    estimate(programs, x, num_samples=5)
    programs.factor = 2.0
    estimate(programs, x)
    assert len(compilations) == 4


@pytest.fixture
def read(compilations: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A note for every time that an estimate reads its programs to compile them."""
    notes: list[Any] = []

    def compile(*args: Any, **options: Any) -> Any:
        notes.append(args)
        return compiled.compile_function(*args, **options)

    monkeypatch.setattr(marginal, "compile_function", compile)
    return notes


def replace_layer(programs: Programs) -> None:
    programs.decoder = nn.Linear(2, 5)


def replace_buffer(programs: Programs) -> None:
    programs.noise = torch.tensor(0.3)


def replace_parameter(programs: Programs) -> None:
    programs.encoder.bias = nn.Parameter(torch.ones(2))


CHANGES = {
    "layer": replace_layer,
    "buffer": replace_buffer,
    "parameter": replace_parameter,
    "number": lambda programs: setattr(programs, "factor", 0.5),
    "mode": lambda programs: programs.eval(),
    "precision": lambda programs: programs.double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_programs_of_modules_are_read_again_where_they_changed(read: list[Any], change: str) -> None:
    x, programs = torch.randn(4, 5), Programs()
    first = estimate(programs, x)
    assert len(read) == 1
    with torch.no_grad():
        programs.decoder.bias.add_(1.0)
    assert not torch.allclose(estimate(programs, x), first)
    estimate(programs, x + 1)
    assert len(read) == 1
    CHANGES[change](programs)
    x = x.to(programs.noise.dtype)
    estimate(programs, x)
    estimate(programs, x)
    assert len(read) == 2


def test_functions_are_read_again_where_a_variable_changed(read: list[Any]) -> None:
    x, programs, levels = torch.randn(4, 5), Programs(), [0.0]

    def model(x: Tensor) -> None:
        programs.model(x - levels[0])

    found = []
    for level in (0.0, 0.0, 2.0, 2.0):
        levels[0] = level
        pyro.set_rng_seed(1)
        found.append(log_marginal_likelihood(model, programs.guide, x, num_samples=6, compile=True))
        pyro.set_rng_seed(1)
        same(found[-1], log_marginal_likelihood(model, programs.guide, x, num_samples=6), 1e-5)
    assert not torch.allclose(found[0], found[2])
    assert len(read) == 2


def test_what_an_automatic_guide_writes_is_no_change(read: list[Any]) -> None:
    def model(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    x, guide = torch.randn(4), AutoNormal(model)
    guide(x)
    for _ in range(3):
        log_marginal_likelihood(model, guide, x, num_samples=6, compile=True)
    assert len(read) == 1


def test_a_repeated_estimate_runs_no_program(read: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless Pyro is to validate: then one sample, uncompiled."""
    runs: list[int] = []
    original = marginal.log_weights

    def log_weights(*args: Any) -> Tensor:
        runs.append(args[-1])
        return original(*args)

    monkeypatch.setattr(marginal, "log_weights", log_weights)
    x, programs = torch.randn(9, 5), Programs()
    for validated, expected in ((False, [1, 1, 6]), (False, []), (True, [1]), (False, [])):
        runs.clear()
        with pyro.validation_enabled(validated), torch.no_grad():
            programs.decoder.bias.add_(1.0)
            log_marginal_likelihood(programs.model, programs.guide, x, num_samples=6, chunk=18, compile=True)
        assert runs == expected
    # Of another number of data, and after another model has taken the names of the parameters in Pyro's store.
    with pyro.validation_enabled(False):
        for count, expected in ((5, []), (7, [])):
            runs.clear()
            log_marginal_likelihood(programs.model, programs.guide, x[:count], num_samples=6, chunk=18, compile=True)
            assert runs == expected
    pyro.clear_param_store()
    Programs().model(x)
    estimate(programs, x)
    assert len(read) == 2


def test_data_that_are_no_multiple_of_a_chunk(compilations: list[Any]) -> None:
    """The last part begins within the one before, and the last samples are the first of as many as always."""
    x, programs = torch.randn(7, 5), Programs()
    pyro.set_rng_seed(1)
    found = log_marginal_likelihood(programs.model, programs.guide, x, num_samples=6, chunk=18, compile=True)
    pyro.set_rng_seed(1)
    parts = [log_marginal_likelihood(programs.model, programs.guide, x[i : i + 3], num_samples=6) for i in (0, 3, 4)]
    same(found, torch.cat([*parts[:2], parts[2][-1:]]), 1e-6)
    assert len(compilations) == 1
    pyro.set_rng_seed(1)
    found = log_marginal_likelihood(programs.model, programs.guide, x[:1], num_samples=7, chunk=5, compile=True)
    pyro.set_rng_seed(1)
    weights = [marginal.log_weights(programs.model, programs.guide, (x[:1],), {}, 4) for _ in range(2)]
    same(found, torch.cat(weights)[:7].double().logsumexp(0) - math.log(7), 1e-6)
    assert len(compilations) == 2


def test_an_ensemble_keeps_what_is_compiled(read: list[Any]) -> None:
    x, members = torch.randn(4, 5), [Programs(), Programs()]
    svi = EnsembleSVI([(m.model, m.guide) for m in members], pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    svi.step(x, shared=True)
    for shift in (0.0, 1.0, 1.0):
        with torch.no_grad():
            members[0].decoder.bias.add_(shift)
        found = []
        for compile in (True, False):
            pyro.set_rng_seed(1)
            found.append(svi.log_marginal_likelihood(x, num_samples=6, compile=compile))
        same(*found, 1e-5)
    assert len(read) == 1
    members[0].factor = members[1].factor = 0.5
    pyro.set_rng_seed(1)
    changed = svi.log_marginal_likelihood(x, num_samples=6, compile=True)
    pyro.set_rng_seed(1)
    same(changed, svi.log_marginal_likelihood(x, num_samples=6), 1e-5)
    assert len(read) == 2


def test_trainers_of_one_form_share_what_is_compiled(compilations: list[Any]) -> None:
    x = torch.randn(4, 5)
    for noise in (1.0, 0.5):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        programs = Programs(noise=noise)
        svi = FastSVI(programs.model, programs.guide, pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO(), compile=True)
        before = {name: p.detach().clone() for name, p in programs.named_parameters()}
        for _ in range(3):
            svi.step(x)
        assert all((p != before[name]).any() for name, p in programs.named_parameters())
    assert len(compilations) == 1


def test_what_is_compiled_keeps_no_programs(compilations: list[Any]) -> None:
    programs = Programs()
    estimate(programs, torch.randn(4, 5))
    gone = weakref.ref(programs), weakref.ref(next(programs.parameters()))
    del programs
    pyro.clear_param_store()
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert len(compiled._KNOWN) == 1


def test_no_more_is_kept_than_was_said(compilations: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_MOST_KNOWN", 2)
    functions = [lambda x: x + 1, lambda x: x + 2, lambda x: x + 3]
    for i in (0, 1, 0, 2, 0, 1):
        # The first is used again and again, the second had to go for the third.
        assert compiled.compile_function(functions[i], torch.zeros(2))(torch.ones(2)).tolist() == [i + 2.0] * 2
    assert len(compilations) == 4
    assert len(compiled._KNOWN) == 2


def test_products_of_another_precision_are_compiled_for(compilations: list[Any]) -> None:
    """However a program asks for it: torch has an older way and a newer one, after which it refuses the older."""
    function = compiled.compile_function(lambda x: x @ x, torch.zeros(3, 3))
    matmul, x = torch.backends.cuda.matmul, torch.randn(3, 3)
    try:
        for count, setting in enumerate(("highest", "high", "highest"), 1):
            torch.set_float32_matmul_precision(setting)
            assert torch.equal(function(x), x @ x)
            assert len(compilations) == min(count, 2)
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "tf32"
            assert torch.equal(function(x), x @ x)
            assert len(compilations) == 2
            matmul.fp32_precision = "ieee"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_inputs_of_another_layout_are_compiled_for(compilations: list[Any]) -> None:
    function = compiled.compile_function(lambda x: 2 * x, torch.zeros(3, 4))
    for x in (torch.randn(3, 4), torch.randn(4, 3).mT, torch.randn(3, 4)):
        assert torch.equal(function(x), 2 * x)
    assert len(compilations) == 2


@pytest.mark.slow
def test_the_compiler_runs_once() -> None:
    """With the real one, by its own count of graphs."""
    from torch._dynamo.utils import counters

    x, programs = torch.randn(4, 5), Programs()
    log_marginal_likelihood(programs.model, programs.guide, x, num_samples=6, compile=True)
    before = sum(counters["inductor"][f"fxgraph_cache_{found}"] for found in ("hit", "miss"))
    for _ in range(2):
        log_marginal_likelihood(programs.model, programs.guide, x, num_samples=6, compile=True)
    after = sum(counters["inductor"][f"fxgraph_cache_{found}"] for found in ("hit", "miss"))
    assert after == before > 0


def trained(model: Any, y: Tensor, loss: Any, **settings: Any) -> Tensor:
    """Losses of twenty steps and the table that they end with."""
    pyro.clear_param_store()
    svi = FastSVI(model, lambda y: None, pyro.optim.Adam({"lr": 0.02}), loss, **settings)
    return torch.cat([svi.run([y] * 20), pyro.param("table").detach().flatten()])


def test_gradients_of_selected_rows() -> None:
    """With the real compiler, which would read the sums over the rows that an index selects before they are made."""
    groups = torch.tensor([4, 0, 3, 0, 3, 4, 1])

    def model(y: Tensor) -> None:
        table = pyro.param("table", lambda: torch.linspace(-1.0, 1.0, 15).view(5, 3).sin())
        rows = table[groups]
        shift = (rows * y).tanh()
        weights = torch.softmax(table[groups.flip(0)] + shift, -1)
        pyro.factor("energy", (weights * rows).sum() + (torch.softmax(table, -1)[groups] * shift).sum())

    y = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    same(trained(model, y, Trace_ELBO(), compile=True), trained(model, y, Trace_ELBO()), 1e-5)


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_gradients_of_a_markov_chain(device: str) -> None:
    """Likewise in every step of a chain, by what its states select."""

    def model(y: Tensor) -> None:
        start = 0.5 * torch.eye(3, device=device) + 0.5 / 3
        move = pyro.param("table", start, constraint=dist.constraints.simplex)
        loc = pyro.param("loc", torch.linspace(-1.0, 2.0, 3, device=device))
        with pyro.plate("chains", len(y), dim=-1):
            z: Any = 0
            for t in pyro.markov(range(y.shape[1])):
                z = pyro.sample(f"z{t}", dist.Categorical(move[z]), infer={"enumerate": "parallel"})
                pyro.sample(f"y{t}", dist.Normal(loc[z], 0.5), obs=y[:, t])

    y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).to(device)
    loss = TraceEnum_ELBO(max_plate_nesting=1)
    same(trained(model, y, loss, compile=True), trained(model, y, loss), 1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_threads_of_the_compiler_in_a_forked_process() -> None:
    """They are left behind in the process before; one that waited for them would never end."""

    def compile() -> None:
        AsyncCompile.pool().submit(int).result(20)

    with torch._inductor.config.patch(compile_threads=2):
        compile()
        process = multiprocessing.get_context("fork").Process(target=compile)
        process.start()
        process.join()
    assert process.exitcode == 0
