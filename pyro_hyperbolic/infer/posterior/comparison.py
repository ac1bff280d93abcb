"""Models by their evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pyro_hyperbolic.accelerate.programs.functional import check_program
from pyro_hyperbolic.infer.posterior.energy import Program
from pyro_hyperbolic.infer.posterior.evidence import Evidence, log_evidence

_HEAD = "log evidence", "s.e.", "difference", "s.e.", "probability", "converged"
_WIDTH = 13
_SIGMAS = 3.0  # beyond which the sign of a difference is known
_DECISIVE = math.log(20.0)  # the least difference that is called more than a hint


@dataclass(frozen=True)
class Row:
    """A model among others.

    :ivar difference: of its log evidence to that of the best one, with the ``difference_error``.
    :ivar probability: of the model, if all of them were equally likely before the data.
    """

    name: str
    log_evidence: float
    standard_error: float
    difference: float
    difference_error: float
    probability: float
    converged: bool


class Comparison:
    """Models in the order of their evidence; ``print`` shows the table.

    :ivar evidences: by name, with the draws of each model.
    :ivar rows: the best model first.
    """

    def __init__(self, evidences: Mapping[str, Evidence]) -> None:
        self.evidences = dict(evidences)
        order = sorted(evidences, key=lambda name: -evidences[name].value)
        best = evidences[order[0]]
        weights = torch.tensor([evidences[name].value for name in order], dtype=torch.float64).softmax(0).tolist()
        self.rows = [
            Row(
                name,
                own.value,
                own.standard_error,
                own.value - best.value,
                0.0 if own is best else math.hypot(own.standard_error, best.standard_error),
                probability,
                own.converged,
            )
            for name, own, probability in zip(order, map(evidences.__getitem__, order), weights, strict=True)
        ]

    @property
    def verdict(self) -> str:
        """What follows, in plain words."""
        doubtful = [row.name for row in self.rows if not row.converged]
        words = self._words()
        if doubtful:
            names = ", ".join(repr(name) for name in doubtful)
            return f"Do not believe it yet: the chains of {names} did not converge. If they had: {words}"
        return words

    def _words(self) -> str:
        best, *others = self.rows
        if not others:
            return f"There is only {best.name!r}, and nothing to compare it with."
        unclear = [row for row in others if -row.difference <= _SIGMAS * row.difference_error]
        close = [row for row in others if -row.difference < _DECISIVE]
        if unclear:
            names = ", ".join(repr(row.name) for row in unclear)
            return f"{best.name!r} and {names} differ by less than the errors tell; a smaller tolerance may."
        if close:
            names = ", ".join(repr(row.name) for row in close)
            return f"The data prefer {best.name!r}, but do not rule out {names}."
        times = math.exp(min(700.0, -others[0].difference))
        return (
            f"The data prefer {best.name!r}: it is {times:.3g} times as probable as {others[0].name!r}, the next one."
        )

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [" " * width + _joined(_HEAD)]
        for row in self.rows:
            numbers = (row.log_evidence, row.standard_error, row.difference, row.difference_error)
            cells = [f"{number:.3f}" for number in numbers]
            cells += [f"{row.probability:.3g}", "yes" if row.converged else "no"]
            lines.append(f"{row.name:<{width}}" + _joined(cells))
        return "\n".join([*lines, "", self.verdict])

    def __repr__(self) -> str:
        return f"Comparison({', '.join(f'{row.name}: {row.log_evidence:.2f}' for row in self.rows)})"


def compare(models: Mapping[str, Program], *args: Any, **kwargs: Any) -> Comparison:
    """Compare models of the same data by their evidence: spaces, dimensions, curvatures or whatever else differs.

    The probability of a model is that of equal weights before the data. It depends on the priors of all latents, so
    give those that the models share the same ones.

    :param models: programs by name, which all take the same arguments.
    :param args: their arguments.
    :param kwargs: those of the programs, and of :func:`log_evidence`.

    >>> import pyro
    >>> import pyro.distributions as dist
    >>> def model(data, scale):
    ...     loc = pyro.sample("loc", dist.Normal(0.0, scale))
    ...     with pyro.plate("data", len(data)):
    ...         pyro.sample("x", dist.Normal(loc, 1.0), obs=data)
    >>> models = {"narrow": lambda data: model(data, 1.0), "wide": lambda data: model(data, 100.0)}
    >>> found = compare(models, torch.tensor([1.0, 2.0]), num_samples=400, warmup=100, progress=False)
    >>> [row.name for row in found.rows]
    ['narrow', 'wide']
    >>> print(found.verdict)
    The data prefer 'narrow': it is 38... times as probable as 'wide', the next one.
    """
    if not isinstance(models, Mapping) or not models:
        raise ValueError(f"models must be a dictionary from names to programs, got {models!r}.")
    for name, model in models.items():
        check_program(f"models[{name!r}]", model)
    return Comparison({str(name): log_evidence(model, *args, **kwargs) for name, model in models.items()})


def _joined(cells: Any) -> str:
    return "".join(f"{cell:>{_WIDTH}}" for cell in cells)
