"""What makes programs fit for function transforms and CUDA graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pyro_hyperbolic.accelerate import private
from pyro_hyperbolic.ops.nested import flatten, map_tensors

_NUMBERS = (bool, int, float)  # and no subclass: numpy's have a dtype of their own


class Unvalidated(Messenger):
    """Distributions that were made with validation, outside of the step, do without it while this is open."""

    def __enter__(self) -> Any:
        self._distributions: list[Any] = []
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        private.set_validation(self._distributions, True)
        return super().__exit__(*error)

    def _pyro_sample(self, msg: Any) -> None:
        validated = private.validated_inside(msg["fn"])
        private.set_validation(validated, False)
        self._distributions += validated


class OutOfPlaceRandom(TorchFunctionMode):
    """torch.distributions draws some noise in place, which ``vmap`` refuses; draw it out of place.

    It refuses ``.data`` too, of which Pyro's enumeration reads the shape, and recurrent networks, which become loops.
    A value that is set by a mask is filled in. Cross entropies it takes apart into more operations than they need.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draw = _OUT_OF_PLACE.get(func)
        return func(*args, **kwargs) if draw is None else draw(*args, **kwargs)


class ConstantMasks(TorchFunctionMode):
    """Takes elements by the numbers of the places where a mask is true, if the mask depends on constants alone.

    What a mask selects has no shape that is known before its values are. Missing data are written with masks that are
    there before the program runs, and the triangles of matrices with ones that are made in it, from ``torch.arange``.
    What is compiled keeps their values, so this is for functions that are not used any more once a mask may change.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__getitem__ or (func is torch.Tensor.__setitem__ and isinstance(args[2], Tensor)):
            args = (args[0], self._numbers(args[1]), *args[2:])
        out = func(*args, **kwargs)
        if _changes(func, kwargs):
            self._known.clear()  # others may be views of what was changed
        elif getattr(func, "__name__", "") in _OF_MASKS and isinstance(out, Tensor) and not private.is_real(out):
            values = [self._values(x) for x in flatten((args, kwargs))[0] if isinstance(x, Tensor)]
            if out.numel() <= _LARGEST_MASK and all(value is not None for value in values):
                real = map_tensors(self._values, (args, kwargs))
                self._known[id(out)] = out, private.computed(lambda: func(*real[0], **real[1]))
        return out

    def _values(self, x: Tensor) -> Any:
        return x if private.is_real(x) else self._known.get(id(x), (None, None))[1]

    def _numbers(self, index: Any) -> Any:
        found: list[Any] = []
        for item in index if isinstance(index, tuple) else (index,):
            is_mask = isinstance(item, Tensor) and item.dtype == torch.bool and item.dim() > 0
            values = self._values(item) if is_mask else None
            found += [item] if values is None else private.computed(functools.partial(values.nonzero, as_tuple=True))
        return tuple(found) if len(found) > 1 or isinstance(index, tuple) else found[0]


def _changes(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function of torch changes a tensor in place."""
    name = getattr(func, "__name__", "")
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__")) or "out" in kwargs


