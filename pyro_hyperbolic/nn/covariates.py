"""Covariates: what is known about a datum besides the data, as inputs of encoders and decoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pyro_hyperbolic.ops.checks import checked_integer, inspectable, validating


class Covariate(nn.Module):
    """One covariate, known for every datum. A subclass says how it becomes features.

    :ivar size: number of features.
    """

    size: int

    def check(self, name: str, value: Tensor) -> None:
        """Refuse values that it cannot take."""

    def forward(self, value: Tensor) -> Tensor:
        """Features ``(..., size)``."""
        raise NotImplementedError


class _Categorical(Covariate):
    def __init__(self, categories: int | Sequence[str]) -> None:
        super().__init__()
        known = [str(i) for i in range(categories)] if isinstance(categories, int) else [str(c) for c in categories]
        if not known or len(set(known)) != len(known):
            raise ValueError(f"categories must be different names, or their number, got {categories!r}.")
        self.categories = tuple(known)

    def codes(self, values: Sequence[object], name: str = "values") -> Tensor:
        """The integer codes ``(N,)`` of categories given by name.

        :param name: name of the values, for the error message if one is unknown.
        """
        numbers = {category: i for i, category in enumerate(self.categories)}
        unknown = sorted({str(value) for value in values} - numbers.keys())
        if unknown:
            raise ValueError(f"{name} has unknown categories {unknown[:5]}; known are {list(self.categories)}.")
        return torch.tensor([numbers[str(value)] for value in values], dtype=torch.int64)

    def check(self, name: str, value: Tensor) -> None:
        if value.is_floating_point() or value.is_complex():
            raise ValueError(f"{name} must hold the numbers of categories as integers, got {value.dtype}.")
        if inspectable(value) and value.numel() and not bool(((value >= 0) & (value < len(self.categories))).all()):
            raise ValueError(
                f"{name} must hold numbers of categories from 0 to {len(self.categories) - 1}, got values from"
                f" {int(value.min())} to {int(value.max())}."
            )


class OneHot(_Categorical):
    """A category as a one-hot vector.

    :param categories: their number, or their names.
    """

    def __init__(self, categories: int | Sequence[str]) -> None:
        super().__init__(categories)
        self.size = len(self.categories)

    def forward(self, value: Tensor) -> Tensor:
        # Not by torch's one_hot, which looks at the values.
        return (value.unsqueeze(-1) == torch.arange(self.size, device=value.device)).to(torch.get_default_dtype())


class Embedding(_Categorical):
    """A category as a learned vector. Use it for many categories.

    :param categories: their number, or their names.
    :param dim: size of the vectors.
    """

    def __init__(self, categories: int | Sequence[str], dim: int) -> None:
        super().__init__(categories)
        self.size = checked_integer("dim", dim, least=1)
        self.vectors = nn.Embedding(len(self.categories), self.size)

    def forward(self, value: Tensor) -> Tensor:
        return self.vectors(value)


class Continuous(Covariate):
    """Numbers as they are. Scale them to a size of about 1 first.

    :param size: how many numbers each datum has, with values ``(N, size)``. By default there is one, with values
        ``(N,)``.
    """

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self._is_vector = size is not None
        self.size = 1 if size is None else checked_integer("size", size, least=1)

    def check(self, name: str, value: Tensor) -> None:
        if self._is_vector and (value.dim() == 0 or value.shape[-1] != self.size):
            raise ValueError(f"{name} must have shape (N, {self.size}), got {tuple(value.shape)}.")
        if inspectable(value) and not bool(value.isfinite().all()):
            raise ValueError(f"{name} must hold finite numbers; leave out or fill in the data that are missing.")

    def forward(self, value: Tensor) -> Tensor:
        return value if self._is_vector else value.unsqueeze(-1)


class Covariates(nn.Module):
    """Covariates by name, and the features that encoder and decoder get from them.

    :param parts: a :class:`OneHot`, an :class:`Embedding` or a :class:`Continuous` for each name.

    >>> covariates = Covariates(batch=OneHot(["first", "second"]), donor=Embedding(20, 3), age=Continuous())
    >>> covariates.size
    6
    >>> batch, donor = torch.tensor([0, 1, 1]), torch.tensor([4, 19, 0])
    >>> covariates({"batch": batch, "donor": donor, "age": torch.tensor([0.1, -2.0, 0.5])}).shape
    torch.Size([3, 6])
    >>> covariates.parts["batch"].codes(["second", "first"])
    tensor([1, 0])
    """

    def __init__(self, **parts: Covariate) -> None:
        super().__init__()
        if not parts:
            raise ValueError("Covariates needs at least one covariate, as in Covariates(batch=OneHot(2)).")
        for name, part in parts.items():
            if not isinstance(part, Covariate):
                raise ValueError(f"covariate {name!r} must be a OneHot, an Embedding or a Continuous, got {part!r}.")
        self.parts = nn.ModuleDict(parts)

    @property
    def size(self) -> int:
        """The number of features."""
        return sum(part.size for part in self._parts().values())

    def forward(self, values: Mapping[str, Tensor]) -> Tensor:
        """Features ``(..., size)`` of values by name. One value for all data has no dimension over the data."""
        parts = self._parts()
        if not isinstance(values, Mapping) or values.keys() != parts.keys():
            given = sorted(values) if isinstance(values, Mapping) else type(values).__name__
            raise ValueError(f"covariates must be a dictionary with the names {sorted(parts)}, got {given}.")
        features = []
        for name, part in parts.items():
            value = torch.as_tensor(values[name])
            if validating():
                part.check(f"covariates[{name!r}]", value)
            features.append(part(value))
        try:
            batch = torch.broadcast_shapes(*[f.shape[:-1] for f in features])
        except RuntimeError as error:
            lengths = {name: tuple(f.shape[:-1]) for name, f in zip(parts, features, strict=True)}
            raise ValueError(f"covariates must have the same length, got {lengths}.") from error
        return torch.cat([f.expand(*batch, f.shape[-1]) for f in features], -1)

    def _parts(self) -> dict[str, Covariate]:
        return dict(self.parts.items())  # type: ignore[arg-type]
