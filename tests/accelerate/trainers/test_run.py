"""Many steps in one call, in graphs that draw their batches too."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from tqdm.auto import tqdm

from pyro_hyperbolic.accelerate.trainers import run
from pyro_hyperbolic.accelerate.trainers.graphs import CapturedStep
from pyro_hyperbolic.accelerate.trainers.transfer import Transfer
from pyro_hyperbolic.infer import EnsembleSVI, FastSVI, Minibatches
from pyro_hyperbolic.models import EuclideanVAE
from tests.helpers import same

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DATA, BATCH, MEMBERS = 43, 4, 3
WHOLE, EPOCH = 10, 11  # batches, and with the last one, which is smaller


@pytest.fixture
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: str) -> list[int]:
    """How many steps each captured graph has taken at a time, by replay; on a CPU they are run again instead."""
    if device == "cpu":
        request.getfixturevalue("replayed")
    taken: list[int] = []
    original = CapturedStep.replay

    def replay(self: Any, args: Any, kwargs: Any) -> Tensor:
        losses = original(self, args, kwargs)
        taken.append(len(losses) if isinstance(args[0], Tensor) and not args[0].is_floating_point() else 1)
        return losses

    monkeypatch.setattr(CapturedStep, "replay", replay)
    monkeypatch.setattr(run, "_FEWEST", WHOLE)  # fewer than pays, but enough to see
    return taken


def vae(seed: int, device: str) -> EuclideanVAE:
    pyro.set_rng_seed(seed)
    return EuclideanVAE(2, 3, hidden_dim=5, likelihood="normal").to(device)


def single(device: str, **options: Any) -> tuple[FastSVI, Minibatches]:
    programs = vae(0, device)
    svi = FastSVI(programs.model, programs.guide, pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO(), capture=True, **options)
    pyro.set_rng_seed(1)
    return svi, Minibatches(torch.randn(DATA, 3).to(device), BATCH, seed=3)


def ensemble(device: str, **options: Any) -> tuple[EnsembleSVI, Minibatches]:
    members = [vae(i, device) for i in range(MEMBERS)]
    pairs = [(member.model, member.guide) for member in members]
    svi = EnsembleSVI(pairs, pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO(), capture=True, **options)
    pyro.set_rng_seed(1)
    return svi, Minibatches(torch.randn(DATA, 3).to(device), BATCH, seed=3, members=MEMBERS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [single, pytest.param(ensemble, marks=pytest.mark.slow)])
def test_the_losses_and_parameters_are_those_of_single_steps(make: Any, device: str, graphs: list[int]) -> None:
    """Two epochs, the last batch of each smaller."""
    svi, batches = make(device)
    losses = torch.cat([svi.run(batches.epoch(number)) for number in range(2)])
    state = svi.state_dict()
    assert WHOLE in graphs  # whole epochs without the host
    svi, batches = make(device)
    expected = torch.stack([svi.step(batch) for number in range(2) for batch in batches.epoch(number)])
    same(losses, expected, 1e-5)
    assert svi.steps == state["steps"] == len(losses) == 2 * EPOCH
    # A second model has names of its own.
    for before, value in zip(state["parameters"].values(), svi.state_dict()["parameters"].values(), strict=True):
        same(before, value, 1e-5)


@pytest.mark.parametrize("device", ["cpu"])
def test_an_interrupt_leaves_a_run_that_goes_on(
    device: str, graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    svi, batches = single(device)
    svi.run(batches.epoch(0))

    def interrupted(*args: Any) -> Tensor:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(svi, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            svi.run(batches.epoch(1))
    assert svi.steps == EPOCH + WHOLE  # the graph before the interrupt counts
    assert len(svi.run(batches.epoch(1, start=WHOLE))) == 1
    assert svi.steps == 2 * EPOCH


@pytest.mark.parametrize("device", ["cpu"])
def test_the_first_loss_that_is_not_finite_is_named(device: str, graphs: list[int]) -> None:
    svi, batches = single(device)
    svi.run(batches.epoch(0))
    batches.data[5] = torch.nan
    place = next(i for i, rows in enumerate(batches._order(3 * 1_000_003 + 1, 0)) if 5 in rows)
    with pytest.warns(UserWarning, match=f"not finite since step {EPOCH + place + 1}$"):
        svi.run(batches.epoch(1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [single, pytest.param(ensemble, marks=pytest.mark.slow)])
def test_validation_comes_as_often_as_in_single_steps(make: Any, device: str, graphs: list[int]) -> None:
    counts = []
    for whole in (True, False):
        svi, batches = make(device, validate_every=8)
        loss, evaluations = svi.loss, 0

        def counted(*args: Any, _loss: Any = loss, **kwargs: Any) -> Tensor:
            nonlocal evaluations
            evaluations += torch.distributions.Distribution._validate_args
            return _loss(*args, **kwargs)

        svi.run(batches.epoch(0))
        svi.loss = counted
        if whole:
            svi.run(batches.epoch(1))
        else:
            for batch in batches.epoch(1):
                svi.step(batch)
        counts.append(evaluations)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("device", DEVICES)
def test_what_validation_finds_beside_the_steps_is_raised(device: str, graphs: list[int]) -> None:
    svi, batches = single(device, validate_every=8)
    svi.run(batches.epoch(0))
    loss = svi.loss

    def refused(*args: Any, **kwargs: Any) -> Tensor:
        if torch.distributions.Distribution._validate_args:
            raise ValueError("out of reach")
        return loss(*args, **kwargs)

    svi.loss = refused
    with pytest.raises(ValueError, match="out of reach"):
        svi.run(batches.epoch(1))
    svi.loss = loss
    assert svi.run(batches.epoch(2)).isfinite().all()


class Endless(IterableDataset):
    """Rows that come one by one; how many, nobody says."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.randn(DATA, 3, generator=torch.Generator().manual_seed(0)))


