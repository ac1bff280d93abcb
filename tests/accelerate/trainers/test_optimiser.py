"""The optimiser of the fast trainers is Pyro's, with all that users do to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor, nn
from torch.distributions import constraints

from pyro_hyperbolic.infer import EnsembleSVI, FastSVI
from tests.accelerate.nets import Net, adam, losses, trainer
from tests.helpers import same

pytestmark = pytest.mark.usefixtures("double")


def scheduled(name: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        return getattr(pyro.optim, name)({"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}} | options)

    return build


OPTIMISERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: adam(lr=0.1),
    "ClippedAdam": lambda: pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.9}),
    "SGD": lambda: pyro.optim.SGD({"lr": 0.01, "momentum": 0.9}),
    "RMSprop": lambda: pyro.optim.RMSprop({"lr": 0.01}),
    "Adagrad": lambda: pyro.optim.Adagrad({"lr": 0.1, "initial_accumulator_value": 1.0}),
    "ExponentialLR": scheduled("ExponentialLR", gamma=0.7),
    "MultiStepLR": scheduled("MultiStepLR", milestones=[2, 4], gamma=0.5),
    "CosineAnnealingLR": scheduled("CosineAnnealingLR", T_max=5),
    "ReduceLROnPlateau": scheduled("ReduceLROnPlateau", factor=0.5, patience=0),
}


def advance(optim: Any, loss: Any) -> None:
    """One step of the schedule, where there is one."""
    if isinstance(optim, pyro.optim.PyroLRScheduler):
        optim.step(*([float(loss)] if "Plateau" in optim.pt_scheduler_constructor.__name__ else []))


def bare(x: Tensor) -> tuple[Any, Any]:
    def model(x: Tensor) -> None:
        scale = pyro.param("x_scale", torch.tensor(1.0), constraint=constraints.positive)
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(pyro.sample("z", dist.Normal(0.0, 1.0)), scale), obs=x[:, 0])

    def guide(x: Tensor) -> None:
        loc = pyro.param("z_loc", torch.tensor(0.0))
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(loc, pyro.param("z_scale", torch.tensor(2.0), constraints.positive)))

    return model, guide


class TestCheckpoints:
    """``optim.save`` and the parameter store are all that a run goes on from, as with ``SVI``."""

    @pytest.mark.parametrize("optim", OPTIMISERS)
    def test_run_goes_on(self, x, tmp_path: Path, optim: str) -> None:
        def run(svi: Any, optimiser: Any, steps: int) -> list[Any]:
            seen = []
            for _ in range(steps):
                loss = float(svi.step(x))
                advance(optimiser, loss)
                seen.append([loss, *[p.item() for _, p in sorted(store.named_parameters())]])
            return seen

        store = pyro.get_param_store()
        programs, optimiser = bare(x), OPTIMISERS[optim]()
        pyro.set_rng_seed(0)
        expected = run(SVI(*programs, optimiser, Trace_ELBO()), optimiser, 9)

        for first, second in [(FastSVI, FastSVI), (FastSVI, SVI), (SVI, FastSVI)]:
            store.clear()
            optimiser = OPTIMISERS[optim]()
            pyro.set_rng_seed(0)
            actual = run(first(*programs, optimiser, Trace_ELBO()), optimiser, 5)
            store.save(tmp_path / "store.pt")
            optimiser.save(tmp_path / "optim.pt")
            store.clear()
            store.load(tmp_path / "store.pt")
            optimiser = OPTIMISERS[optim]()
            optimiser.load(tmp_path / "optim.pt")
            actual += run(second(*programs, optimiser, Trace_ELBO()), optimiser, 4)
            same(torch.tensor(actual), torch.tensor(expected), 1e-9)

    def test_state_is_that_of_svi(self, x) -> None:
        states = []
        for kind in (SVI, FastSVI):
            optim = adam()
            losses(trainer(kind, Net(), optim), x)
            states.append(optim.get_state())
        assert states[0].keys() == states[1].keys()
        assert len(states[0]) == 6
        for name, state in states[0].items():
            assert states[1][name]["param_groups"] == state["param_groups"]
            for key, value in state["state"][0].items():
                same(states[1][name]["state"][0][key], value, 1e-9)

    def test_ensemble_refuses(self, x) -> None:
        """Under the names of its parameters there would be stacks of all members, or nothing."""
        optim = scheduled("ExponentialLR", gamma=0.5)()
        nets = [Net(seed=i) for i in range(2)]
        svi = EnsembleSVI([(n.model, n.guide) for n in nets], optim, Trace_ELBO())
        svi.step(x, shared=True)
        optim.step()
        with pytest.raises(ValueError, match=r"state of an EnsembleSVI.*EnsembleSVI\.state_dict"):
            optim.get_state()


def change(svi: Any, optim: Any, step: int) -> None:
    """What users do in the middle of a run."""
    if step == 2:
        for one in optim.optim_objs.values():
            one.param_groups[0]["lr"] = 0.05
    if step == 4:
        first = min(optim.optim_objs, key=lambda p: p.numel())
        optim.optim_objs[first].param_groups[0]["lr"] = 0.2
    if step == 6:
        for one in optim.optim_objs.values():
            one.param_groups[0]["betas"] = (0.5, 0.9)
    if step == 8:
        svi.optim = pyro.optim.AdamW({"lr": 0.02, "weight_decay": 0.1})
    if step == 10:
        svi.optim = optim


class TestChanges:
    @pytest.mark.parametrize("options", [{}, {"capture": True}, {"compile": True}], ids=["eager", "capture", "compile"])
    def test_of_the_optimiser(self, x, replayed, monkeypatch, options: dict[str, Any]) -> None:
        monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", lambda graph, *_, **__: graph)
        runs = []
        for kind, own in ((SVI, {}), (FastSVI, options)):
            optim = adam()
            svi = trainer(kind, Net(), optim, **own)
            losses_ = []
            for step in range(13):
                change(svi, optim, step)
                losses_.append(torch.as_tensor(svi.step(x)))
            runs.append(torch.stack(losses_))
        same(runs[1], runs[0], 1e-6)

    def test_of_learning_rates_of_an_ensemble(self, x) -> None:
        def run(build: Callable[[Any], Any], **shared: Any) -> Tensor:
            optim = adam()
            svi = build(optim)
            out = []
            for step in range(6):
                if step == 3:
                    for one in optim.optim_objs.values():
                        one.param_groups[0]["lr"] = 0.3
                torch.manual_seed(step)
                out.append(torch.as_tensor(svi.step(x, **shared)).reshape(-1)[0])
            return torch.stack(out)

        def ensemble(optim: Any) -> Any:
            nets = [Net() for _ in range(2)]
            return EnsembleSVI([(n.model, n.guide) for n in nets], optim, Trace_ELBO(), randomness="same")

        same(run(ensemble, shared=True), run(lambda optim: trainer(FastSVI, Net(), optim)), 1e-9)

    @pytest.mark.parametrize("options", [{}, {"capture": True}, {"compile": True}], ids=["eager", "capture", "compile"])
    @pytest.mark.parametrize("event", ["assignment", "clear", "late", "number"])
    def test_of_the_parameters(self, x, replayed, monkeypatch, event: str, options: dict[str, Any]) -> None:
        """Values that are set in Pyro's store, a store that is cleared, a new parameter, an attribute that is read."""
        monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", lambda graph, *_, **__: graph)
        runs = []
        for kind, own in ((SVI, {}), (FastSVI, options)):
            pyro.clear_param_store()
            pyro.set_rng_seed(0)
            net = nn.Linear(3, 1)
            net.factor = 1.0

            def model(x: Tensor) -> None:
                with pyro.plate("data", len(x)):
                    z = pyro.sample("z", dist.Normal(0.0, 1.0))
                    pyro.sample("x", dist.Normal(z, pyro.param("noise", torch.tensor(1.0))), obs=x[:, 0])

            def guide(x: Tensor, late: bool = False, net: Any = net) -> None:
                pyro.module("net", net)
                scale = pyro.param("scale", torch.tensor(0.5), constraint=constraints.positive)
                shift = pyro.param("shift", torch.tensor(0.1)) if late else 0.0
                with pyro.plate("data", len(x)):
                    pyro.sample("z", dist.Normal(net.factor * net(x)[:, 0] + shift, scale))

            def flexible(x: Tensor, late: bool = False, model: Any = model) -> None:
                model(x)

            svi = kind(flexible, guide, adam(), Trace_ELBO(), **own)
            out = []
            for step in range(9):
                if step == 4 and event == "assignment":
                    pyro.get_param_store()["scale"] = torch.tensor(2.0)
                if step == 4 and event == "clear":
                    pyro.clear_param_store()
                if step == 4 and event == "number":
                    net.factor = 0.5
                late = event == "late" and step >= 4
                out.append(torch.as_tensor(svi.step(x, late=True) if late else svi.step(x)))
            stored = [p.detach().clone() for _, p in sorted(pyro.get_param_store().named_parameters())]
            runs.append([torch.stack(out), *stored])
        assert len(runs[0]) == len(runs[1])
        for actual, expected in zip(runs[1], runs[0], strict=True):
            same(actual, expected, 1e-6)


