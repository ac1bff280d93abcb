"""Pyro's own examples, trained by ``SVI`` and by the fast trainers: the same losses and the same parameters."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor, nn

from pyro_hyperbolic.infer import EnsembleSVI, FastSVI
from tests.accelerate.trainers.pyro_examples import EXAMPLES, VAE, Example, images
from tests.helpers import same

pytestmark = [
    pytest.mark.usefixtures("double"),
    # Pyro says so of the steps with labels, in which nothing is enumerated.
    pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites configured for enumeration"),
]

STEPS = 18
MEMBERS = 2
TOLERANCE = 1e-9  # of float64
CAPTURED_TOLERANCE = 1e-7  # the learning rate of captured steps is a tensor in float32
# One of each loss, of which the last has two trainers with one optimiser.
QUICK = {"eight schools", "vae, Renyi", "vae, mean field", "ss_vae"}
# What the values of tensors decide cannot be compiled, and is an error that says so.
NOT_TRACED = {
    "dmm": "read by Python are the usual causes; use compile=False",
    "dmm, flows": "read by Python are the usual causes; use compile=False",  # the flow's own order of dimensions
    "lda": "Namespace; .* functools.partial",
}
# ClippedAdam keeps its step in Python, and a mask that is used as indices is read on the host.
NOT_CAPTURED = {name for name in EXAMPLES if name == "cvae" or name.startswith(("dmm", "lda"))}
NOT_STACKED = {
    "cvae": "index_put_.* train the members by FastSVI",
    "dmm": "rnn_relu.* train the members by FastSVI",
    "dmm, flows": "train the members by FastSVI",
    "eight schools": "in Pyro's store, .* make them parameters of a module",
    "lda, all documents": "in Pyro's store, .* make them parameters of a module",
}


def rows(names: Any, quick: Any = QUICK) -> list[Any]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are traced, but what would be compiled runs as it is: with the random numbers of ``SVI``."""
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", lambda graph, *_, **__: graph)


def start(name: str) -> Example:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    return EXAMPLES[name]()


def loop(example: Example, trainers: list[Any], **options: Any) -> Tensor:
    """The losses of the example's own loop."""
    pyro.set_rng_seed(1)
    losses = []
    for i in range(STEPS):
        which, args, kwargs = example.calls[i % len(example.calls)]
        losses.append(torch.as_tensor(trainers[which].step(*args, **kwargs, **options)).detach().clone())
    return torch.stack(losses)


def train(kind: Any, name: str, **options: Any) -> dict[str, Tensor]:
    """Losses and final parameters."""
    example = start(name)
    losses = loop(example, [kind(model, guide, example.optim, loss, **options) for model, guide, loss in example.pairs])
    found = {key: p.detach().clone() for key, p in pyro.get_param_store().named_parameters()}
    return found | {"losses": losses}


def follows(name: str, tolerance: float = TOLERANCE, **options: Any) -> None:
    expected, actual = train(SVI, name), train(FastSVI, name, **options)
    assert actual.keys() == expected.keys()
    assert len(expected["losses"].unique()) > STEPS // 3
    for key, value in expected.items():
        same(actual[key], value, tolerance)


@pytest.mark.parametrize("name", rows(EXAMPLES))
def test_steps(name: str) -> None:
    follows(name)


