"""Spaces that one number scales."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.geometry.curvature import checked_type, describe
from pyro_hyperbolic.geometry.manifold import Manifold
from pyro_hyperbolic.ops.checks import check_sizes, inspectable, validating


class ScaledManifold(Manifold):
    r"""A space with one number ``c``, in which all lengths are multiples of :math:`1/\sqrt c`.

    A tensor ``c`` may have any shape: one number for each element of a batch. It is aligned from the right with the
    batch shape of points, ``(...)`` of ``(..., d)``, as the scale of a distribution is with its location.

    Values of a tensor are checked if torch validates its distributions (``pyro.enable_validation``). Without that, a
    ``c`` that the space cannot have gives ``nan`` and disturbs no other element of its batch: samplers reject such a
    step.

    :param c: a float or a floating tensor of any shape, ``c >= 0``.
    """

    _checked = True  # whether the values of c are known to be valid

    def __init__(self, c: float | Tensor = 1.0) -> None:
        self.c = checked_type(c, "c", "c >= 0 (the curvature is -c)")
        if not isinstance(c, Tensor) or (validating() and inspectable(c)):
            self._check_values()
        else:
            self._checked = False

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of ``c``."""
        return self.c.shape if isinstance(self.c, Tensor) else torch.Size()

    @property
    def curvatures(self) -> tuple[float | Tensor, ...]:
        return (self.c,)

    def with_curvatures(self, values: Sequence[float | Tensor]) -> Self:
        (c,) = values
        new = copy.copy(self)
        new.c = c
        return new

    def assume_valid(self) -> Self:
        new = copy.copy(self)
        new._checked = True
        return new

    def aligned_c(self, x: Tensor, *others: Tensor | None, coords: Tensor | None = None) -> float | Tensor:
        """``c`` as a factor of the coordinates of ``x``: a number as it is, a batch ``(...)`` as ``(..., 1)``.

        The points decide the dtype of a result, whatever the dtype of the curvature.

        :param others: points and vectors that must have as many coordinates as ``x``.
        :param coords: normal coordinates at ``x``, of which there must be as many as the space has dimensions.
        """
        check_sizes(x, *others)
        if coords is not None:
            self._check_coords(x, coords)
        c = self.c if self._checked else self.valid_c
        return c.to(x.dtype).unsqueeze(-1) if isinstance(c, Tensor) and c.dim() > 0 else c

    @property
    def valid_c(self) -> float | Tensor:
        """``c`` with ``nan`` in the place of what has not been checked and is not a curvature."""
        return self.c if self._checked else torch.where(self._is_valid(self.c), self.c, torch.nan)

    def c_of_sets(self, x: Tensor, *others: Tensor) -> float | Tensor:
        """As :meth:`aligned_c`, for an operation that joins the points of a set ``(..., N, D)``: one ``c`` per set."""
        self._check_sets()
        return self.aligned_c(x, *others)

    def _is_valid(self, c: Any) -> Any:
        """Whether finite numbers are curvatures of the chart, a ``bool`` or a tensor of them."""
        return c >= 0

    def _check_values(self) -> None:
        c = self.c
        if not isinstance(c, Tensor):
            if not (self._is_valid(c) and c < math.inf):
                self._refuse(c)
        else:
            valid = self._is_valid(c) & (c < math.inf)
            if not bool(valid.all()):
                self._refuse(c[~valid][0].item())

    def _refuse(self, c: float) -> None:
        raise ValueError(
            f"c must be non-negative and finite, got {c}; pass a float or a tensor c >= 0 (the curvature is -c)."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(c={describe(self.c)})"
