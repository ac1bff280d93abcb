"""Every mode of the fast trainers follows ``pyro.infer.SVI`` over many steps, parameter by parameter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Set
from functools import partial
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor

from pyro_hyperbolic.infer import EnsembleSVI, FastSVI
from pyro_hyperbolic.models import EuclideanVAE, WarmUp
from tests.accelerate.pairs import PROGRAMS, Programs, vae
from tests.helpers import same

pytestmark = pytest.mark.usefixtures("double")

STEPS = 60  # where the test is a slow one, or on a GPU
QUICK_STEPS = 12
NOISY_STEPS = 150  # of runs that are compared in distribution
TOLERANCE = 1e-6  # of float64, after so many steps of Adam: where a gradient is 0, its sign is that of a rounding
NOT_CAPTURED = {"subsample", "sampled graph"}  # plates that draw their indices on the host
# The compiler may change the order of draws that do not depend on each other: of direction and radius, of two branches,
# and on a GPU of a latent and of what is dropped.
REORDERED = frozenset({"riemannian", "enumerated in turns"})
REORDERED_ON_GPU = REORDERED | {"dropout"}
# Those that differ from another in the distributions alone: the trainers see no difference.
SIMILAR = {"riemannian", "euclidean", "hyperboloid", "minibatch", "subsample", "graph", "sampled graph", "dropout"}
SIMILAR |= {"enumerated in the model", "enumerated in turns", "counts with covariates", "learnable curvature"}
SIMILAR |= {"drawn curvature"}
SIMILAR |= {"AutoDiagonalNormal", "AutoLaplaceApproximation", "AutoLowRankMultivariateNormal"}  # to a normal one


def rows(quick: Any, without: Set[str] = frozenset()) -> list[Any]:
    names = [name for name in PROGRAMS if name not in without]
    return [(name, QUICK_STEPS) if quick(name) else pytest.param(name, STEPS, marks=pytest.mark.slow) for name in names]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are traced, but what would be compiled runs as it is: with the random numbers of ``SVI``."""
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", lambda graph, *_, **__: graph)


