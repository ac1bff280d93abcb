"""Some rows of a batch with the noise that they have in the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor
from torch.overrides import TorchFunctionMode


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
    """

    def __init__(self, plate: str, rows: Rows, world: int, separable: bool = True) -> None:
        super().__init__()
        self.plate, self.rows, self.world, self.separable = plate, rows, world, separable
        self.found = False

    def _pyro_sample(self, msg: Any) -> None:
        law = msg["fn"]
        if isinstance(law, _Subsample):
            if msg["value"] is None and law.subsample_size is not None and law.subsample_size < law.size:
                raise ValueError(
                    f"plate {msg['name']!r} draws a subsample, which each process would draw from rows of its own; give"
                    " minibatches instead."
                )
            return
        frame = next((frame for frame in msg["cond_indep_stack"] if frame.name == self.plate), None)
        if frame is None:
            self._share(msg)
            return
        self.found = True
        if frame.size != len(self.rows):
            raise ValueError(
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
            with _RowsOfNoise(msg["name"], law.batch_shape, frame.dim, self.rows):
                msg["value"] = law(*msg["args"], **msg["kwargs"])
            msg["done"] = True

    def _share(self, msg: Any) -> None:
        if not self.separable:
            raise ValueError(
                f"site {msg['name']!r} is outside of the plate {self.plate!r}, so that this loss is no sum over the"
                " data; use Trace_ELBO."
            )
        msg["scale"] = msg["scale"] / self.world


class _RowsOfNoise(TorchFunctionMode):
    """Draws noise for the whole batch and returns the rows.

    :param site: name of the site, for errors.
    :param batch_shape: of its law; the first dimensions of the noise.
    :param dim: that of the data, counted from the end of ``batch_shape``.
    """

    def __init__(self, site: str, batch_shape: torch.Size, dim: int, rows: Rows) -> None:
        super().__init__()
        self.site, self.batch_shape, self.rows = site, batch_shape, rows
        self.axis = len(batch_shape) + dim

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _OF_PARAMETERS:
            raise ValueError(
                f"site {self.site!r} draws by {func.__name__}, whose noise depends on the parameters, so that a process"
                " cannot draw that of another one's data; use a law whose noise does not, or one process."
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
            raise ValueError(
                f"site {self.site!r} has batch shape {tuple(self.batch_shape)} but draws noise of shape {own}, in which"
                " the data cannot be found; use a law that draws its noise in its own shape, or one process."
            )
        return own[: self.axis] + (self.rows.total,) + own[self.axis + 1 :]

    def _rows(self, noise: Tensor) -> Tensor:
        return noise.narrow(self.axis, self.rows.start, len(self.rows)).contiguous()


Functions = frozenset[Callable[..., Any]]
_FACTORIES: Functions = frozenset({torch.randn, torch.rand})
_LIKE: Functions = frozenset({torch.randn_like, torch.rand_like})
_IN_PLACE: Functions = frozenset(
    {Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.cauchy_, Tensor.log_normal_}
)
_OF_PARAMETERS: Functions = frozenset(
    {
        torch._standard_gamma,
        torch._sample_dirichlet,
        torch.normal,
        torch.poisson,
        torch.binomial,
        torch.bernoulli,
        torch.multinomial,
        torch.randint,
        torch.randperm,
    }
)
