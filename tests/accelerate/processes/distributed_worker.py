"""Trains in several processes, for ``test_distributed.py``: ``python distributed_worker.py WORLD FOLDER``.

One program that imports once and then forks, because importing takes longer than all of the training.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.distributed
import torch.multiprocessing as mp
from pyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import DistributedSVI, DReG_ELBO, FastSVI
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE
from pyro_hyperbolic.nn import Covariates, Embedding, OneHot

DATA = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
# The last one leaves processes without data.
SIZES = (7, 8, 6, 1)
Programs = Any  # a model and a guide


class WithGlobal(torch.nn.Module):
    """A latent of each datum and one of all of them, and a parameter that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = torch.nn.Parameter(torch.zeros(2))
        self.log_scale = torch.nn.Parameter(torch.zeros(2))
        self.idle = torch.nn.Parameter(torch.zeros(3))
        self.encoder = torch.nn.Linear(5, 1)

    def model(self, x: Tensor, data_size: int | None = None) -> None:
        centre = pyro.sample("centre", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        size = len(x) if data_size is None else data_size
        with pyro.plate("rows", size, subsample=torch.arange(len(x))):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(centre.sum() + z.unsqueeze(-1), 1.0).expand([len(x), 5]).to_event(1), obs=x)

    def guide(self, x: Tensor, data_size: int | None = None) -> None:
        pyro.module("programs", self)
        pyro.sample("centre", dist.Normal(self.loc, self.log_scale.exp()).to_event(1))
        size = len(x) if data_size is None else data_size
        with pyro.plate("rows", size, subsample=torch.arange(len(x))):
            pyro.sample("z", dist.Normal(self.encoder(x).squeeze(-1), 0.5))


def vae(distribution: str) -> Callable[[], Any]:
    if distribution == "euclidean":
        return lambda: EuclideanVAE(2, 5, hidden_dim=4, likelihood="normal")
    return lambda: HyperbolicVAE(
        PoincareBall(0.7), 2, 5, hidden_dim=4, likelihood="normal", prior=distribution, posterior=distribution
    )


class Counts(HyperbolicVAE):
    """Counts, made of the data, with covariates and size factors."""

    def __init__(self) -> None:
        covariates = Covariates(batch=OneHot(2), donor=Embedding(3, 2))
        options = {"hidden_dim": 4, "likelihood": "negative_binomial", "covariates": covariates, "beta": 0.5}
        super().__init__(PoincareBall(0.7), 2, 5, **options)

    def model(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().model(x.exp().round(), *args, **kwargs)

    def guide(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().guide(x.exp().round(), *args, **kwargs)


def several(loss: type, count: int, **options: Any) -> Callable[[], Any]:
    return lambda: loss(num_particles=count, vectorize_particles=True, max_plate_nesting=1, **options)


EXTRA = {
    "covariates": {"batch": torch.arange(8) % 2, "donor": torch.arange(8) % 3},
    "size_factors": 0.5 + torch.arange(8) / 8,
}
CLIPPED = {"lr": 1e-2}, {"clip_norm": 1.0}
# Name to programs, loss, what the steps are given besides, and the plate.
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], dict[str, Any], str]] = {
    "wrapped": (vae("wrapped"), Trace_ELBO, {}, "data"),
    "riemannian, particles": (vae("riemannian"), several(Trace_ELBO, 3), {"data_size": 100}, "data"),
    "riemannian, importance-weighted": (vae("riemannian"), several(RenyiELBO, 3, alpha=0), {}, "data"),
    "wrapped, doubly reparametrised": (vae("wrapped"), several(DReG_ELBO, 3), {"data_size": 50}, "data"),
    "euclidean, mean field": (vae("euclidean"), lambda: TraceMeanField_ELBO(num_particles=2), {}, "data"),
    "counts with covariates": (Counts, Trace_ELBO, EXTRA | {"data_size": 30}, "data"),
    "global latent": (WithGlobal, Trace_ELBO, {"data_size": 40}, "rows"),
}


def start(name: str, trainer: Callable[..., Any], **options: Any) -> tuple[Any, Any]:
    """The programs of a case and their trainer."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    programs, loss, _, _ = CASES[name]
    module = programs()
    return module, trainer(module.model, module.guide, pyro.optim.Adam(*CLIPPED), loss(), **options)


def train(name: str, trainer: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Losses and parameters after a few steps."""
    module, svi = start(name, trainer, **options)
    losses = [float(svi.step(DATA[:size], **extra(name, size))) for size in SIZES]
    state = {key: value.detach().clone() for key, value in module.state_dict().items()}
    return {"losses": losses, "state": state, "noise": torch.rand(3)}