@pytest.fixture
def compiled() -> Iterator[None]:
    """Steps are compiled, with the random numbers of ``SVI``."""
    with torch._inductor.config.patch(fallback_random=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def on_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def optimiser() -> Any:
    # A decay of weights shows a parameter that should have been left alone.
    return pyro.optim.AdamW({"lr": 0.01, "weight_decay": 0.1}, {"clip_norm": 10.0})


def run(kind: Any, programs: str, noise: int = 1, steps: int = STEPS, **options: Any) -> dict[str, Tensor]:
    """Parameters, buffers and losses of a run; its noise has a seed."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model, guide, args, kwargs, loss = PROGRAMS[programs]()
    svi = kind(model, guide, optimiser(), loss(), **options)
    pyro.set_rng_seed(noise)
    losses = [torch.as_tensor(svi.step(*args, **kwargs)).cpu() for _ in range(steps)]
    out = {name: p.detach().cpu().clone() for name, p in pyro.get_param_store().named_parameters()}
    for root in (model, guide):
        module = getattr(root, "__self__", root)
        if isinstance(module, torch.nn.Module):
            out |= {f"buffer {name}": b.detach().cpu().double() for name, b in module.named_buffers()}
    return out | {"losses": torch.stack(losses)}


def follows(programs: str, steps: int = STEPS, **options: Any) -> None:
    expected, actual = run(SVI, programs, steps=steps), run(FastSVI, programs, steps=steps, **options)
    assert actual.keys() == expected.keys()
    for value in expected.values():
        assert value.isfinite().all()
    for name, value in expected.items():
        same(actual[name], value, TOLERANCE)


@pytest.mark.parametrize(("programs", "steps"), rows(lambda name: name not in SIMILAR | {"sparse GP"}))
def test_traced_steps(programs: str, steps: int, traced: None) -> None:
    follows(programs, steps, compile=True)


@pytest.mark.parametrize(("programs", "steps"), rows(lambda name: name == "modules", without=REORDERED))
def test_compiled_steps(programs: str, steps: int, compiled: None) -> None:
    follows(programs, steps, compile=True)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("programs", "compile"),
    [
        (name, compile)
        for name in PROGRAMS
        for compile in (False, True)
        if name not in NOT_CAPTURED | (REORDERED_ON_GPU if compile else frozenset())
    ],
)
def test_captured_steps(programs: str, compile: bool, compiled: None, on_gpu: None) -> None:
    follows(programs, compile=compile, capture=True)


def interval(losses: list[Tensor]) -> tuple[float, float]:
    """Mean over seeds and its 95% interval, of the last quarter of the steps."""
    means = torch.stack([x[-NOISY_STEPS // 4 :].mean() for x in losses])
    return means.mean().item(), 2.0 * means.std().item() / math.sqrt(len(means))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("programs", "device"),
    [
        *(pytest.param(name, None, marks=pytest.mark.slow) for name in ("wrapped", *sorted(REORDERED))),
        *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in ("wrapped", *sorted(REORDERED_ON_GPU))),
    ],
)
def test_compiled_steps_with_noise_of_their_own(
    programs: str, device: str | None, request: pytest.FixtureRequest
) -> None:
    """By default compiled code draws other numbers: then the losses agree in distribution."""
    if device is not None:
        request.getfixturevalue("on_gpu")
    seeds = range(8)
    expected = [run(SVI, programs, seed, NOISY_STEPS)["losses"] for seed in seeds]
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model, guide, args, kwargs, loss = PROGRAMS[programs]()
    svi = FastSVI(model, guide, optimiser(), loss(), compile=True)
    svi.step(*args, **kwargs)
    begun, actual = svi.state_dict(), []
    for seed in seeds:  # one trainer for all of them: it compiles once
        svi.load_state_dict(begun)
        pyro.set_rng_seed(seed)
        actual.append(torch.stack([svi.step(*args, **kwargs) for _ in range(NOISY_STEPS)]).cpu())
    start = torch.stack([losses[0] for losses in expected]).mean().item()
    (stock, width), (fast, other) = interval(expected), interval(actual)
    assert abs(fast - stock) < math.hypot(width, other) + 0.02 * abs(start - stock)
    assert stock < start - 4 * width


MEMBERS = {"modules", "statistics of batches"}
SLOW = ["counts with covariates", "enumerated in the model", "enumerated in the guide", "enumerated in turns"]


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(("programs", "steps"), rows(MEMBERS.__contains__, without=PROGRAMS.keys() - MEMBERS - {*SLOW}))
def test_members_of_an_ensemble(programs: str, steps: int, compile: bool, traced: None) -> None:
    """Each as FastSVI trains it alone; all draw the same noise."""

    def members() -> list[Any]:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        return [PROGRAMS[programs]() for _ in range(2)]

    pairs = members()
    args, kwargs = pairs[0].args, pairs[0].kwargs
    kind = partial(EnsembleSVI, randomness="same", compile=compile)
    svi = kind([(p.model, p.guide) for p in pairs], optimiser(), pairs[0].loss())
    pyro.set_rng_seed(1)
    together = torch.stack([svi.step(*args, shared=True, **kwargs) for _ in range(steps)])
    for i, (model, guide, _, _, loss) in enumerate(members()):
        pyro.clear_param_store()
        alone = FastSVI(model, guide, optimiser(), loss(), compile=True)  # traced: noise out of place
        pyro.set_rng_seed(1)
        losses = torch.stack([alone.step(*args, **kwargs) for _ in range(steps)])
        same(together[1:, i], losses[1:], TOLERANCE)
        for name, tensor in alone.named_parameters().items():
            same(svi.parameters[name][i], tensor, TOLERANCE)
        own = pairs[i].model, model
        a, b = (dict(getattr(m, "__self__", m).named_buffers()) for m in own)
        for name, value in b.items():
            same(a[name].double(), value.double(), TOLERANCE)


def with_weight() -> Programs:
    return vae(lambda: EuclideanVAE(2, 6, hidden_dim=8, beta=WarmUp(4)))


def weighted(kind: Any, steps: int = 6, **options: Any) -> Tensor:
    """Losses of a run whose weight of the divergence grows."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model, guide, args, kwargs, _ = with_weight()
    svi = kind(model, guide, optimiser(), Trace_ELBO(), **options)
    pyro.set_rng_seed(1)
    losses = []
    for step in range(steps):
        model.__self__.warm_up(step)
        losses.append(torch.as_tensor(svi.step(*args, **kwargs)).cpu())
    return torch.stack(losses)


def test_a_weight_that_grows(traced: None) -> None:
    same(weighted(FastSVI, compile=True), weighted(SVI), TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("compile", [False, True])
def test_a_weight_that_grows_in_an_ensemble(compile: bool, traced: None) -> None:
    def ensemble(model: Any, guide: Any, *rest: Any) -> Any:
        members = [(model, guide), with_weight()[:2]]
        svi = EnsembleSVI(members, *rest, randomness="same", compile=compile)

        class First:
            def step(self, *args: Any, **kwargs: Any) -> Tensor:
                return svi.step(*args, shared=True, **kwargs)[0]

        return First()

    # It reads the weight of the first member, as long as all have the same.
    same(weighted(ensemble), weighted(SVI), TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_a_weight_that_grows_in_captured_steps(compile: bool, compiled: None, on_gpu: None) -> None:
    same(weighted(FastSVI, compile=compile, capture=True), weighted(SVI), TOLERANCE)
