"""Compiled steps: those of programs that are traced, and what cannot be."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor, nn
from torch._inductor.cpp_builder import CppBuilder
from torch._inductor.cpu_vec_isa import pick_vec_isa, valid_vec_isa_list
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.benchmarking import benchmarker
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_hyperbolic.accelerate.compiler import changes, graphs, loops
from pyro_hyperbolic.accelerate.programs.rewrites import (
    compute_once,
    fold_indices,
    keep_sources,
    write_out_of_place,
    write_out_products,
)
from pyro_hyperbolic.accelerate.programs.rows import CompiledLater, compile_function
from pyro_hyperbolic.infer import FastSVI
from tests.accelerate.nets import STEPS, Net, adam, losses, trainer
from tests.helpers import each, same

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """That of torch; in its place, what has been traced runs as it is."""
    original = graphs.run_compiler
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", lambda graph, *_, **__: graph)
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


def test_sequential_plates(x):
    """Their indices are numbers in a trace too, where tensors have no values; those that are drawn are an error."""

    def model(x: Tensor) -> None:
        for k in pyro.plate("rows", 3):
            a = pyro.sample(f"a_{k}", dist.Normal(0.0, 1.0))
            pyro.sample(f"x_{k}", dist.Normal(a * (k + 1), 1.0).expand([x.shape[1]]).to_event(1), obs=x[k])

    def guide(x: Tensor) -> None:
        for k, loc in zip(torch.arange(3).tolist(), pyro.param("loc", torch.zeros(3)).unbind(), strict=True):
            pyro.sample(f"a_{k}", dist.Delta(loc))

    found = []
    for kind, options in ((SVI, {}), (FastSVI, {"compile": True})):
        pyro.clear_param_store()
        svi = kind(model, guide, adam(), Trace_ELBO(), **options)
        found.append([svi.step(x) for _ in range(STEPS)])
    same(found[1], found[0], 1e-12)

    def drawn(x: Tensor) -> None:
        loc = pyro.param("mean", torch.zeros(()))
        for k in pyro.plate("rows", 3, 2):
            pyro.sample(f"x_{k}", dist.Normal(loc, 1.0).expand([x.shape[1]]).to_event(1), obs=x[k])

    def listed(x: Tensor) -> None:
        loc = pyro.param("mean", torch.zeros(()))
        for k in torch.randperm(3).tolist():
            pyro.sample(f"x_{k}", dist.Normal(loc, 1.0).expand([x.shape[1]]).to_event(1), obs=x[k])

    for program in (drawn, listed):
        with pytest.raises(ValueError, match=r"cannot be compiled: Python reads the value of a tensor"):
            FastSVI(program, lambda x: None, adam(), Trace_ELBO(), compile=True).step(x)


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
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", compiler)
    monkeypatch.setattr("torch._inductor.graph.GraphLowering.codegen", codegen)
    svi = trainer(FastSVI, Net(), compile=True)
    with (
        torch._inductor.config.patch(force_disable_caches=True),
        pytest.warns(RuntimeWarning, match="PassManager::run failed.* run uncompiled") as caught,
    ):
        actual = losses(svi, x)
    assert len([w for w in caught if w.category is RuntimeWarning]) == 1
    same(actual, expected, 1e-9)


def test_what_the_short_way_fails_on_goes_the_long_one(x, compiler, monkeypatch):
    def short(graph: Any, leaves: Any) -> Any:
        raise AssertionError("Mixing fake modes NYI")

    taken: list[int] = []
    expected = losses(trainer(FastSVI, Net()), x)
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", compiler)
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs._compile_at_once", short)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, *_, **__: taken.append(1) or graph)
    same(losses(trainer(FastSVI, Net(), compile=True), x), expected, 1e-9)
    assert taken


LOOPS: dict[str, tuple[int, bool, tuple[str, Any]]] = {  # files, whether others are still written, and what is changed
    "joined": (1, False, ("_ENOUGH", 10**9)),
    "full": (2, True, ("_ENOUGH", 1)),
    "torch has changed": (2, False, ("_ROW", "?")),
    "other loops": (2, False, ("_LOOP", re.compile("nothing"))),
}


@pytest.mark.parametrize("case", LOOPS.values(), ids=LOOPS)
def test_files_of_loops(case, compiler, monkeypatch):
    """One loop before a product, and one after it, each compiled once."""
    count, early, change = case
    monkeypatch.setattr(loops, *change)
    begun: list[float] = []
    written: list[float] = []
    build, codegen = CppBuilder.build, GraphLowering.codegen

    def note_build(self: Any) -> Any:
        begun.append(time.monotonic())
        return build(self)

    def note_codegen(self: Any) -> Any:
        code = codegen(self)
        for _ in range(500):  # what another thread has to do is little
            if early and len(begun) < count:
                time.sleep(0.01)
        written.append(time.monotonic())
        return code

    x = torch.randn(9, 9)
    compile_function(lambda x: (x @ x).sin(), x)(x)  # headers are read
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", compiler)
    with torch._inductor.config.patch(force_disable_caches=True):
        compile_function(lambda x: (x @ x).cos().sin(), x)(x)
        monkeypatch.setattr(CppBuilder, "build", note_build)
        monkeypatch.setattr(GraphLowering, "codegen", note_codegen)
        scale = random.SystemRandom().random()  # so that no earlier run has compiled it
        run = compile_function(lambda x: ((scale * x).sin() @ x).cos(), x)
        same(run(x), ((scale * x).sin() @ x).cos(), 1e-12)
    assert len(begun) == count
    assert all((b < written[0]) == early for b in begun)


@pytest.mark.parametrize("full", [True, False])
def test_loops_fill_vectors(full, compiler, monkeypatch):
    """Of a few rows of points in a plane and of a number for each row, which torch would vectorise along both."""

    def function(x: Tensor, y: Tensor, c: Tensor, scale: float) -> Tensor:
        return (scale * x[..., 0] + y * c.unsqueeze(-1)).sin() * x[..., 1] + y

    written: list[str] = []
    codegen = GraphLowering.codegen

    def note(self: Any) -> Any:
        code = codegen(self)
        written.append(code[0].value)
        return code

    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", compiler)
    monkeypatch.setattr(GraphLowering, "codegen", note)
    args = torch.randn(3, 40, 2), torch.randn(3, 40), torch.rand(3), torch.rand(()).item()
    with torch._inductor.config.patch(force_disable_caches=True), changes.left_out(*[] if full else ["tiles"]):
        same(compile_function(function, *args)(*args), function(*args), 1e-12)
    assert len(written) == 1
    if isa := pick_vec_isa():
        assert (f"x0+=static_cast<int64_t>({isa.nelements()}L)" in written[0]) != full  # of three rows


def test_without_a_cpp_compiler(x, compiler, monkeypatch):
    """What is missing is said once, and programs run uncompiled."""
    expected = losses(trainer(FastSVI, Net()), x)
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", compiler)
    for cached in (loops.start_early, valid_vec_isa_list):
        cached.cache_clear()
    try:
        with (
            torch._inductor.config.patch({"force_disable_caches": True, "cpp.cxx": (None, "/nothing/g++")}),
            pytest.warns(RuntimeWarning, match="No working C\\+\\+ compiler.* run uncompiled"),
        ):
            actual = losses(trainer(FastSVI, Net(), compile=True), x)
    finally:
        valid_vec_isa_list.cache_clear()
    same(actual, expected, 1e-9)


def test_function_that_is_compiled_later():
    """Its Python does not run any more, and what it uses beside its arguments may have changed."""
    calls, scale = [], torch.ones(3)

    def function(x: Tensor) -> Tensor:
        calls.append(x)
        return scale * x

    later, made = CompiledLater(function, 3), 0
    columns = torch.arange(6.0).reshape(2, 3)
    for number in range(5):
        scale.fill_(number)
        assert torch.equal(later(columns.mT.contiguous().mT), number * columns)  # of any layout
        made = len(calls) if number <= 2 else made
    assert len(calls) == made


def test_program_that_is_too_long(x, monkeypatch):
    expected = losses(trainer(FastSVI, Net()), x)
    monkeypatch.setattr("pyro_hyperbolic.accelerate.programs.compiled._MOST_CALLS", 5)
    with pytest.warns(RuntimeWarning, match=r"more than 5 calls of torch.* run uncompiled.*in a plate") as caught:
        actual = losses(trainer(FastSVI, Net(), compile=True), x)
    assert len([w for w in caught if "calls of torch" in str(w.message)]) == 1
    same(actual, expected, 1e-12)
    with pytest.warns(RuntimeWarning, match="calls of torch"):
        mapped = compile_function(torch.func.vmap(torch.func.grad(lambda v: v.sin().cos().exp().sum())), x).fixed(x)
    assert mapped(x + 1).shape == x.shape


def on_cuda(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """As if it had been traced there."""
    with FakeTensorMode():
        for node in graph.graph.nodes:
            if isinstance(value := node.meta.get("val"), Tensor):
                node.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device="cuda")
    return graph


@each(
    ("dtype", "rows", "terms", "columns", "left"),
    [
        (torch.float64, 9, 5, 40, 0),
        (torch.float64, 40, 50, 9, 0),
        (torch.float64, 9, 50, 40, 0),
        (torch.float64, 40, 50, 60, 3),
        (torch.float64, 200, 5, 5000, 3),
        (torch.float32, 9, 3, 40, 0),
        (torch.float32, 40, 50, 60, 0),
        (torch.float32, 300, 5, 9, 3),
        (torch.float32, 200, 200, 200, 3),
        (torch.bfloat16, 9, 5, 40, 3),
    ],
)
@pytest.mark.parametrize("form", ["matrices", "batches", "with a bias"])
def test_small_products_are_written_out(
    form: str, dtype: torch.dtype, rows: int, terms: int, columns: int, left: int
) -> None:
    """Those of float64 that are thin, and narrow ones of float32, with their gradients; of others three are left."""
    batch = (4,) if form == "batches" else ()

    def gradients(x: Tensor, y: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        product = torch.addmm(b, x, y) if form == "with a bias" else x @ y
        return torch.autograd.grad(product.sin().sum(), (x, y))

    sizes = (*batch, rows, terms), (*batch, terms, columns), (columns,)
    x, y, b = (torch.randn(size).to(dtype) for size in sizes)
    graph = on_cuda(make_fx(gradients, tracing_mode="fake")(x, y, b))
    wide = x.double(), y.double(), b.double()  # in which the order of sums does not matter
    expected = graph(*wide)
    write_out_products(graph)
    assert sum("mm" in str(node.target) for node in graph.graph.nodes) == left
    torch.testing.assert_close(graph(*wide), expected)
    # The compiler looks at the forms of all that is computed.
    assert all("val" in node.meta for node in graph.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("of_a_view", [False, True])
def test_a_trace_says_everything_once(of_a_view):
    def gradient(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = (x * x).add_(1.0).sqrt_() * torch.rand_like(x) * torch.rand_like(x)
            y = y + (x * x).sum(-1, keepdim=True)
            if of_a_view:
                y[..., 0].mul_(2.0)
            return torch.autograd.grad(y.sum(), x)[0]

    x = torch.randn(3, 2)
    graph = make_fx(gradient, tracing_mode="fake")(x)
    torch.manual_seed(0)
    expected = graph(x)
    write_out_of_place(graph)
    compute_once(graph)
    names = [str(node.target) for node in graph.graph.nodes]
    assert not any("add_" in name or "sqrt_" in name for name in names)
    assert names.count("aten.rand_like.default") == 2
    # What a view shows is changed in place, so that nothing else can be said of the graph.
    assert ("aten.mul_.Tensor" in names) == ("aten.detach.default" in names) == of_a_view
    torch.manual_seed(0)
    torch.testing.assert_close(graph(x), expected)


def of_pairs(x: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(torch.triu_indices(5, 5, 1))


@each(
    "pairs",
    [
        of_pairs,
        lambda x, given: (given, given + 1),
        lambda x, given: (torch.arange(-4, 0), torch.arange(-5, -1)),
        lambda x, given: (torch.randperm(5), torch.randperm(5)),
        lambda x, given: (x[:, 0].argsort(), x[:, 1].argsort()),
    ],
)
def test_pairs_are_known_before(pairs: Any) -> None:
    """Where they depend on nothing and exist; a point is then computed once, and not in each of its pairs."""

    def gradient(x: Tensor, given: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            i, j = pairs(x.detach(), given)
            points = x.tanh()
            return torch.autograd.grad((points[i] - points[j]).square().sum(-1).cosh().sum(), x)[0]

    args = torch.randn(5, 2), torch.arange(4)
    graph = make_fx(gradient, tracing_mode="fake")(*args)
    torch.manual_seed(0)
    expected = graph(*args)
    fold_indices(graph)
    keep_sources(graph)
    names = [str(node.target) for node in graph.graph.nodes]
    known = pairs is of_pairs
    assert names.count("aten.index.Tensor") == names.count("aten.index_put.default") == (0 if known else 2)
    assert sum("force_stride_order" in name for name in names) == known  # other pairs are no more than points
    torch.manual_seed(0)
    torch.testing.assert_close(graph(*args), expected)


@pytest.mark.gpu
def test_kernels_are_timed_back_to_back():
    """A launch takes the host longer than the first of these kernels takes the device.

    The least of several times, because other processes may use the device as well.
    """
    times = []
    with changes.back_to_back():
        for size in (1 << 10, 1 << 24):
            x = torch.ones(size, dtype=torch.float32, device="cuda")
            times.append(min(benchmarker.benchmark_gpu(lambda x=x: x.add_(1.0), rep=40) for _ in range(10)))
    assert 5e-4 < times[0] < 5e-3 < times[1] < 0.2  # milliseconds
    assert "benchmark_gpu" not in vars(benchmarker)
