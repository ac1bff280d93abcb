"""Faster inference for any Pyro program, of whatever latents: trainers, a sampler, estimates, processes, files.

Nothing here knows a manifold. Of the rest of the package it imports small checks of arguments alone. Its rooms, of
which each imports only those before it:

``compiler``
    torch's compiler, and what we change of it.
``programs``
    a model and a guide as functions of their parameters, and compiled code of them.
``bounds``
    losses as tensors, and estimates of the marginal likelihood.
``trainers``
    :class:`FastSVI`, :class:`EnsembleSVI` and :class:`Minibatches`.
``processes``
    :class:`DistributedSVI`.

Beside them are ``fast_nuts``, ``hmc`` and ``checkpoint``. Others register here what they know of their own
distributions: checks of model and guide by :func:`register_check`, and losses by :func:`register_loss`.
"""

from pyro_hyperbolic.accelerate.bounds.marginal import log_marginal_likelihood
from pyro_hyperbolic.accelerate.bounds.tensor_elbo import register_loss
from pyro_hyperbolic.accelerate.checkpoint import load_checkpoint, save_checkpoint
from pyro_hyperbolic.accelerate.fast_nuts import FastNUTS
from pyro_hyperbolic.accelerate.processes.distributed import DistributedSVI
from pyro_hyperbolic.accelerate.processes.group import TorchrunProcess, call_on_sigterm, process_group, torchrun_process
from pyro_hyperbolic.accelerate.programs.checks import register_check
from pyro_hyperbolic.accelerate.trainers.ensemble import EnsembleSVI
from pyro_hyperbolic.accelerate.trainers.fast_svi import FastSVI
from pyro_hyperbolic.accelerate.trainers.minibatch import Minibatches

__all__ = [
    "DistributedSVI",
    "EnsembleSVI",
    "FastNUTS",
    "FastSVI",
    "Minibatches",
    "TorchrunProcess",
    "call_on_sigterm",
    "load_checkpoint",
    "log_marginal_likelihood",
    "process_group",
    "register_check",
    "register_loss",
    "save_checkpoint",
    "torchrun_process",
]