_LARGEST_MASK = 1_000_000
_IN_PLACE = {"__setitem__", *(f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "and", "or", "xor"))}
_OF_MASKS = {
    *("arange", "ones", "zeros", "full", "eye", "tensor", "as_tensor", "ones_like", "zeros_like", "tril", "triu"),
    *("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "logical_and", "logical_or", "logical_not"),
    *(f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne", "add", "radd", "sub", "rsub", "mul", "rmul")),
    *("__and__", "__or__", "__invert__", "__getitem__", "view", "reshape", "unsqueeze", "expand", "flip", "bool", "to"),
}


class Largest(TorchFunctionMode):
    """Notes how many numbers the largest tensor has that is computed while this is open."""

    numbers = 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


def _normal(t: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return torch.randn(t.shape, dtype=t.dtype, device=t.device) * std + mean


def _uniform(t: Tensor, low: float = 0.0, high: float = 1.0, **options: Any) -> Tensor:
    low, high = options.get("from", low), options.get("to", high)
    return torch.rand(t.shape, dtype=t.dtype, device=t.device) * (high - low) + low


def _exponential(t: Tensor, lambd: float = 1.0, **_: Any) -> Tensor:
    return -torch.log1p(-torch.rand(t.shape, dtype=t.dtype, device=t.device)) / lambd


def _cross_entropy(logits: Tensor, target: Tensor, *args: Any, **options: Any) -> Tensor:
    if args or {name: value for name, value in options.items() if value is not None} != {"reduction": "none"}:
        return F.binary_cross_entropy_with_logits(logits, target, *args, **options)
    # Beyond 40 a softplus is the number itself in every dtype.
    return (1 - target) * logits + F.softplus(-logits, threshold=40)


def _set_item(t: Tensor, index: Any, value: Any) -> None:
    # ``t[mask] = number``, as in the densities of counts: what a mask selects has no shape that is known beforehand.
    if isinstance(index, Tensor) and index.dtype == torch.bool and type(value) in _NUMBERS:
        t.masked_fill_(index, value)
    else:
        t[index] = value


def _unrolled(network: Any, name: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if isinstance(args[2], Tensor):
            return network(*args)  # packed sequences, of lengths that only the host knows
        loop = private.unrolled(name)
        return network(*args) if loop is None else loop(*args)

    return run


_OUT_OF_PLACE: dict[Any, Callable[..., Any]] = {
    torch.Tensor.normal_: _normal,
    torch.Tensor.uniform_: _uniform,
    torch.Tensor.exponential_: _exponential,
    torch.Tensor.__setitem__: _set_item,
    torch.Tensor.data.__get__: torch.Tensor.detach,  # type: ignore[attr-defined]  # a descriptor
    F.binary_cross_entropy_with_logits: _cross_entropy,
    torch.rnn_tanh: _unrolled(torch.rnn_tanh, "rnn_tanh_input"),
    torch.rnn_relu: _unrolled(torch.rnn_relu, "rnn_relu_input"),
    torch.lstm: _unrolled(torch.lstm, "lstm_impl"),
    torch.gru: _unrolled(torch.gru, "gru_impl"),
}


class ConstantsOnDevice(TorchFunctionMode):
    """Makes scalar constants where they are needed, by a kernel.

    ``torch.tensor(1.0, device="cuda")``, which ``torch.distributions`` calls for every parameter that is a plain
    number, makes it on the host and copies it, which a CUDA graph cannot capture. To be entered around eager code
    only: a compiled function would be compiled again for it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and len(args) == 1 and type(args[0]) in _NUMBERS:
            return torch.full((), args[0], **{key: value for key, value in kwargs.items() if value is not None})
        if func is torch.Tensor.new_tensor and len(args) == 2 and type(args[1]) in _NUMBERS:
            return args[0].new_full((), args[1], **kwargs)
        return func(*args, **kwargs)


class DecompositionsOnDevice(TorchFunctionMode):
    """Decompositions of matrices that do not wait to raise an error: where there is none, the result is ``nan``.

    ``torch.linalg.cholesky`` and its relatives look at the outcome on the host, which a CUDA graph cannot capture. What
    watches the loss reports the ``nan``.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unchecked = _UNCHECKED.get(func)
        if unchecked is None or "out" in (kwargs or {}):
            return func(*args, **(kwargs or {}))
        result, info = unchecked(*args, **(kwargs or {}))
        return torch.where((info != 0)[..., None, None], torch.nan, result)


class IndicesInPython(TorchFunctionMode):
    """Knows the numbers of ``torch.arange`` where tensors have no values, as while a program is traced.

    A sequential plate loops over them. Other values that Python reads are an error: as symbols they would become parts
    of the names of sites, and a guide would have other sites than its model.
    """

    def __init__(self) -> None:
        super().__init__()
        # The tensors are kept, so that no other gets the identity of one that is gone.
        self._known: dict[int, tuple[Tensor, Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _, numbers = self._known.get(id(args[0]), (None, None)) if args else (None, None)
        if func in _READ and numbers is not None:
            return list(numbers) if isinstance(numbers, range) else numbers
        out = func(*args, **kwargs)
        if _changes(func, kwargs):
            self._known.clear()  # others may be views of what was changed
        elif func is torch.arange:
            if args and all(type(arg) is int for arg in args) and kwargs.keys() <= {"device"}:
                self._known[id(out)] = out, range(*args)
        elif func in (torch.unbind, torch.Tensor.unbind) and isinstance(numbers, range):
            self._known.update((id(part), (part, number)) for part, number in zip(out, numbers, strict=True))
        elif func in _READ and any(isinstance(number, (torch.SymInt, torch.SymFloat)) for number in flatten(out)[0]):
            raise RuntimeError("Python reads the value of a tensor")
        return out


_READ = torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__int__, torch.Tensor.__index__, torch.Tensor.__float__


class TooLong(Exception):
    """More calls of torch than :class:`AtMost` lets through."""


class AtMost(TorchFunctionMode):
    """Lets so many calls of torch through, and no more. What is read from a tensor, its shape for example, is none."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._left = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", None) != "__get__":
            self._left -= 1
            if self._left < 0:
                raise TooLong
        return func(*args, **(kwargs or {}))


_UNCHECKED: dict[Any, Callable[..., Any]] = {
    torch.linalg.cholesky: torch.linalg.cholesky_ex,
    torch.linalg.inv: torch.linalg.inv_ex,
    torch.inverse: torch.linalg.inv_ex,
    torch.Tensor.inverse: torch.linalg.inv_ex,
}
