"""Private names of torch, Pyro and Python are used in three files and a folder, and everything works without them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.distributions import kl_divergence

import pyro_hyperbolic
from pyro_hyperbolic import PoincareBall, private
from pyro_hyperbolic.accelerate import EnsembleSVI, FastNUTS, FastSVI, log_marginal_likelihood
from pyro_hyperbolic.accelerate.compiler import changes
from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.ops.checks import inspectable, validating
from pyro_hyperbolic.ops.tables import Tables
from tests.accelerate.nets import Net, Slope, SlopeGuide

ROOT = Path(pyro_hyperbolic.__file__).parent
DOORS = {"private.py", "accelerate/private.py", "accelerate/fast_nuts.py"}
COMPILER = "accelerate/compiler"
LIBRARIES = {"torch", "pyro", "dist", "nn", "F", "poutine", "sys", "inspect", "importlib", "np"}
# Of objects that come from there, whatever they are called here.
ATTRIBUTES = {
    *("_base", "_buffers", "_cached_x_y", "_constraints", "_get_traces", "_is_param", "_mask", "_modules"),
    *("_parameters", "_params", "_pyro_context", "_pyro_dims", "_schema", "_state_waiting_to_be_consumed"),
    *("_opt_called", "_dynamo_marked_constant", "__code__", "f_code", "co_code", "tb_lasti"),
}


def private_names(source: str) -> set[str]:
    """Private names of other packages in a file. What an object has itself (``self._base``) is its own."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and not (node.module or "").startswith(ROOT.name):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            root = chain.partition(".")[0]
            if root in LIBRARIES and re.fullmatch(r"[\w.]+", chain):
                names = [chain]
            elif node.attr in ATTRIBUTES and not (root == "self" and chain.count(".") == 1):
                found.add(chain)
        for name in names:
            if name == "dis" or any(p.startswith("_") and not p.startswith("__") for p in name.split(".")):
                found.add(name)
    return found


def test_private_names_are_found():
    source = "import torch._dynamo\nfrom pyro.poutine.runtime import _PYRO_STACK\nimport dis\nfrom os import path\n"
    source += "x = torch._C._f(t._base, self._base, self.t._base, torch.add(1))\n"
    assert private_names(source) == {
        *("torch._dynamo", "pyro.poutine.runtime._PYRO_STACK", "dis", "torch._C", "torch._C._f", "t._base"),
        "self.t._base",
    }


def test_few_files_have_them():
    found = {str(file.relative_to(ROOT)): private_names(file.read_text("utf-8")) for file in ROOT.rglob("*.py")}
    assert {name for name, names in found.items() if names and not name.startswith(COMPILER)} <= DOORS


def test_import_needs_none_of_them():
    """As in a torch in which they are gone: every import of one by the package fails."""
    script = (
        "import builtins, sys, pyro\n"
        "before, original = set(sys.modules), builtins.__import__\n"
        "def guarded(name, globals=None, locals=None, fromlist=(), level=0):\n"
        "    importer = (globals or {}).get('__name__', '')\n"
        "    own = importer.startswith('pyro_hyperbolic')\n"
        "    parts = [*name.split('.'), *(fromlist or ())]\n"
        "    if own and not level and parts[0] in ('torch', 'pyro') and any(\n"
        "        p.startswith('_') and not p.startswith('__') for p in parts\n"
        "    ):\n"
        "        raise ImportError(name)\n"
        "    return original(name, globals, locals, fromlist, level)\n"
        "builtins.__import__ = guarded\n"
        "import pyro_hyperbolic\n"
        "from pyro_hyperbolic import analysis, datasets, plotting\n"
        "slow = {'torch._dynamo', 'torch._inductor'}\n"
        "assert not slow & (sys.modules.keys() - before)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.fixture
def without() -> Iterator[None]:
    with private.switched_off():
        yield


X = torch.randn(12, 3, generator=torch.Generator().manual_seed(5))
LOSSES: dict[str, Callable[[], Any]] = {
    "trace": Trace_ELBO,
    "mean field": TraceMeanField_ELBO,
    "particles": lambda: RenyiELBO(num_particles=3),
    "particles at once": lambda: Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1),
    "enumeration": lambda: TraceEnum_ELBO(max_plate_nesting=1),
}


def adam() -> Any:
    return pyro.optim.Adam({"lr": 0.01}, {"clip_norm": 10.0})


def trained(loss: Any, **options: Any) -> Tensor:
    net = Net()
    svi = FastSVI(net.model, net.guide, adam(), loss, **options)
    return torch.stack([svi.step(X) for _ in range(3)])