def loaders(batches: Minibatches) -> dict[str, tuple[Any, int | None, int]]:
    """An iterable, what the bar takes for its length, and how many steps it makes."""
    rows = TensorDataset(batches.data)
    return {
        "epoch": (batches.epoch(0), EPOCH, EPOCH),
        "rest of an epoch": (batches.epoch(0, start=4), EPOCH - 4, EPOCH - 4),
        "loader": (DataLoader(rows, BATCH), EPOCH, EPOCH),
        "loader without a length": (DataLoader(Endless(), BATCH), None, EPOCH),
        "generator": ((batch for batch in batches.epoch(0)), None, EPOCH),
        "list": ([(batches.data[:BATCH],), {"x": batches.data[BATCH : 2 * BATCH]}], 2, 2),
        "nothing": ([], None, 0),
    }


@pytest.mark.parametrize("device", ["cpu"])
@pytest.mark.parametrize("name", loaders(Minibatches(torch.zeros(DATA, 3), BATCH)))
def test_any_iterable_and_a_bar(name: str, device: str, graphs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Any] = []

    def bar(**options: Any) -> Any:
        bars.append(tqdm(**options | {"disable": False, "file": io.StringIO()}))
        return bars[-1]

    monkeypatch.setattr(run, "tqdm", bar)
    svi, batches = single(device)
    iterable, total, steps = loaders(batches)[name]
    losses = svi.run(iterable, progress=True)
    assert losses.shape == (steps,)
    assert (bars[0].total, bars[0].n) == (total, steps)
    assert svi.steps == steps


@pytest.mark.parametrize("device", ["cpu"])
def test_an_interrupt_among_the_batches(device: str, graphs: list[int]) -> None:
    svi, batches = single(device)

    def some() -> Iterator[Tensor]:
        for i, batch in enumerate(batches.epoch(0)):
            if i == 5:
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        svi.run(some())
    assert svi.steps == 5
    assert len(svi.run(batches.epoch(0, start=5))) == EPOCH - 5


@pytest.mark.parametrize("device", ["cpu"])
def test_a_loss_of_any_iterable_that_is_not_finite_is_named(device: str, graphs: list[int]) -> None:
    svi, batches = single(device)
    rows = batches.data.clone()
    rows[4 * BATCH] = torch.nan
    with pytest.warns(UserWarning, match="not finite since step 5$"):
        svi.run(DataLoader(TensorDataset(rows), BATCH))