def extra(name: str, size: int) -> dict[str, Any]:
    """What the steps are given besides, for some rows."""
    return tree_map_only(Tensor, lambda t: t[:size], CASES[name][2])


def cases(rank: int) -> dict[str, Any]:
    return {name: train(name, DistributedSVI, plate=CASES[name][3]) for name in CASES}


def begun_differently(rank: int) -> dict[str, Any]:
    """Other parameters and random numbers in each process: those of the first one count."""

    def build(*args: Any) -> DistributedSVI:
        if rank:
            for parameter in args[0].__self__.parameters():
                parameter.data.add_(0.01 * rank)
            torch.rand(rank)
        return DistributedSVI(*args)

    return train("wrapped", build)


def resumed(rank: int) -> dict[str, Any]:
    module, svi = start("wrapped", DistributedSVI)
    losses = [float(svi.step(DATA[:size])) for size in SIZES[:2]]
    state, rng = svi.state_dict(), torch.get_rng_state()
    module, svi = start("wrapped", DistributedSVI)
    svi.load_state_dict(state)
    torch.set_rng_state(rng)
    losses += [float(svi.step(DATA[:size])) for size in SIZES[2:]]
    return {"losses": losses, "state": {key: value.clone() for key, value in module.state_dict().items()}}


def drifted(rank: int) -> dict[str, Any]:
    """One process draws by itself: an error, unless the others take over its generator."""
    _, svi = start("wrapped", DistributedSVI)
    svi.step(DATA)
    for repair in (True, False):
        if rank == 0:
            torch.rand(1)
        if repair:
            svi.synchronize()
            svi.step(DATA)
    try:
        svi.step(DATA)
    except ValueError as error:
        return {"error": str(error)}
    return {}


def evaluated(rank: int) -> dict[str, Any]:
    _, svi = start("wrapped", DistributedSVI)
    before = svi.evaluate_loss(DATA[:7])
    svi.step(DATA)
    state = torch.get_rng_state()
    after = svi.evaluate_loss(DATA[:7])
    estimates, errors = svi.log_marginal_likelihood(DATA.repeat(40, 1)[:301], num_samples=200, standard_error=True)
    _, svi = start("counts with covariates", DistributedSVI)
    svi.step(DATA, **EXTRA)
    counts = svi.log_marginal_likelihood(DATA, num_samples=2000, standard_error=True, **EXTRA)
    return {
        "before": before,
        "after": after,
        "estimates": estimates,
        "errors": errors,
        "rng": state,
        "counts": torch.stack(counts),
    }


class Small(torch.nn.Module):
    """A latent of each datum, a layer that only some steps use, and room for what cannot be shared."""

    def __init__(self, layer: Callable[[], torch.nn.Module] = torch.nn.Tanh) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(5, 4), layer(), torch.nn.Linear(4, 4))
        self.decoder, self.extra = torch.nn.Linear(2, 5), torch.nn.Linear(2, 5)

    def model(self, x: Tensor, extra: bool | Callable[[Tensor], bool] = False) -> None:
        pyro.module("decoder", self.decoder)
        pyro.module("extra", self.extra)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            mean = self.decoder(z)
            if extra(x) if callable(extra) else extra:
                mean = mean + self.extra(z)
            pyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor, extra: Any = False) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", len(x)):
            loc, log_scale = self.encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


def small(seed: int = 0, **options: Any) -> Small:
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    return Small(**options)


def with_factor(plate: str | None) -> Programs:
    module = small()

    def model(x: Tensor) -> None:
        module.model(x)
        # So small that it is lost in the loss.
        size = 1e-6 * module.decoder(x[:, :2]).square().sum(-1)
        if plate is None:
            pyro.factor("penalty", -size.sum())
        else:
            with pyro.plate(plate, len(x)):
                pyro.factor("penalty", -size)

    return model, module.guide


def scaled() -> Programs:
    module = small()
    return tuple(lambda x, p=p: pyro.poutine.scale(p, 1 / len(x))(x) for p in (module.model, module.guide))


def centred() -> Programs:
    module = small()
    return module.model, lambda x: module.guide(x - x.mean(0))


def noisy() -> Programs:
    module = small()
    return module.model, lambda x: module.guide(x + 0.1 * torch.randn_like(x))


def with_layer(layer: Callable[[], torch.nn.Module]) -> Programs:
    module = small(layer=layer)
    return module.model, module.guide


def lazy() -> Programs:
    small()

    def model(x: Tensor) -> None:
        centre = pyro.sample("centre", dist.Normal(torch.zeros(5), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(centre, 1.0).to_event(1), obs=x)

    return model, AutoNormal(model)


def local() -> Programs:
    """Parameters of each datum."""
    small()

    def model(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z.unsqueeze(-1), 1.0).expand([len(x), 5]).to_event(1), obs=x)

    guide = AutoNormal(model)
    guide(DATA)
    pyro.clear_param_store()
    return model, guide


