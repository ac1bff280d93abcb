"""Spaces by their signature, as command lines and constructors take them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from pyro_hyperbolic.geometry.euclidean import Euclidean
from pyro_hyperbolic.geometry.lorentz import Lorentz
from pyro_hyperbolic.geometry.manifold import Manifold
from pyro_hyperbolic.geometry.poincare import PoincareBall
from pyro_hyperbolic.geometry.product import Product
from pyro_hyperbolic.geometry.sphere import Sphere
from pyro_hyperbolic.geometry.stereographic import Stereographic

Curvature = float | Tensor


class Letter(NamedTuple):
    """A kind of factor: its class, and which argument is its curvature."""

    space: Callable[..., Manifold]
    argument: str | None


LETTERS = {
    "h": Letter(Lorentz, "c"),
    "p": Letter(PoincareBall, "c"),
    "s": Letter(Sphere, "c"),
    "u": Letter(Stereographic, "k"),
    "e": Letter(Euclidean, None),
}
"""Hyperboloid, Poincaré ball, sphere, stereographic chart of either sign and Euclidean space, as mvae writes them."""


def from_signature(signature: str, c: Curvature | Sequence[Curvature] = 1.0, k: Curvature = 0.0) -> Manifold:
    """The space of a signature such as ``"h2,s2,e2"``: a letter of :data:`LETTERS` and a dimension for each factor.

    :param signature: the factors, separated by commas; a single one is not a product.
    :param c: ``c`` of the factors ``h``, ``p`` and ``s``, one number for all or one for each.
    :param k: the curvature of the factors ``u``.

    >>> from_signature("h2,s2,e2")
    Product((Lorentz(c=1.0), 2), (Sphere(c=1.0), 2), (Euclidean(), 2))
    >>> from_signature("u5", k=-0.5)
    Stereographic(k=-0.5)
    """
    factors = [(LETTERS[letter], dim) for letter, dim in parse(signature)]
    scaled = sum(kind.argument == "c" for kind, _ in factors)
    values = list(c) if isinstance(c, Sequence) else [c] * scaled
    if len(values) != scaled:
        names = [letter for letter, kind in LETTERS.items() if kind.argument == "c"]
        raise ValueError(
            f"c must be a number or one for each of the {scaled} factors {', '.join(names[:-1])} and {names[-1]} of"
            f" {signature!r}, got {len(values)}."
        )
    rest = iter(values)
    made = []
    for kind, dim in factors:
        if kind.argument is None:
            made.append((kind.space(), dim))
        else:
            made.append((kind.space(next(rest) if kind.argument == "c" else k), dim))
    return made[0][0] if len(made) == 1 else Product(*made)


def signature_dim(signature: str) -> int:
    """The dimension of the space of a signature.

    >>> signature_dim("h2,s2,e2")
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
