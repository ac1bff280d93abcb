"""Some rows of a batch with the noise that they have in the whole of it, and whether the rows are all that counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from pyro_hyperbolic.accelerate.private import DRAWN_BY_PARAMETERS
from pyro_hyperbolic.accelerate.programs.functional import Parameters
from pyro_hyperbolic.accelerate.programs.isolation import isolated

# Relative; more than matrix products of different shapes differ by.
_ROUNDING = 10 * torch.finfo(torch.float32).eps ** 0.5


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class SharingError(ValueError):
    """Processes cannot share the batches of these programs."""


@dataclass(frozen=True)
class Rows:
    """The rows ``start`` to ``stop`` of a batch of ``total``.

    :param count: they are those of this process. A process without rows runs its programs on one of another, so that it
        draws the noise that the others draw, and does not count it.
    """

    start: int
    stop: int
    total: int
    count: bool = True

    def __len__(self) -> int:
        return self.stop - self.start

    @classmethod
    def share(cls, total: int, rank: int, world: int) -> Rows:
        """The share of one of several processes; shares differ by at most one row.

        >>> [len(Rows.share(5, rank, 3)) for rank in range(3)]
        [2, 2, 1]
        """
        least, more = divmod(total, world)
        if rank >= total:
            return cls(0, 1, total, count=False)
        start = rank * least + min(rank, more)
        return cls(start, start + least + (rank < more), total)


class WholeBatch(Messenger):
    """While it is open, programs that are given the rows of one process see the batch as one process would.

    It must be the outermost handler. A latent in the plate of the data is drawn with noise for the whole batch, of
    which it keeps its rows: torch's generator, in the same state in all processes, gives each the same noise and is
    left in the same state. Where a plate scales a minibatch to the size of the data, the scale is that of the whole
    batch. A site outside of the plate is the same in all processes and counts in each as one part of their number.

    :param plate: name of the plate that runs over the data.
    :param rows: those that the programs are given.
    :param world: number of processes.
    :param separable: the loss is a sum of one term per datum and of terms of other sites. Without it, a site
        outside of the plate is an error.
    :ivar sites: names of the sites that the programs had.
    """

    def __init__(self, plate: str, rows: Rows, world: int, separable: bool = True) -> None:
        super().__init__()
        self.plate, self.rows, self.world, self.separable = plate, rows, world, separable
        self.found = False
        self.sites: set[str] = set()

    def _pyro_sample(self, msg: Any) -> None:
        distribution = msg["fn"]
        if site_is_subsample(msg):
            if (
                msg["value"] is None
                and distribution.subsample_size is not None
                and distribution.subsample_size < distribution.size
            ):
                raise SharingError(
                    f"plate {msg['name']!r} draws a subsample, which each process would draw from rows of its own; give"
                    " minibatches instead."
                )
            return
        self.sites.add(msg["name"])
        frame = next((frame for frame in msg["cond_indep_stack"] if frame.name == self.plate), None)
        if frame is None:
            self._share(msg)
            return
        self.found = True
        if frame.size != len(self.rows):
            raise SharingError(
                f"plate {self.plate!r} has {frame.size} elements for {len(self.rows)} data; it must run over the data."
            )
        if frame.full_size != frame.size:
            part = len(self.rows) / self.rows.total
            msg["scale"] = msg["scale"] * part
            # Some losses take the scale from the sizes instead.
            scaled = frame._replace(full_size=frame.full_size * part)
            msg["cond_indep_stack"] = tuple(scaled if f is frame else f for f in msg["cond_indep_stack"])
        if not self.rows.count:
            msg["scale"] = msg["scale"] * 0.0
        if not (msg["is_observed"] or msg["done"]):
            with _RowsOfNoise(msg["name"], distribution.batch_shape, frame.dim, self.rows):
                msg["value"] = distribution(*msg["args"], **msg["kwargs"])
            msg["done"] = True

    def _share(self, msg: Any) -> None:
        if not self.separable:
            raise SharingError(
                f"site {msg['name']!r} is outside of the plate {self.plate!r}, so that this loss is not a sum over the"
                " data; use Trace_ELBO."
            )
        msg["scale"] = msg["scale"] / self.world


class _RowsOfNoise(TorchFunctionMode):
    """Draws noise for the whole batch and returns the rows.

    :param site: name of the site, for errors.
    :param batch_shape: of its distribution; the first dimensions of the noise.
    :param dim: that of the data, counted from the end of ``batch_shape``.
    """

    def __init__(self, site: str, batch_shape: torch.Size, dim: int, rows: Rows) -> None:
        super().__init__()
        self.site, self.batch_shape, self.rows = site, batch_shape, rows
        self.axis = len(batch_shape) + dim

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _OF_PARAMETERS or getattr(func, "__name__", "") in DRAWN_BY_PARAMETERS:
            raise SharingError(
                f"site {self.site!r} draws by {func.__name__}, whose noise depends on the parameters, so that a process"
                " cannot draw that of another one's data; use a distribution whose noise does not, or one process."
            )
        if func in _IN_PLACE:
            own, *rest = args
            return own.copy_(self._rows(func(own.new_empty(self._whole(own.shape)), *rest, **kwargs)))
        if func in _LIKE:
            return self._rows(func(args[0].new_empty(self._whole(args[0].shape)), **kwargs))
        if func in _FACTORIES:
            given = kwargs.pop("size", args)
            shape = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
            return self._rows(func(self._whole(shape), **kwargs))
        return func(*args, **kwargs)

    def _whole(self, shape: Iterable[int]) -> tuple[int, ...]:
        own = tuple(shape)
        if own[: len(self.batch_shape)] != tuple(self.batch_shape):
            raise SharingError(
                f"site {self.site!r} has batch shape {tuple(self.batch_shape)} but draws noise of shape {own}, in which"
                " the data cannot be found; use a distribution that draws its noise in its own shape, or one process."
            )
        return own[: self.axis] + (self.rows.total,) + own[self.axis + 1 :]

    def _rows(self, noise: Tensor) -> Tensor:
        return noise.narrow(self.axis, self.rows.start, len(self.rows)).contiguous()


class _Densities(Messenger):
    """The density of each site, scaled and summed, with the sum of absolute values that it can be compared with."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[tuple[str, int], tuple[float, float]] = {}

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg) or not hasattr(msg["fn"], "log_prob"):
            return
        log_prob = msg["fn"].log_prob(msg["value"], *msg["args"], **msg["kwargs"])
        terms = torch.as_tensor(scale_and_mask(log_prob, msg["scale"], msg["mask"])).double()
        # The guide, the model and every particle have a site of this name.
        count = sum(name == msg["name"] for name, _ in self.sums)
        self.sums[msg["name"], count] = terms.sum().item(), terms.abs().sum().item()