@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
@pytest.mark.parametrize("name", LOSSES)
def test_trainer(name):
    expected = trained(LOSSES[name]())
    with private.switched_off():
        torch.testing.assert_close(trained(LOSSES[name]()), expected)


def test_compiled_trainer():
    expected = trained(Trace_ELBO())
    with private.switched_off():
        found = trained(Trace_ELBO(), compile=True)
    torch.testing.assert_close(found[0], expected[0])  # later ones draw numbers of their own
    assert found.isfinite().all()


def test_ensemble():
    def losses() -> Tensor:
        pyro.set_rng_seed(0)
        members = [(Slope(), SlopeGuide()) for _ in range(2)]
        svi = EnsembleSVI(members, adam(), Trace_ELBO())
        return torch.stack([svi.step(X, shared=True) for _ in range(3)])

    expected = losses()
    with private.switched_off():
        torch.testing.assert_close(losses(), expected)


def test_loaded_optimiser():
    def resumed() -> Tensor:
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        slope, guide, optim = Slope(), SlopeGuide(), adam()
        FastSVI(slope, guide, optim, Trace_ELBO()).run([X] * 3)
        other = adam()
        other.set_state(optim.get_state())
        return FastSVI(slope, guide, other, Trace_ELBO()).run([X] * 3)

    expected = resumed()
    with private.switched_off():
        torch.testing.assert_close(resumed(), expected)


def test_automatic_guide(without):
    def model(x: Tensor) -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(0.0, scale), obs=x[:, 0])

    assert FastSVI(model, AutoNormal(model), adam(), Trace_ELBO()).run([X] * 4).isfinite().all()


@pytest.mark.slow
def test_estimate(without):
    net = Net()
    found = log_marginal_likelihood(net.model, net.guide, X, num_samples=50, compile=True)
    torch.testing.assert_close(
        found, log_marginal_likelihood(net.model, net.guide, X, num_samples=50), rtol=0, atol=2.0
    )


def test_sampler(without):
    def model() -> None:
        pyro.sample("z", dist.Normal(3.0, 0.5).expand([2]).to_event(1))

    mcmc = MCMC(FastNUTS(model, step_size=None), num_samples=100, warmup_steps=50, disable_progbar=True)
    mcmc.run()
    assert (mcmc.get_samples()["z"].mean(0) - 3.0).abs().max() < 0.5


@pytest.mark.parametrize("kind", [WrappedNormal, RiemannianNormal])
def test_distributions(kind):
    loc = torch.tensor([0.3, 0.1])
    ball = PoincareBall(1.0)
    points = kind(loc, 0.5, ball).rsample(torch.Size([4]))

    def values() -> list[Tensor]:
        normal = kind(loc, 0.5, ball)
        mapped = torch.vmap(normal.log_prob)(points)
        return [mapped, normal.log_prob(points), kl_divergence(normal, kind(loc, 1.0, ball))]

    expected = values()
    with private.switched_off():
        for own, other in zip(values(), expected, strict=True):
            torch.testing.assert_close(own, other)


@pytest.mark.parametrize("on", [True, False])
def test_what_can_be_read(on):
    seen = []

    def look(t: Tensor) -> Tensor:
        seen.append(inspectable(t))
        return t

    def values() -> None:
        look(torch.ones(2))
        torch.vmap(look)(torch.ones(2))
        torch.fx.experimental.proxy_tensor.make_fx(look, tracing_mode="fake")(torch.ones(2))
        look(torch.ones(2, device="meta"))
        for value in (True, False):
            with pyro.validation_enabled(value):
                seen.append(validating())

    import torch.fx.experimental.proxy_tensor

    if on:
        values()
    else:
        with private.switched_off():
            values()
    assert seen == [True, False, False, False, True, False]


def test_tables_are_made_outside_of_every_mode():
    tables = Tables(lambda n: (torch.ones(n), torch.zeros(n)))
    found = []

    def look(t: Tensor) -> Tensor:
        found.append(tables.get(3, dtype=torch.float32, device=torch.device("cpu"))[0])
        return t

    import torch.fx.experimental.proxy_tensor

    torch.fx.experimental.proxy_tensor.make_fx(look, tracing_mode="fake")(torch.ones(2))
    assert type(found[0]) is Tensor
    assert found[0].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "compile"),
    [*((name, False) for name in changes.CHANGES), pytest.param("loop order", True, marks=pytest.mark.slow)],
)
def test_changes_of_the_compiler_can_be_left_out(name, compile):
    assert changes.is_made(name)
    with changes.left_out(name):
        assert not changes.is_made(name)
        assert trained(Trace_ELBO(), compile=compile).isfinite().all()
    with pytest.raises(ValueError, match="names must be among"), changes.left_out("nothing"):
        pass
