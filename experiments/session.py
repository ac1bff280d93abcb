"""Training of the ensembles of a sweep: where, how, and from which checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.infer import Trace_ELBO
from torch import nn

from experiments.job import Job
from experiments.progress import Progress
from experiments.store import RunStore
from pyro_hyperbolic.accelerate.programs.isolation import isolated
from pyro_hyperbolic.infer import EnsembleSVI, load_checkpoint, save_checkpoint

_NEVER = 1 << 60


@dataclass
class Session:
    """What the experiments need of the machine.

    :param store: of the results.
    :param device: where to compute.
    :param compile: compile the steps; worth its minute on a GPU, for long trainings.
    :param progress: is told of every epoch.
    :param checkpoint_seconds: between two checkpoints of an ensemble.
    """

    store: RunStore
    device: torch.device
    compile: bool
    progress: Progress
    checkpoint_seconds: float

    def train(
        self,
        jobs: Sequence[Job],
        members: Sequence[Any],
        epoch: Callable[[int], Iterable[Any]],
        num_epochs: int,
        learning_rate: float | Sequence[float],
    ) -> EnsembleSVI:
        """Train members with Adam on the ELBO, from the checkpoint of these jobs if there is one.

        :param epoch: the batches of an epoch by its number, from 1 on; a batch is what
            :meth:`EnsembleSVI.run` takes, with one part per member.
        :param learning_rate: of all members, or of each.
        """
        pyro.clear_param_store()
        pairs = [(member.model, member.guide) for member in members]
        rates = list(learning_rate) if isinstance(learning_rate, Sequence) else None
        optim = pyro.optim.Adam({"lr": rates[0] if rates else learning_rate})
        # A member that diverges is reported as such at the end; it must not stop the others.
        svi = EnsembleSVI(pairs, optim, Trace_ELBO(), learning_rates=rates, compile=self.compile, validate_every=_NEVER)
        path = self.store.checkpoint_path(jobs)
        done = 0
        if path.exists():
            state = load_checkpoint(path, map_location=self.device)
            svi.load_state_dict(state["ensemble"])
            done = state["epoch"]
        else:
            pyro.set_rng_seed(jobs[0].seed)
        label = describe(jobs)
        self.progress.advance(done * len(jobs), label)
        start = saved = time.monotonic()
        for number in range(done + 1, num_epochs + 1):
            svi.run(epoch(number))
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.progress.advance(len(jobs), label)
            # Once more at the end of a long training, because the evaluation takes its time too.
            since = start if number == num_epochs else saved
            if time.monotonic() - since >= self.checkpoint_seconds:
                save_checkpoint({"ensemble": svi.state_dict(), "epoch": number}, path)
                saved = time.monotonic()
        if done == num_epochs:
            # All that is left is the evaluation, for which the ensemble must be set up.
            with isolated():
                on_batch(svi.evaluate_loss, next(iter(epoch(num_epochs))))
        return svi

    def negative_iwae(self, svi: EnsembleSVI, data: Any, num_samples: int, *, shared: bool) -> list[dict[str, Any]]:
        """The negative IWAE estimate of every member, averaged over the data, with its Monte Carlo error.

        :param data: a tensor, or a dictionary of keywords of the programs.
        """
        estimates, errors = on_batch(
            svi.log_marginal_likelihood,
            data,
            num_samples=num_samples,
            shared=shared,
            standard_error=True,
            compile=self.compile,
        )
        count = estimates.shape[-1]
        means = (-estimates.mean(-1)).tolist()
        noise = (errors.square().sum(-1).sqrt() / count).tolist()
        return [{"negative_iwae": mean, "standard_error": error} for mean, error in zip(means, noise, strict=True)]

    def save_model(self, job: Job, member: nn.Module) -> None:
        """Keep the parameters of a trained model for the experiments that start from it."""
        state = {name: value.detach().cpu().clone() for name, value in member.state_dict().items()}
        save_checkpoint({"model": state, "identity": job.identity()}, self.store.model_path(job))

    def load_model(self, job: Job, member: nn.Module) -> None:
        """Put the parameters of a trained model into one of the same structure."""
        load_model(self.store, job, member, self.device)


def load_model(store: RunStore, job: Job, member: nn.Module, device: torch.device) -> None:
    """Put the parameters of a trained model into one of the same structure on a device."""
    path = store.model_path(job)
    if not path.exists():
        raise ValueError(
            f"the parameters of {job.experiment.command}, {job.cell.name}, seed {job.seed}, are not in {path}, although"
            " the run is finished; copy the folder models too, or train it again in another results folder."
        )
    # The generators of the run that wrote the file are not those of this one.
    with isolated():
        state = load_checkpoint(path, map_location=device)
    member.load_state_dict(state["model"])


def on_batch(function: Callable[..., Any], batch: Any, **options: Any) -> Any:
    """Call a function with a batch: a tensor, several, or a dictionary of keywords."""
    if isinstance(batch, dict):
        return function(**batch, **options)
    return function(*(batch if isinstance(batch, (tuple, list)) else (batch,)), **options)


def describe(jobs: Sequence[Job]) -> str:
    """A few words on a group of jobs."""
    names = list(dict.fromkeys(job.cell.name for job in jobs))
    text = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"{text} ({len(jobs)} runs)"