# What cannot be shared, and what the error says of it.
REFUSED: dict[str, tuple[Callable[[], Programs], str]] = {
    "factor outside": (lambda: with_factor(None), "site 'penalty' has the density"),
    "factor in another plate": (lambda: with_factor("rows"), "site 'penalty' has the density"),
    "scaled": (scaled, "scaled by its length"),
    "centred": (centred, "site 'z' has the density"),
    "noisy": (noisy, "random numbers are drawn apart from sample sites"),
    "batchnorm": (lambda: with_layer(lambda: torch.nn.BatchNorm1d(4)), "(here BatchNorm1d in training mode)"),
    "dropout": (lambda: with_layer(torch.nn.Dropout), "(here Dropout in training mode)"),
    "lazy guide": (lazy, "run the guide once on a batch before the first step"),
    "parameters of data": (local, "it must run over the data"),
}


def message(work: Callable[[], Any]) -> str:
    """The error of something that has one."""
    try:
        work()
    except ValueError as error:
        return str(error)
    return ""


def refused(rank: int) -> dict[str, Any]:
    """Errors in all processes at once, in every step that is tried."""
    found = {}
    for name, (programs, _) in REFUSED.items():
        svi = DistributedSVI(*programs(), pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO())
        state = torch.get_rng_state()
        found[name] = message(lambda svi=svi: svi.step(DATA))
        if name != "lazy guide":  # it has been run then
            assert message(lambda svi=svi: svi.step(DATA)) == found[name]
        assert torch.equal(torch.get_rng_state(), state)
    return found


# In which steps the layer takes part.
PATTERNS = {"late": (False, False, True, True), "early": (True, False, False, True)}


def train_small(trainer: Callable[..., Any], pattern: tuple[bool, ...]) -> dict[str, Any]:
    module = small()
    svi = trainer(module.model, module.guide, pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO())
    losses = [float(svi.step(DATA[:7], extra=extra)) for extra in pattern]
    return {"losses": losses, "state": {key: value.clone() for key, value in module.state_dict().items()}}


def parameters_now_and_then(rank: int) -> dict[str, Any]:
    return {name: train_small(DistributedSVI, pattern) for name, pattern in PATTERNS.items()}


def apart(rank: int) -> dict[str, Any]:
    """What one process alone does: another parameter, a new one, a failure, another batch, another module."""
    found = {}

    def begun(module: Any) -> Any:
        svi = DistributedSVI(module.model, module.guide, pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO())
        svi.step(DATA)
        return svi

    def fails(x: Tensor) -> bool:
        if rank == 1:
            raise KeyError("mine")
        return False

    module = small()
    svi = begun(module)
    found["parameter"] = message(lambda: svi.step(DATA, extra=lambda x: rank == 1))
    try:
        found["failure"] = message(lambda: svi.step(DATA, extra=fails))
    except KeyError as error:
        found["failure"] = repr(error)
    # Nothing but the generators has changed meanwhile.
    svi.synchronize()
    found["then"] = float(svi.step(DATA))
    new = torch.nn.Linear(1, 1)

    def uses_new(x: Tensor) -> bool:
        pyro.module("new", new)
        return False

    found["new"] = message(lambda: svi.step(DATA, extra=uses_new))
    module = small()
    found["late factor"] = message(lambda: begun(module).step(DATA, extra=lambda x: bool(pyro.factor("f", x.sum()))))
    svi = DistributedSVI(module.model, module.guide, pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO())
    found["batch"] = message(lambda: svi.step(DATA + rank))
    module = small()
    if rank == 1:
        module.decoder = torch.nn.Linear(2, 5, bias=False)
    svi = DistributedSVI(module.model, module.guide, pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO())
    found["module"] = message(lambda: svi.step(DATA))
    return found


SCENARIOS = [cases, begun_differently, resumed, drifted, evaluated, refused, parameters_now_and_then, apart]


def work(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", world)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    result: dict[str, Any] = {}
    for scenario in SCENARIOS:
        try:
            result[scenario.__name__] = scenario(rank)
        except Exception:
            result[scenario.__name__] = {"failed": traceback.format_exc()}
            break  # the processes are no longer in step
    torch.save(result, Path(folder, f"{rank}.pt"))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in ("wrapped", "riemannian, particles"):
        train(name, FastSVI)  # what is imported and computed at the first use, once for all
    mp.start_processes(work, (int(sys.argv[1]), sys.argv[2]), nprocs=int(sys.argv[1]), start_method="fork")