class TestTransfer:
    @pytest.fixture
    def events(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What happens to streams and memory, in order, on a CPU that stands in for the device."""
        happened: list[str] = []

        class Stream:
            def __init__(self, name: str = "copies") -> None:
                self.name = name

            def wait_stream(self, other: Any) -> None:
                happened.append(f"{self.name} wait for {other.name}")

        @contextlib.contextmanager
        def open_stream(stream: Any) -> Iterator[None]:
            happened.append(f"begin {stream.name}")
            yield
            happened.append(f"end {stream.name}")

        def to(tensor: Tensor, device: Any, non_blocking: bool) -> Tensor:
            assert device.type == "cuda"
            happened.append(f"copy {len(tensor)}{'' if non_blocking else ' and wait'}")
            return tensor.clone()

        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("steps"))
        monkeypatch.setattr(torch.cuda, "stream", open_stream)
        monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: len(tensor) == 1)
        monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: happened.append(f"pin {len(tensor)}") or tensor)
        monkeypatch.setattr(Tensor, "to", to)
        monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: happened.append(f"kept by {stream.name}"))
        return happened

    def test_copies_are_beside_the_steps(self, events: list[str]) -> None:
        transfer = Transfer(lambda: torch.device("cuda"))
        one, two = torch.arange(1), torch.arange(2)
        batch = transfer({"a": one, "b": [two, 3, None]})
        assert events == [
            "begin copies",
            "copy 1",  # pinned already
            "pin 2",
            "copy 2",
            "end copies",
            "steps wait for copies",
            "kept by steps",
            "kept by steps",
        ]
        assert batch["a"] is not one
        assert torch.equal(batch["b"][0], two)
        assert batch["b"][1:] == [3, None]

    def test_what_is_there_is_passed_on(self, events: list[str]) -> None:
        batch = {"a": torch.arange(2), "b": 1}
        assert Transfer(lambda: None)(batch) is batch
        assert Transfer(lambda: torch.device("cpu"))(batch) is batch
        there = torch.empty(2, device="meta"), "x"
        assert Transfer(lambda: torch.device("cuda"))(there) is there
        assert not events

    @pytest.mark.parametrize("make", [single, ensemble])
    def test_it_goes_where_the_programs_are(self, make: Any) -> None:
        svi, _ = make("cpu")
        assert svi._place() == torch.device("cpu")
        svi.capture = False
        assert svi._place() is None


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("make", [single, ensemble])
def test_batches_of_the_host(make: Any, pinned: bool) -> None:
    """The same losses as with batches that are on the device already, also from the first step on."""
    svi, batches = make("cuda")
    expected = svi.run(list(batches.epoch(0)))
    svi, batches = make("cuda")
    host = [batch.cpu().pin_memory() if pinned else batch.cpu() for batch in batches.epoch(0)]
    same(svi.run(host).cpu(), expected.cpu(), 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_numbers_of_the_host_are_not_fixed_at_the_capture(compile: bool) -> None:
    """A 0-dim weight that is not on the device, and changes."""

    def losses(kind: Any, **options: Any) -> Tensor:
        pyro.clear_param_store()
        module = vae(0, "cuda")

        def weighted(program: Any) -> Any:
            def run(x: Tensor, weight: Tensor) -> None:
                pyro.module("vae", module)
                with poutine.scale(scale=weight):
                    program(x)

            return run

        optim = pyro.optim.Adam({"lr": 1e-2})
        svi = kind(weighted(module.model), weighted(module.guide), optim, Trace_ELBO(), **options)
        pyro.set_rng_seed(1)
        x = torch.randn(BATCH, 3).cuda()
        return torch.stack([torch.as_tensor(svi.step(x, torch.tensor(0.5 + i))).cpu() for i in range(8)])

    with torch._inductor.config.patch(fallback_random=True):
        same(losses(FastSVI, compile=compile), losses(SVI), 1e-4)


@pytest.mark.parametrize(
    ("batches", "remedy"),
    [
        ({"x": torch.zeros(4, 3)}, "dict; pass Minibatches, a list of batches"),
        ("abc", "str; pass"),
        (5, "int; pass"),
    ],
)
@pytest.mark.parametrize("trainer", ["single", "together"])
def test_what_holds_no_batches_is_refused(batches: Any, remedy: str, trainer: str) -> None:
    programs = vae(0, "cpu")
    pair = programs.model, programs.guide
    optim = pyro.optim.Adam({"lr": 1e-2})
    svi = FastSVI(*pair, optim, Trace_ELBO()) if trainer == "single" else EnsembleSVI([pair], optim, Trace_ELBO())
    with pytest.raises(ValueError, match=f"batches must be an iterable of batches, got {remedy}"):
        svi.run(batches)
