"""SVI over several processes, each with its share of every batch."""

from __future__ import annotations

import math
import zlib
from typing import Any

import pyro
import torch
import torch.distributed as dist
from pyro.infer import ELBO, RenyiELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pyro_hyperbolic.infer.aside import aside
from pyro_hyperbolic.infer.dreg import DReG_ELBO
from pyro_hyperbolic.infer.fast_svi import FastSVI, split_tensors
from pyro_hyperbolic.infer.functional import Parameters, Program, captured_parameters
from pyro_hyperbolic.infer.marginal import log_marginal_likelihood
from pyro_hyperbolic.infer.optimiser import Factory
from pyro_hyperbolic.infer.processes import lost_processes
from pyro_hyperbolic.infer.tensor_elbo import TensorLoss
from pyro_hyperbolic.infer.whole_batch import Rows, WholeBatch

_PIECE = 64  # data of each process between two exchanges of estimates
_LOOK_EVERY = 100  # steps between two looks at what lies on a GPU
_FINGERPRINT = (1 << 20) - 1


class DistributedSVI(FastSVI):
    r"""Trains one pair of programs in several processes, as one process would with the same batches and seed.

    Each process is given the whole batch and takes its rows :math:`R_r` of it. The ELBO is a sum over the data,

    .. math:: \mathcal{L} = \sum_r \sum_{i \in R_r} \mathcal{L}_i(\epsilon_i) ,

    so that losses and gradients are summed over the processes, whatever the sizes of their shares, and the noise
    :math:`\epsilon` is drawn for the whole batch in each of them. What is left of a difference to one process is the
    order of sums. The parameters must belong to modules; those of the first process are copied to the others
    (:class:`torch.nn.parallel.DistributedDataParallel`), and so is the state of torch's generator. All
    processes then have to draw the same random numbers: after work that only some of them did, call
    :meth:`synchronize`. A difference is found and raises an error. Noise that is drawn apart from sample sites, by
    dropout for example, is not that of one process.

    :param model: the model.
    :param guide: the guide, every site of which must be reparametrised.
    :param optim: as for :class:`FastSVI`.
    :param loss: as for :class:`FastSVI`; a function must be a sum over the data.
    :param plate: name of the plate that runs over the data.
    :param validate_every: how many steps lie between two validated evaluations.

    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.models import HyperbolicVAE
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> vae = HyperbolicVAE(PoincareBall(1.0), 2, 5, hidden_dim=8, likelihood="normal")
    >>> svi = DistributedSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 1e-3}), pyro.infer.Trace_ELBO())
    >>> svi.step(torch.randn(10, 5)).shape
    torch.Size([])
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        model: Program,
        guide: Program,
        optim: PyroOptim | Factory,
        loss: ELBO | TensorLoss,
        *,
        plate: str = "data",
        validate_every: int = 1000,
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "there is no process group: start the program with torchrun and open infer.process_group first."
            )
        if isinstance(loss, ELBO) and loss.vectorize_particles and loss.max_plate_nesting == math.inf:
            # Pyro would guess it by a run of the programs, whose noise would be that of a share.
            raise ValueError("give the loss max_plate_nesting, 1 if the plate of the data is the only one.")
        super().__init__(model, guide, optim, loss, capture=False, validate_every=validate_every)
        self.plate = plate
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._separable = not isinstance(loss, (RenyiELBO, DReG_ELBO))
        self._loss_of_rows = self.loss
        self.loss = self._own_loss
        self._module: nn.Module | None = None
        self._difference: Tensor | None = None

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One gradient step on the whole batch, which all processes are given; its loss as a 0-dim tensor.

        :param args: tensors whose first dimension runs over the batch, and whatever else the programs take.
        """
        with lost_processes():
            return super().step(*args, **kwargs)

    def evaluate_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of the whole batch as a 0-dim tensor, without a step."""
        with lost_processes():
            if self._module is None:
                (self._begin if self._pending is None else self._discover)(args, kwargs)
            return self._sum(super().evaluate_loss(*args, **kwargs))

    @torch.no_grad()
    def log_marginal_likelihood(self, data: Tensor, num_samples: int = 5000, **options: Any) -> Any:
        """IWAE estimates ``(N,)`` of data that all processes are given, each computing a share of them.

        :param options: as for :func:`log_marginal_likelihood`, and so is the value.
        """
        # The same number in all processes, and from it noise of its own in each.
        seed = int(torch.randint(1 << 62, ()))
        pieces = []
        with aside(), lost_processes():
            torch.manual_seed(seed + self.rank)
            # A few rows at a time, so that none waits long for another.
            for batch in data.split(_PIECE * self.world):
                rows = Rows.share(len(batch), self.rank, self.world)
                piece = torch.zeros(2, len(batch), dtype=torch.float64, device=data.device)
                if rows.count:
                    own = batch[rows.start : rows.stop]
                    result = log_marginal_likelihood(
                        self.model, self.guide, own, num_samples, **options | {"standard_error": True}
                    )
                    piece[:, rows.start : rows.stop] = torch.stack(result)
                dist.all_reduce(piece)
                pieces.append(piece)
        estimates, errors = torch.cat(pieces, -1)
        return (estimates, errors) if options.get("standard_error") else estimates

    def synchronize(self) -> None:
        """Give torch's generator in all processes the state that it has in the first one."""
        if self._parameters is None:
            raise ValueError("processes are synchronized by the first step; call synchronize after it.")
        state = _random_state(self._device).to(self._device)
        with lost_processes():
            dist.broadcast(state, 0)
        _set_random_state(state.cpu(), self._device)

    def _own_loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of the rows of this process."""
        inputs, rebuild = split_tensors(args, kwargs)
        sizes = {len(t) for t in inputs if t.dim()}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"the tensors must have one length, that of the batch, got {sorted(sizes)}.")
        (total,) = sizes
        rows = Rows.share(total, self.rank, self.world)
        own_args, own_kwargs = rebuild([t[rows.start : rows.stop] if t.dim() else t for t in inputs])
        with WholeBatch(self.plate, rows, self.world, self._separable) as batch:
            loss = self._loss_of_rows(model, guide, *own_args, **own_kwargs)
        if not batch.found:
            raise ValueError(f"the programs have no plate {self.plate!r}; name the one of the data by plate.")
        return loss

    def _first_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        self._begin(args, kwargs)
        return self._step(*args, **kwargs)

    def _discover(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begin(args, kwargs)
        try:
            self._apply_pending()
        except Exception:
            self._optimiser = None  # the next step must not go on without the state
            raise

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with aside(), torch.enable_grad(), captured_parameters(self.model, self.guide) as found:
            loss = self.loss(self.model, self.guide, *args, **kwargs)
        parameters: Parameters = found["parameters"]
        if parameters.without_module():
            raise ValueError(
                f"the parameters {parameters.without_module()} belong to no module; make them parameters of one."
            )
        self._set_up(parameters)
        # A parameter that the loss does not depend on has no gradient, for which the other processes would wait.
        tensors = [t for t in parameters.tensors.values() if t.requires_grad]
        gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
        used = [t for t, gradient in zip(tensors, gradients, strict=True) if gradient is not None]
        self._module = DistributedDataParallel(_Loss(self, used))
        self._difference = torch.zeros((), dtype=torch.float64, device=self._device)
        self.synchronize()

    def _step(self, *args: Any, **kwargs: Any) -> Tensor:
        assert self._parameters is not None
        assert self._optimiser is not None
        assert self._module is not None
        self._optimiser.zero_grad()
        with pyro.validation_enabled(False), self._parameters.only_these():
            loss = self._module(*args, **kwargs)
        # The gradients of the processes are averaged, and the loss is a sum.
        (self.world * loss).backward()
        self._optimiser.step()
        return self._sum(loss.detach())

    def _sum(self, loss: Tensor) -> Tensor:
        """The sum over the processes, who on this occasion compare their random numbers."""
        if self._difference is None:
            dist.all_reduce(loss)
            return loss
        number = zlib.crc32(_random_state(self._device).numpy().tobytes()) & _FINGERPRINT
        message = torch.stack([loss.double(), *loss.new_tensor([number, number**2], dtype=torch.float64)])
        dist.all_reduce(message)
        # By Cauchy and Schwarz zero if and only if all numbers are the same; all these integers are exact.
        difference = self.world * message[2] - message[1].square()
        self._difference = torch.maximum(self._difference, difference)
        if (self._device.type == "cpu" or self.steps % _LOOK_EVERY == 0) and self._difference.item() > 0:
            raise ValueError(
                "the processes have drawn different random numbers; call synchronize() after work that only some do."
            )
        return message[0].to(loss.dtype)


class _Loss(nn.Module):
    """The loss as a module, whose parameters are those that DistributedDataParallel is to look after."""

    def __init__(self, svi: DistributedSVI, parameters: list[Tensor]) -> None:
        super().__init__()
        self.own = nn.ParameterList(parameters)
        # In a tuple, so that programs that are modules do not register other parameters.
        self._programs = svi.model, svi.guide
        self._loss = svi.loss

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._loss(*self._programs, *args, **kwargs)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