@pytest.mark.parametrize("name", rows([name for name in EXAMPLES if name not in NOT_TRACED], {"eight schools"}))
def test_traced_steps(name: str, traced: None) -> None:
    follows(name, compile=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vae", "cvae, masked", "ss_vae"])
def test_compiled_steps(name: str) -> None:
    with torch._inductor.config.patch(fallback_random=True):
        follows(name, compile=True)


@pytest.mark.slow
def test_compiled_steps_of_independent_draws() -> None:
    """Compiled code takes them in an order of its own: not the numbers of ``SVI``, but their distribution."""

    def trainer(**options: Any) -> tuple[FastSVI, Any]:
        example = start("eight schools")
        ((model, guide, loss),) = example.pairs
        return FastSVI(model, guide, example.optim, loss, **options), example.calls[0][1]

    def ends(svi: FastSVI, args: Any) -> Tensor:
        """Losses and final parameters of runs from the same state, a row each."""
        found = []
        for _ in range(runs):
            svi.load_state_dict(state)
            losses = torch.stack([torch.as_tensor(svi.step(*args)).detach().clone() for _ in range(STEPS)])
            found.append(torch.cat([losses, *(p.detach().flatten() for p in svi.named_parameters().values())]))
        return torch.stack(found)

    runs = 200
    svi, args = trainer()
    svi.step(*args)
    state = svi.state_dict()
    expected = ends(svi, args)
    actual = ends(*trainer(compile=True))
    assert expected.shape == actual.shape == (runs, STEPS + 20)
    error = ((actual.var(0) + expected.var(0)) / runs).sqrt()
    assert ((actual.mean(0) - expected.mean(0)).abs() < 4.5 * error).all()
    assert ((actual.var(0) / expected.var(0)).log().abs() < 4.5 * (4 / runs) ** 0.5).all()


@pytest.mark.parametrize("name", rows([name for name in EXAMPLES if name not in NOT_CAPTURED], {"ss_vae"}))
def test_captured_steps(name: str, replayed: None) -> None:
    follows(name, CAPTURED_TOLERANCE, capture=True)


@pytest.mark.parametrize("name", rows(NOT_TRACED, {"lda", "dmm"}))
def test_what_cannot_be_compiled_is_an_error(name: str, traced: None) -> None:
    with pytest.raises(ValueError, match=f"(?s){NOT_TRACED[name]}"):
        train(FastSVI, name, compile=True)


def ensemble(name: str, **options: Any) -> tuple[EnsembleSVI, list[Example]]:
    examples = [start(name)] + [EXAMPLES[name]() for _ in range(1, MEMBERS)]
    pairs = [example.pairs[0][:2] for example in examples]
    return EnsembleSVI(pairs, examples[0].optim, examples[0].pairs[0][2], **options), examples


STACKED = ["vae", "vae, mean field", "vae, Renyi", "cvae, masked", "dmm, padded", "dmm, mean field"]
STACKED += ["ss_vae, without the auxiliary loss"]


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("name", rows(STACKED, set()))
def test_members_of_an_ensemble(name: str, compile: bool, traced: None) -> None:
    """Each as it is trained alone; all draw the same noise."""
    svi, (first, *_) = ensemble(name, randomness="same", compile=compile)
    together = loop(first, [svi], shared=True)
    _, alone = ensemble(name)
    for i, example in enumerate(alone):
        pyro.clear_param_store()
        model, guide, loss = example.pairs[0]
        own = FastSVI(model, guide, example.optim, loss)
        same(together[:, i], loop(first, [own]), TOLERANCE)
        for key, tensor in own.named_parameters().items():
            same(svi.parameters[key][i], tensor, TOLERANCE)


@pytest.mark.parametrize("name", rows(NOT_STACKED, {"eight schools", "dmm"}))
def test_what_cannot_be_one_ensemble_is_an_error(name: str) -> None:
    svi, (first, *_) = ensemble(name)
    with pytest.raises(ValueError, match=f"(?s){NOT_STACKED[name]}"):
        loop(first, [svi], shared=True)


def test_members_belong_to_one_ensemble() -> None:
    """Of two, the second would take the parameters of the first along."""
    members = [VAE(), VAE()]
    pairs = [(m.model, m.guide) for m in members]
    first, second = (EnsembleSVI(pairs, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO()) for _ in range(2))
    x = images(16)[0]
    first.step(x, shared=True)
    first.step(x, shared=True)
    second.step(x, shared=True)
    with pytest.raises(ValueError, match="no longer a part of the ensemble: another EnsembleSVI"):
        first.step(x, shared=True)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_networks_of_an_ensemble(kind: Any) -> None:
    class Recurrent(VAE):
        def __init__(self) -> None:
            super().__init__()
            self.network = kind(14, 14, num_layers=2, bidirectional=True)

        def guide(self, x: Tensor) -> None:
            pyro.module("network", self.network)
            super().guide(self.network(x)[0][..., :14])

    members = [Recurrent(), Recurrent()]
    x = images(16)[0]
    svi = EnsembleSVI([(m.model, m.guide) for m in members], pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    # The first step compares every member with itself alone.
    before = members[1].network.weight_hh_l0.detach().clone()
    svi.step(x, shared=True)
    assert (members[1].network.weight_hh_l0 != before).any()
