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
from torch import Tensor

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import DistributedSVI, DReG_ELBO, FastSVI
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE

DATA = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
# The last one leaves processes without data.
SIZES = (7, 8, 6, 1)


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


def vae(law: str) -> Callable[[], Any]:
    if law == "euclidean":
        return lambda: EuclideanVAE(2, 5, hidden_dim=4, likelihood="normal")
    return lambda: HyperbolicVAE(PoincareBall(0.7), 2, 5, hidden_dim=4, likelihood="normal", prior=law, posterior=law)


def several(loss: type, count: int, **options: Any) -> Callable[[], Any]:
    return lambda: loss(num_particles=count, vectorize_particles=True, max_plate_nesting=1, **options)


CLIPPED = {"lr": 1e-2}, {"clip_norm": 1.0}
# Name to programs, loss, what the steps are given besides, and the plate.
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], dict[str, Any], str]] = {
    "wrapped": (vae("wrapped"), Trace_ELBO, {}, "data"),
    "riemannian, particles": (vae("riemannian"), several(Trace_ELBO, 3), {"data_size": 100}, "data"),
    "riemannian, importance-weighted": (vae("riemannian"), several(RenyiELBO, 3, alpha=0), {}, "data"),
    "wrapped, doubly reparametrised": (vae("wrapped"), several(DReG_ELBO, 3), {"data_size": 50}, "data"),
    "euclidean, mean field": (vae("euclidean"), lambda: TraceMeanField_ELBO(num_particles=2), {}, "data"),
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
    losses = [float(svi.step(DATA[:size], **CASES[name][2])) for size in SIZES]
    state = {key: value.detach().clone() for key, value in module.state_dict().items()}
    return {"losses": losses, "state": state, "noise": torch.rand(3)}


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
    estimates, errors = svi.log_marginal_likelihood(DATA.repeat(40, 1)[:301], 200, standard_error=True)
    return {"before": before, "after": after, "estimates": estimates, "errors": errors, "rng": state}


SCENARIOS = [cases, begun_differently, resumed, drifted, evaluated]


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
