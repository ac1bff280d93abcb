"""Spaces by their signature, as command lines and constructors take them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torch import Tensor

from pyro_hyperbolic.geometry.euclidean import Euclidean
from pyro_hyperbolic.geometry.lorentz import Lorentz
from pyro_hyperbolic.geometry.manifold import Manifold
from pyro_hyperbolic.geometry.poincare import PoincareBall
from pyro_hyperbolic.geometry.product import Product
from pyro_hyperbolic.geometry.sphere import Sphere
from pyro_hyperbolic.geometry.stereographic import Stereographic

Curvature = float | Tensor

LETTERS: dict[str, Callable[[Curvature], Manifold]] = {
    "h": Lorentz,
    "p": PoincareBall,
    "s": Sphere,
    "u": lambda k: Stereographic(k),
    "e": lambda _: Euclidean(),
}
"""Hyperboloid, Poincaré ball, sphere, stereographic chart of either sign and Euclidean space, as mvae writes them."""


def space(signature: str, c: Curvature | Sequence[Curvature] = 1.0, k: Curvature = 0.0) -> Manifold:
    """The space of a signature such as ``"h2,s2,e2"``: a letter of :data:`LETTERS` and a dimension for each factor.

    :param signature: the factors, separated by commas; a single one is not a product.
    :param c: ``c`` of the factors ``h``, ``p`` and ``s``, one number for all or one for each.
    :param k: the curvature of the factors ``u``.

    >>> space("h2,s2,e2")
    Product((Lorentz(c=1.0), 2), (Sphere(c=1.0), 2), (Euclidean(), 2))
    >>> space("u5", k=-0.5)
    Stereographic(k=-0.5)
    """
    factors = parse(signature)
    curved = sum(letter in "hps" for letter, _ in factors)
    values = list(c) if isinstance(c, Sequence) else [c] * curved
    if len(values) != curved:
        raise ValueError(
            f"c must be a number or one for each of the {curved} factors h, p and s of {signature!r},"
            f" got {len(values)}."
        )
    rest = iter(values)
    made = [(LETTERS[letter](next(rest) if letter in "hps" else k), dim) for letter, dim in factors]
    return made[0][0] if len(made) == 1 else Product(*made)


def dimension(signature: str) -> int:
    """The dimension of the space.

    >>> dimension("h2,s2,e2")
    6
    """
    return sum(dim for _, dim in parse(signature))


def parse(signature: str) -> list[tuple[str, int]]:
    """Letters and dimensions of the factors."""
    if not isinstance(signature, str):
        raise ValueError(f"signature must be a string, got {signature!r}; write for example 'h2,s2,e2'.")
    factors = []
    for part in signature.split(","):
        match = re.fullmatch(r"([a-z])([1-9]\d*)", part.strip())
        if match is None or match[1] not in LETTERS:
            raise ValueError(
                f"a factor of a signature is one of the letters {', '.join(LETTERS)} and a dimension, got"
                f" {part.strip()!r} in {signature!r}; write for example 'h2,s2,e2'."
            )
        factors.append((match[1], int(match[2])))
    return factors
