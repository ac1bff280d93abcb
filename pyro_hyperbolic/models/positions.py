"""Points of a space as latents: their prior, with a curvature that is fixed, learned or drawn, and a guide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, biject_to, constraints

from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.geometry import Manifold, Product, signature_dim
from pyro_hyperbolic.models.latent import bounded
from pyro_hyperbolic.nn import ManifoldModule
from pyro_hyperbolic.ops.checks import check_choice, checked_integer, is_number

CURVATURES = ("fixed", "learned", "drawn")
WIDTH = 0.1  # of a guide at first, in radii of the points or on the scale of logarithms


class MeanField(nn.Module):
    """Guides of numbers: for each site a normal distribution, taken to the support of the site.

    :param sites: support and shape of each site. A shape of more than no dimension is that of an event.
    :ivar supports: by site.
    """

    def __init__(self, sites: Mapping[str, tuple[constraints.Constraint, tuple[int, ...]]]) -> None:
        super().__init__()
        self.supports = {name: support for name, (support, _) in sites.items()}
        shapes = {name: biject_to(support).inverse_shape(shape) for name, (support, shape) in sites.items()}
        self.loc = nn.ParameterDict({name: torch.zeros(shape) for name, shape in shapes.items()})
        self.log_scale = nn.ParameterDict({n: torch.full(shape, math.log(WIDTH)) for n, shape in shapes.items()})

    def draw(self, name: str, like: Tensor) -> Tensor:
        """Draw a site, in the dtype of another tensor."""
        loc, scale = self.loc[name].to(like.dtype), self.log_scale[name].exp().to(like.dtype)
        normal = dist.Normal(loc, scale).to_event(loc.dim())
        return pyro.sample(name, dist.TransformedDistribution(normal, [biject_to(self.supports[name])]))

    @torch.no_grad()
    def begin(self, values: Mapping[str, Tensor]) -> None:
        """Put the medians of sites at values."""
        for name in self.supports.keys() & values.keys():
            if not bool(self.supports[name].check(values[name]).all()):
                raise ValueError(
                    f"values[{name!r}] must be within the support of its prior, {self.supports[name]}, got"
                    f" {values[name].tolist()}."
                )
            self.loc[name].copy_(biject_to(self.supports[name]).inv(values[name]))
            self.log_scale[name].fill_(math.log(WIDTH))


class Positions(nn.Module):
    r"""Points of a space, around its origin.

    .. math:: c \sim p(c), \qquad \log s \sim \mathcal{N}(\log u, 1), \qquad z_i \sim \mathcal{N}(0, s^2),\quad i \le N

    with wrapped normals, and a unit of length :math:`u` that belongs to the data. The sites are ``"c"``, if the
    curvature is drawn, ``"spread"`` and ``"z"``, which is in the plate ``"data"``. Of a product of several curved
    factors the first site is ``"c_0"``, the next ``"c_1"``. By default :math:`\log c \sim
    \mathcal{N}(-2\log u, 1.5^2)`, and :math:`\mathcal{N}(0, u^{-4})` for a curvature of either sign.

    :param space: a signature such as ``"h2"`` or ``"h2,e1"``, or a manifold.
    :param num_points: number ``N`` of points.
    :param dim: dimension of the space. A signature and a product have it.
    :param curvature: ``"fixed"``, as ``space`` has it (1 for a signature), or at a number; ``"learned"`` as a parameter
        that begins there; ``"drawn"``, or a prior.
    :param spread: prior of the scale ``s``, a distribution of positive numbers; or ``"unit"`` for :math:`s = u`, which
        has no site. The unit has no part in priors that are given.

    >>> _ = torch.manual_seed(0)
    >>> positions = Positions("h2,e1", 5, curvature="drawn")
    >>> space, z = positions.draw(torch.ones(()))
    >>> z.shape, sorted(positions.drawn)
    (torch.Size([5, 4]), ['c'])
    """

    def __init__(
        self,
        space: Manifold | str,
        num_points: int,
        *,
        dim: int | None = None,
        curvature: str | float | Distribution = "drawn",
        spread: Distribution | str | None = None,
    ) -> None:
        super().__init__()
        self.num_points = checked_integer("number of points", num_points, least=2)
        self.dim = _dim_of(space, dim)
        self.space, self.priors = _with_curvature(space, curvature, self.dim)
        self.space.check_dim("dim", self.dim)
        self.is_unit = isinstance(spread, str)
        if isinstance(spread, str):
            check_choice("spread", spread, ["unit"])
        self.spread = None if self.is_unit else checked_prior("spread", spread)
        names = ["c"] if len(self.priors) == 1 else [f"c_{i}" for i in range(len(self.priors))]
        self.drawn = dict(zip(names, self.space().signed_curvatures, strict=False))
        given = dict(zip(names, self.priors, strict=True)) | ({} if self.is_unit else {"spread": self.spread})
        usual = {name: constraints.real if self.drawn.get(name) else constraints.positive for name in given}
        self.numbers = MeanField({n: (usual[n] if p is None else p.support, ()) for n, p in given.items()})
        self.loc = nn.Parameter(WIDTH * torch.randn(self.num_points, self.dim))
        self.log_scale = nn.Parameter(torch.full((self.num_points, self.dim), math.log(WIDTH)))

    def draw_space(self, unit: Tensor) -> Manifold:
        """The space of the model, its curvature drawn from the prior if it is not fixed.

        :param unit: of length, ``()``, in the dtype of the data and on their device.
        """
        return self._space(
            pyro.sample(name, prior if prior is not None else _curvature_prior(signed, unit)).to(unit.dtype)
            for (name, signed), prior in zip(self.drawn.items(), self.priors, strict=True)
        )

    def draw(self, unit: Tensor) -> tuple[Manifold, Tensor]:
        """The space and the points ``(..., N, D)`` of the model."""
        space, spread = self.draw_space(unit), unit
        if not self.is_unit:
            prior = self.spread if self.spread is not None else dist.LogNormal(unit.log(), torch.ones_like(unit))
            spread = pyro.sample("spread", prior).to(unit.dtype)
        return space, self._points(space, space.origin(self.dim, unit.dtype, unit.device), spread.unsqueeze(-1))

    def guide_space(self, unit: Tensor) -> Manifold:
        """The space of the guide."""
        return self._space(self.numbers.draw(name, unit) for name in self.drawn)

    def guide(self, unit: Tensor) -> tuple[Manifold, Tensor]:
        """The space and the points of the guide, independent wrapped normals."""
        space = self.guide_space(unit)
        if not self.is_unit:
            self.numbers.draw("spread", unit)
        loc, scale = self.loc.to(unit.dtype), self.log_scale.exp().to(unit.dtype)
        return space, self._points(space, space.from_normal_coords(None, loc), scale)

    def _space(self, drawn: Iterable[Tensor]) -> Manifold:
        space, values = self.space(), list(drawn)
        return space.with_curvatures(values) if values else space

    def _points(self, space: Manifold, loc: Tensor, scale: Tensor) -> Tensor:
        with pyro.plate("data", self.num_points):
            # Of points that are known by edges alone some may be anywhere on a sphere: see infer.posterior.energy.
            return pyro.sample(
                "z", WrappedNormal(loc, bounded(scale, space, self.dim), space), infer={"noise": self.is_unit}
            )

    def manifold(self, samples: Mapping[str, Tensor]) -> Manifold:
        """The space of draws of points ``(..., N, D)``, with the curvature of each draw.

        :param samples: by site; without a curvature that is drawn it is the present one.
        """
        return self._space(samples[name].unsqueeze(-1) for name in self.drawn)

    @torch.no_grad()
    def begin(self, values: Mapping[str, Tensor]) -> None:
        """Put the guide at values by site, ``"z"`` among them, as a start of training."""
        if lost := sorted({"z", *self.drawn} - values.keys()):
            raise ValueError(f"values must hold one value for each site, but lack {lost}; pass those of start().")
        if values["z"].dim() != 2 or len(values["z"]) != self.num_points:
            raise ValueError(
                f"values['z'] must have shape ({self.num_points}, D), got {tuple(values['z'].shape)}; take one draw."
            )
        self.numbers.begin(values)
        space = self._space(values[name] for name in self.drawn)
        self.loc.copy_(space.to_normal_coords(None, values["z"]))
        self.log_scale.fill_(math.log(WIDTH) + 0.5 * self.loc.square().sum(-1).mean().log().item())


def _dim_of(space: Manifold | str, dim: int | None) -> int:
    known = signature_dim(space) if isinstance(space, str) else space.dim if isinstance(space, Product) else None
    if dim is None and known is None:
        raise ValueError(f"dim must be given for {space!r}, whose points may have any; pass for example dim=2.")
    return checked_integer("dim", known if dim is None else dim, least=1)


def _with_curvature(
    space: Manifold | str, curvature: str | float | Distribution, dim: int
) -> tuple[ManifoldModule, tuple[Distribution | None, ...]]:
    """The space, and for each curvature that is drawn its prior, ``None`` for that by default."""
    made = ManifoldModule(space, learnable=curvature == "learned" if isinstance(curvature, str) else False)
    count = len(made.curvatures)
    if isinstance(curvature, Distribution):
        return made, (checked_prior("curvature", curvature, real=all(made().signed_curvatures)),) * count
    if not isinstance(curvature, str):
        if not (
            is_number(curvature) and math.isfinite(curvature) and (all(made().signed_curvatures) or curvature >= 0)
        ):
            raise ValueError(
                f"curvature must be one of {list(CURVATURES)}, a number c >= 0 or a prior, got {curvature!r}; pass for"
                " example pyro.distributions.LogNormal(0.0, 1.0)."
            )
        given = made().with_curvatures([float(curvature)] * count)
        for leaf, _ in given.leaves(dim):
            type(leaf)(*leaf.curvatures)  # refuses 0 where there is no flat limit
        return ManifoldModule(given), ()
    check_choice("curvature", curvature, CURVATURES)
    return made, (None,) * count if curvature == "drawn" else ()


def in_support(support: constraints.Constraint, value: Tensor) -> Tensor:
    """A value to begin with, or where a support does not have it, one in the middle of that."""
    return value if bool(support.check(value).all()) else biject_to(support)(torch.zeros_like(value))


def checked_prior(name: str, prior: Any, real: bool = False) -> Any:
    """A prior of one number, positive or of either sign; nothing stays nothing."""
    if prior is None:
        return None
    is_one = isinstance(prior, Distribution) and prior.batch_shape == prior.event_shape == ()
    if not is_one or prior.support.is_discrete or not (real or not bool(prior.support.check(torch.tensor(-1.0)))):
        raise ValueError(
            f"{name} must have a prior of one {'real' if real else 'positive'} number, got {prior!r}; pass for example"
            " pyro.distributions.LogNormal(0.0, 1.0)."
        )
    return prior


def _curvature_prior(signed: bool, unit: Tensor) -> Any:
    if signed:
        return dist.Normal(torch.zeros_like(unit), unit**-2)
    return dist.LogNormal(-2 * unit.log(), torch.full_like(unit, 1.5))