def test_trainers_that_share_an_optimiser(x) -> None:
    """As semi-supervised models do: two losses of one network."""
    runs = []
    for kind in (SVI, FastSVI):
        net, optim = Net(), scheduled("ExponentialLR", gamma=0.9)()
        first, second = trainer(kind, net, optim), trainer(kind, net, optim)
        out = []
        for _ in range(6):
            out += [torch.as_tensor(first.step(x)), torch.as_tensor(second.step(2 * x[:5]))]
            optim.step()
        runs.append(torch.stack(out))
    same(runs[1], runs[0], 1e-9)


def test_names_of_svi(x) -> None:
    results = []
    for kind in (SVI, FastSVI):
        net = Net()
        svi = trainer(kind, net)
        assert svi.num_samples == 0
        loss = svi.loss_and_grads(net.model, net.guide, x)
        results.append([torch.as_tensor(loss), net.decoder.weight.grad.clone()])
    for actual, expected in zip(results[1], results[0], strict=True):
        same(actual, expected, 1e-12)


def test_run_steps_on_every_batch(x) -> None:
    batches = [x, (x[:3],), {"x": x[3:]}]
    svi = trainer(FastSVI, Net())
    expected = torch.stack([svi.step(x), svi.step(x[:3]), svi.step(x[3:])])
    svi = trainer(FastSVI, Net())
    same(svi.run(batches), expected, 1e-12)
    assert svi.run([]).shape == (0,)


