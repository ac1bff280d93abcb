"""SVI over several processes, each with its share of every batch."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import pyro
import torch
import torch.distributed as dist
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pyro_hyperbolic.accelerate.bounds.marginal import ESTIMATE_OPTIONS, check_arguments, log_marginal_likelihood
from pyro_hyperbolic.accelerate.bounds.tensor_elbo import TensorLoss, is_separable
from pyro_hyperbolic.accelerate.processes.group import lost_processes
from pyro_hyperbolic.accelerate.processes.whole_batch import Rows, Sharing, SharingError, WholeBatch, sample_size
from pyro_hyperbolic.accelerate.programs.arguments import length, narrowed, split_tensors
from pyro_hyperbolic.accelerate.programs.functional import Found, Parameters, Program, unknown_parameter
from pyro_hyperbolic.accelerate.programs.isolation import isolated
from pyro_hyperbolic.accelerate.programs.modes import Unvalidated
from pyro_hyperbolic.accelerate.trainers.fast_svi import FastSVI
from pyro_hyperbolic.accelerate.trainers.optimiser import Factory

Result = TypeVar("Result")

_PIECE = 64  # data of each process between two exchanges of estimates
_LOOK_EVERY = 100  # steps between two looks at what lies on a GPU
_FINGERPRINT = (1 << 20) - 1
_DIFFERENCES = (
    "the processes have drawn different random numbers; call synchronize() after work that only some do.",
    "the programs used different parameters in different processes, or failed in one of them; let no branch that"
    " decides about parameters depend on the rows of a process, or train in one process, by FastSVI.",
)


class DistributedSVI(FastSVI):
    r"""Trains one pair of programs in several processes, as one process would with the same batches and seed.

    Each process is given the whole batch and takes its rows :math:`R_r` of it. The ELBO is a sum over the data,

    .. math:: \mathcal{L} = \sum_r \sum_{i \in R_r} \mathcal{L}_i(\epsilon_i) ,

    so that losses and gradients are summed over the processes, whatever the sizes of their shares, and the noise
    :math:`\epsilon` is drawn for the whole batch in each of them. The result differs from that of one process by
    the order of sums only. The parameters must belong to modules; those of the first process, and the buffers, are
    copied to the others, and so is the state of torch's generator. All processes then have to draw the same random
    numbers: after work that only some of them did, call :meth:`synchronize`. A difference raises an error.

    A density has to belong to one datum, or to none. Statistics of the batch (BatchNorm), scales by its length, factors
    of the data outside of the plate, and noise that is drawn apart from sample sites (dropout) cannot be shared. To
    find them, the loss of a few data is compared with those of two shares of them, in the first two steps and where a
    site or a parameter occurs for the first time; a difference raises an error.

    :param model: the model.
    :param guide: the guide, every site of which must be reparametrised.
    :param optim: as for :class:`FastSVI`.
    :param loss: as for :class:`FastSVI`; a function must be a sum over the data.
    :param plate: name of the plate that runs over the data.
    :param validate_every: how many steps lie between two validated evaluations; by default 1,000.

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
        validate_every: int | None = None,
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
        self._separable = is_separable(loss)
        self._loss_of_rows = self.loss
        self.loss = self._own_loss
        self._difference: Tensor | None = None
        self._module: nn.Module | None = None
        self._graded_here: set[str] = set()
        self._sites: set[str] = set()
        self._checked: set[str] = set()
        self._sharable = False

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One gradient step on the whole batch, which all processes are given; its loss as a 0-dim tensor.

        :param args: tensors whose first dimension runs over the batch, and whatever else the programs take.
        """
        with lost_processes():
            return super().step(*args, **kwargs)

    def evaluate_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of the whole batch as a 0-dim tensor, without a step."""
        with lost_processes():
            if self._optimiser is None:
                (self._begin if self._pending is None else self._resume)(args, kwargs)
            return self._sum(super().evaluate_loss(*args, **kwargs))

    def state_dict(self) -> dict[str, Any]:
        self._look()
        return super().state_dict()

    @torch.no_grad()
    def log_marginal_likelihood(self, *args: Any, standard_error: bool = False, **options: Any) -> Any:
        """IWAE estimates ``(N,)`` of data that all processes are given, each computing a share of them.

        :param args: as for :func:`log_marginal_likelihood`, like ``options``, and so is the value.
        """
        check_arguments(args)
        own = {name: options.pop(name) for name in ESTIMATE_OPTIONS & options.keys()}
        count = length(args, options)
        # The same number in all processes, and from it noise of its own in each.
        seed = int(torch.randint(1 << 62, ()))
        pieces = []
        with isolated(), lost_processes():
            torch.manual_seed(seed + self.rank)
            # A few rows at a time, so that none waits long for another.
            for start in range(0, count, _PIECE * self.world):
                size = min(count - start, _PIECE * self.world)
                rows = Rows.share(size, self.rank, self.world)
                piece = torch.zeros(2, size, dtype=torch.float64, device=self._channel)
                if rows.count:
                    mine, keywords = narrowed(args, options, start + rows.start, start + rows.stop)
                    result = log_marginal_likelihood(
                        self.model, self.guide, *mine, standard_error=True, **own, **keywords
                    )
                    piece[:, rows.start : rows.stop] = torch.stack(result)
                dist.all_reduce(piece)
                pieces.append(piece)
        estimates, errors = torch.cat(pieces, -1)
        return (estimates, errors) if standard_error else estimates

    def synchronize(self) -> None:
        """Give torch's generator in all processes the state that it has in the first one."""
        if self._parameters is None:
            raise ValueError("processes are synchronized by the first step; call synchronize after it.")
        self._copy_random_state()

    def _copy_random_state(self) -> None:
        state = _random_state(self._channel).to(self._channel)
        with lost_processes():
            dist.broadcast(state, 0)
        _set_random_state(state.cpu(), self._channel)

    @property
    def _channel(self) -> torch.device:
        """Where the messages between processes lie, and the random numbers."""
        if self._parameters is not None:
            return self._device
        return (
            torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
        )

    def _own_loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of the rows of this process."""
        return self._loss_of(Rows.share(length(args, kwargs), self.rank, self.world), self.world, args, kwargs)

    def _loss_of(self, rows: Rows, world: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        args, kwargs = narrowed(args, kwargs, rows.start, rows.stop)
        with WholeBatch(self.plate, rows, world, self._separable) as batch:
            loss = self._loss_of_rows(self.model, self.guide, *args, **kwargs)
        if not batch.found:
            raise SharingError(f"the programs have no plate {self.plate!r}; name the one of the data by plate.")
        self._sites = batch.sites
        return loss

    def _ordinary_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], validated: bool = False) -> Tensor:
        if self._optimiser is None:
            self._begin(args, kwargs)
        return self._shared_step(args, kwargs)

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        total = self._together(lambda: length(args, kwargs))
        self._copy_random_state()
        parameters = self._together(lambda: self._found(args, kwargs))
        first = [t.tolist() for t in split_tensors(*narrowed(args, kwargs, 0, 2))[0]]
        shapes = [(name, t.shape, t.dtype) for name, t in parameters.tensors.items()]
        if self._differ(repr(shapes)):
            raise ValueError("the programs have different parameters in different processes; build the same in all.")
        if self._differ(repr((total, first))):
            raise ValueError("the processes were given different batches; give the whole batch to all of them.")
        self._set_up(parameters)
        try:
            with torch.no_grad():
                for tensor in (*parameters.tensors.values(), *parameters.buffers.values()):
                    value = tensor.contiguous()
                    dist.broadcast(value, 0)
                    tensor.copy_(value)
            # Aside, and with a validation that the steps do without.
            with isolated(), parameters.kept_buffers():
                self._together(lambda: self.loss(self.model, self.guide, *args, **kwargs))
            self._check(args, kwargs)
        except Exception:
            self._optimiser = None  # the next step must not go on
            raise
        self._module = DistributedDataParallel(_Loss(self, parameters), find_unused_parameters=True, init_sync=False)
        for name, tensor in parameters.tensors.items():
            if tensor.requires_grad:
                # The module gives a gradient to all processes where one has it.
                tensor.register_post_accumulate_grad_hook(lambda _, name=name: self._graded_here.add(name))
        self._difference = torch.zeros(2, dtype=torch.float64, device=self._device)

    def _found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parameters:
        """The parameters, as one process finds them with the whole batch."""
        states = []
        # In one process the first step is the first run; a state is loaded after it.
        for _ in range(2 if self._pending is None else 1):
            with isolated(), Found(self.model, self.guide) as found:
                self._loss_of_rows(self.model, self.guide, *args, **kwargs)
                states.append(_random_state(self._channel))
        parameters = found.parameters
        if parameters.without_module():
            raise ValueError(
                f"the parameters {parameters.without_module()} belong to no module; make them parameters of one."
            )
        if not torch.equal(states[0], states[-1]):
            raise ValueError(
                "the programs draw other random numbers in their first run than later, as automatic guides do, so the"
                " processes would begin differently; run the guide once on a batch before the first step."
            )
        return parameters

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare shares of a few data with the whole of them, where this tells something."""
        total = sample_size(length(args, kwargs))
        if self.world == 1:
            return
        assert self._parameters is not None

        def evaluate(rows: Rows | None) -> Tensor:
            if rows is not None:
                return self._loss_of(rows, 2, args, kwargs)
            return self._loss_of_rows(self.model, self.guide, *args, **kwargs)

        args, kwargs = narrowed(args, kwargs, 0, total)
        Sharing(evaluate, self.plate, self._parameters, lambda: _random_state(self._device)).check(total)
        self._sharable = total >= 3

    def _shared_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        assert self._parameters is not None
        assert self._optimiser is not None
        try:
            loss, used = self._own_part(args, kwargs)
        except Exception:
            if self._device.type == "cpu":
                # The others read this at once. On a GPU they would not, and must wait instead.
                with contextlib.suppress(RuntimeError):
                    self._send(torch.zeros(()), "failed")
                self._difference = torch.zeros(2, dtype=torch.float64)
            raise
        # Before the gradients, for which a process would wait that another one does not send.
        total = self._sum(loss.detach(), repr(sorted(used)))
        self._graded_here.clear()
        # Averaged over the processes by their module, and the loss is a sum.
        (self.world * loss).backward()
        self._sum(torch.zeros_like(total), repr(sorted(self._graded_here)))
        self._check_what_is_new(args, kwargs)
        self._apply_gradients(used)
        return total

    def _own_part(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, set[str]]:
        """The loss of the rows of this process, and the names of the parameters that the programs used."""
        assert self._parameters is not None
        assert self._optimiser is not None
        assert self._module is not None
        self._optimiser.zero_grad()
        found = Found(self.model, self.guide, known=self._parameters)
        with pyro.validation_enabled(False), found, Unvalidated():
            loss = self._module(*args, **kwargs)
        if found.new:
            raise unknown_parameter(found.new[0])
        return loss, found.used(self._parameters)

    def _check_what_is_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self._parameters is not None
        tensors = self._parameters.tensors
        parts = self._sites | {f"parameter {name}" for name, t in tensors.items() if t.grad is not None}
        # The first step may be at a special point, such as weights that are zero, where a difference is not seen.
        if self.steps == 1 or not self._sharable or not parts <= (self._checked or parts):
            self._check(args, kwargs)
        self._checked |= parts

    def _sum(self, loss: Tensor, parameters: str = "") -> Tensor:
        """The sum over the processes, who on this occasion compare random numbers and parameters."""
        total = self._send(loss, parameters)
        if self._device.type == "cpu" or self.steps % _LOOK_EVERY == 0:
            self._look()
        return total

    def _send(self, loss: Tensor, parameters: str) -> Tensor:
        assert self._difference is not None
        contents = _random_state(self._device).numpy().tobytes(), parameters.encode()
        numbers = [zlib.crc32(content) & _FINGERPRINT for content in contents]
        rest = [float(number**power) for power in (1, 2) for number in numbers]
        message = torch.cat([loss.double().reshape(1), torch.tensor(rest, dtype=torch.float64, device=loss.device)])
        dist.all_reduce(message)
        # By Cauchy and Schwarz zero if and only if all numbers are the same; all these integers are exact.
        self._difference = torch.maximum(self._difference, self.world * message[3:] - message[1:3].square())
        return message[0].to(loss.dtype)

    def _look(self) -> None:
        if self._difference is None:
            return
        for difference, reason in zip(self._difference.tolist(), _DIFFERENCES, strict=True):
            if difference > 0:
                self._difference.zero_()
                raise ValueError(reason)

    def _together(self, work: Callable[[], Result]) -> Result:
        """Do something that all processes do, and fail where it fails in one of them."""
        failed = torch.ones((), device=self._channel)
        try:
            result = work()
            failed.zero_()
            return result
        finally:
            mine = bool(failed)
            dist.all_reduce(failed)
            if bool(failed) and not mine:
                raise ValueError("another process failed at the same point; see its error.")

    def _differ(self, content: str) -> bool:
        """Whether the processes have different contents."""
        number = zlib.crc32(content.encode())
        extremes = torch.tensor([number, -number], dtype=torch.int64, device=self._channel)
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        return bool(extremes.sum() != 0)


class _Loss(nn.Module):
    """The loss as a module, whose parameters are those that DistributedDataParallel is to look after."""

    def __init__(self, svi: DistributedSVI, parameters: Parameters) -> None:
        super().__init__()
        tensors = list(parameters.tensors.values())
        self.own = nn.ParameterList(t for t in tensors if t.requires_grad)
        # Any of them may be unused in a step, and torch warns as long as none is.
        self.never_used = nn.Parameter(tensors[0].new_zeros(()))
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