@dataclass
class _Outcome:
    """What the programs made of some rows: the loss, the density of each site, and what they left behind."""

    loss: float
    densities: dict[tuple[str, int], tuple[float, float]]
    noise: Tensor
    writes: bool


class Sharing:
    """Finds out whether the losses of the shares of a batch make up the loss of the whole.

    It compares, on a few data, the density of each site, the loss, the random numbers and the buffers of one process
    with those of two, up to rounding. Nothing is left behind. All processes find the same, without a message.

    :param evaluate: the loss of the rows, as one of two processes has it, or with ``None`` of one process.
    :param plate: name of the plate that runs over the data.
    :param parameters: what the programs have of buffers.
    :param noise: the state of the generator that they draw from.
    """

    def __init__(
        self,
        evaluate: Callable[[Rows | None], Tensor],
        plate: str,
        parameters: Parameters,
        noise: Callable[[], Tensor] = torch.get_rng_state,
    ) -> None:
        self.evaluate, self.plate, self.parameters, self.noise = evaluate, plate, parameters, noise
        self._layers: set[str] = set()

    def check(self, total: int) -> None:
        """Raise an error if the loss of ``total`` data is not shared by two processes."""
        whole = self._outcome(None)
        parts = [self._outcome(Rows.share(total, rank, 2)) for rank in (0, 1)]
        wrong = ["the programs write to buffers of their modules"] if whole.writes else []
        if any(not torch.equal(part.noise, whole.noise) for part in parts):
            wrong.append("random numbers are drawn apart from sample sites")
        for name, number in whole.densities | parts[0].densities | parts[1].densities:
            own, *others = (outcome.densities.get((name, number), (0.0, 0.0)) for outcome in (whole, *parts))
            if _differ(own, others):
                wrong.append(
                    f"site {name!r} has the density {own[0]:.6g}, and {sum(o[0] for o in others):.6g} in shares"
                )
        if not wrong and _differ((whole.loss, abs(whole.loss)), [(part.loss, abs(part.loss)) for part in parts]):
            wrong.append(f"the loss is {whole.loss:.6g}, and {sum(part.loss for part in parts):.6g} in shares")
        if wrong:
            raise self._error(f"for {total} data {'; '.join(wrong[:3])}")

    def _outcome(self, rows: Rows | None) -> _Outcome:
        with isolated(), self.parameters.kept_buffers(), self._watched_layers(), _Densities() as densities:
            before = {key: buffer.clone() for key, buffer in self.parameters.buffers.items()}
            try:
                loss = self.evaluate(rows).item()
            except SharingError:
                raise
            except (RuntimeError, ValueError) as error:
                if rows is None:
                    raise
                raise self._error(f"the programs fail on a share ({str(error).strip().splitlines()[0]})") from error
            after = self.parameters.buffers
            writes = any(not torch.equal(after[key], value) for key, value in before.items())
            return _Outcome(loss, densities.sums, self.noise(), writes)

    @contextlib.contextmanager
    def _watched_layers(self) -> Iterator[None]:
        """Note the layers that are known not to treat data one by one."""

        def watch(module: Any, inputs: Any) -> None:
            statistics = isinstance(module, _BATCH_NORMS) and (module.training or module.running_mean is None)
            if statistics or (isinstance(module, _DROPOUTS) and module.training):
                self._layers.add(type(module).__name__)

        handle = register_module_forward_pre_hook(watch)
        try:
            yield
        finally:
            handle.remove()

    def _error(self, what: str) -> SharingError:
        layers = f" (here {', '.join(sorted(self._layers))} in training mode)" if self._layers else ""
        return SharingError(
            f"processes cannot share the batches of these programs: {what}. Every density must belong to one datum, in"
            f" the plate {self.plate!r}, or to none. It does not where a factor outside of this plate depends on the"
            " data, where statistics of the batch are computed, where densities are scaled by its length, or where"
            f" noise is drawn apart from sample sites{layers}. Move such a factor into the plate; use LayerNorm, or"
            " eval(), in the place of BatchNorm; scale by a constant; switch dropout off; or train in one process, by"
            " FastSVI."
        )


def sample_size(total: int) -> int:
    """How many data of a batch to check: where it has enough, two processes have shares of different lengths.

    >>> [sample_size(total) for total in (1, 2, 3, 4, 5, 100)]
    [1, 2, 3, 3, 5, 5]
    """
    return 5 if total >= 5 else min(total, 3)


def _differ(whole: tuple[float, float], shares: list[tuple[float, float]]) -> bool:
    """Values with their sizes; what is not finite counts as equal."""
    size = max(whole[1], sum(size for _, size in shares))
    return abs(whole[0] - sum(value for value, _ in shares)) > _ROUNDING * size


Functions = frozenset[Callable[..., Any]]
_FACTORIES: Functions = frozenset({torch.randn, torch.rand})
_LIKE: Functions = frozenset({torch.randn_like, torch.rand_like})
_IN_PLACE: Functions = frozenset(
    {Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.cauchy_, Tensor.log_normal_}
)
_OF_PARAMETERS: Functions = frozenset(
    {
        torch.normal,
        torch.poisson,
        torch.binomial,
        torch.bernoulli,
        torch.multinomial,
        torch.randint,
        torch.randperm,
    }
)