class TestOptimiser:
    @pytest.mark.parametrize(
        ("options", "error"),
        [({"learning_rate": 0.01}, TypeError), ({"clip_norm": 1.0}, TypeError), ({"lr": -0.01}, ValueError)],
    )
    def test_options_are_checked_as_by_svi(self, x, options, error):
        for kind in (SVI, FastSVI):
            with pytest.raises(error):
                trainer(kind, Net(), adam(**options)).step(x)

    @pytest.mark.parametrize("per_parameter", [False, True])
    def test_options_that_the_constructor_reads(self, x, per_parameter):
        def optim() -> Any:
            options = {"lr": 0.1, "initial_accumulator_value": 1.0}
            if not per_parameter:
                return pyro.optim.Adagrad(options)
            return pyro.optim.Adagrad(lambda name: options if "weight" in name else {"lr": 0.2})

        same(losses(trainer(FastSVI, Net(), optim()), x), losses(trainer(SVI, Net(), optim()), x), 1e-12)

    def test_networks_in_turn(self, x):
        """A parameter that has no gradient in a step goes on by its momentum, one that is not used rests."""

        def programs() -> tuple[Any, Any]:
            pyro.clear_param_store()
            pyro.set_rng_seed(0)
            nets = nn.Linear(3, 2), nn.Linear(3, 2)

            def model(x: Tensor, first: bool) -> None:
                with pyro.plate("data", len(x)):
                    z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
                    pyro.sample("x", dist.Normal(z, 1.0).to_event(1), obs=x[:, :2])

            def guide(x: Tensor, first: bool) -> None:
                pyro.module("a", nets[0])
                pyro.module("b", nets[1])
                scale = pyro.param("scale", torch.tensor(0.5)) if first else 0.5
                with pyro.plate("data", len(x)):
                    pyro.sample("z", dist.Normal(nets[0 if first else 1](x), scale).to_event(1))

            return model, guide

        runs = []
        for kind in (SVI, FastSVI):
            svi = kind(*programs(), adam(), Trace_ELBO())
            runs.append(torch.stack([torch.as_tensor(svi.step(x, i % 2 == 0)) for i in range(7)]))
        same(runs[1], runs[0], 1e-12)

    def test_state_of_parameters_in_another_order(self, x):
        def programs(first: str, second: str) -> tuple[Any, Any]:
            pyro.clear_param_store()

            def model(x: Tensor) -> None:
                with pyro.plate("data", len(x)):
                    pyro.sample("x", dist.Normal(pyro.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=x[:, 0])

            def guide(x: Tensor) -> None:
                values = {
                    name: pyro.param(name, torch.tensor(0.1 if name == "loc" else 1.0)) for name in (first, second)
                }
                with pyro.plate("data", len(x)):
                    pyro.sample("m", dist.Normal(values["loc"], values["scale"]))

            return model, guide

        pyro.set_rng_seed(0)
        svi = FastSVI(*programs("loc", "scale"), adam(), Trace_ELBO())
        losses(svi, x)
        state, generator = svi.state_dict(), torch.get_rng_state()
        expected = losses(svi, x)
        resumed = FastSVI(*programs("scale", "loc"), adam(), Trace_ELBO())
        resumed.load_state_dict(state)
        torch.set_rng_state(generator)
        same(losses(resumed, x), expected, 1e-12)

    def test_state_of_another_optimiser(self, x):
        svi = trainer(FastSVI, Net())
        svi.step(x)
        state = svi.state_dict()
        other = trainer(FastSVI, Net(), pyro.optim.SGD({"lr": 0.1}))
        other.load_state_dict(state)
        with pytest.raises(ValueError, match="the state belongs to another optimiser"):
            other.step(x)
