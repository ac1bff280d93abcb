"""A program as the energy of one vector."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import MaskedDistribution
from pyro.distributions.util import sum_rightmost
from pyro.infer.autoguide.initialization import InitMessenger, init_to_sample, init_to_value
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to, constraints

from pyro_hyperbolic.accelerate.bounds.enumeration import enumerated_elbo
from pyro_hyperbolic.accelerate.programs.modes import (
    ConstantMasks,
    ConstantsOnDevice,
    DecompositionsOnDevice,
    OutOfPlaceRandom,
)
from pyro_hyperbolic.accelerate.programs.sources import Latents, Sources
from pyro_hyperbolic.distributions.base import ManifoldDistribution, base_distribution
from pyro_hyperbolic.distributions.constraints import OnManifold
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.infer.match import manifold_of
from pyro_hyperbolic.infer.reparam import ManifoldReparam, NoiseReparam
from pyro_hyperbolic.infer.reparam.manifold_reparam import NormalCoordinates
from pyro_hyperbolic.private import mask_of

Program = Callable[..., Any]

# Of which the location and the scale make a number from noise, some of them as its logarithm.
_LOC_SCALE = dist.Normal, dist.Laplace, dist.Cauchy, dist.Gumbel, dist.LogNormal

_SUFFIX, _NOISE = (f"_{reparam.suffix}" for reparam in (ManifoldReparam, NoiseReparam))


@dataclass(frozen=True)
class Site:
    """A latent of the program as it is sampled: a block of the vector.

    :ivar shape: of its unconstrained values.
    :ivar point: the site of points whose coordinates or noise these are, if they are.
    :ivar is_noise: whether these are the noise that points are made of.
    :ivar is_plain: whether its values are these numbers themselves, as it may have any.
    """

    shape: torch.Size
    dtype: torch.dtype
    point: str | None = None
    is_noise: bool = False
    is_plain: bool = True

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


class Energy:
    r"""Minus the logarithm of the joint density of a program, as a function of its latents in one flat vector.

    Every latent is a function of numbers without bounds, by the bijection of its support in the present run, so a
    support may depend on other latents. Points of a manifold are written in their normal coordinates at the origin
    (:class:`~pyro_hyperbolic.infer.ManifoldReparam`), so the curvature may be a latent too. The energy is that of these
    numbers with respect to Lebesgue measure. Discrete sites that are marked to be enumerated are summed out.

    A wrapped normal around the origin of a sphere has an infinite density at the antipode, which the coordinates put at
    infinity: where the data leave points there, the coordinates have no variance and chains take tiny steps. Points of
    spheres at a site with ``infer={"noise": True}`` are therefore written as functions of white noise
    (:class:`~pyro_hyperbolic.infer.NoiseReparam`). Such points are not rearranged by moves.

    :param model: the program, of fixed structure.
    :param args: its arguments, like ``kwargs``.
    """

    def __init__(self, model: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.program = poutine.reparam(model, _points)
        with Sources() as sources, Latents(sources), _Spaces(sources) as spaces, _Scaled(sources) as scaled:
            first, second = self._prior_trace(), self._prior_trace()
        self.spaces = spaces.found
        at_origin = spaces.at_origin
        self.program = poutine.reparam(model, lambda msg: _points(msg, msg["name"] in at_origin))
        self.enumerated = {name for name, site in first.nodes.items() if _is_summed_out(site)}
        self.sites = self._checked(first)
        self._scaled = {name: parents for name, parents in scaled.found.items() if not parents & self.enumerated}
        self._scales = {name: parents for name, parents in scaled.scales.items() if name in self._scaled}
        self._depend = {name for name in scaled.depend if name in self.sites}
        _check_observed(first, sources)
        self.shapes = {name: first.nodes[name]["value"].shape for name in [*self.sites, *self.spaces]}
        _compare(first, second)
        if self._checked(second) != self.sites:
            raise ValueError("the shapes of sites of model depend on values; give every site one shape.")
        frames = [frame for site in first.nodes.values() for frame in site.get("cond_indep_stack", ())]
        self._nesting = max([-frame.dim for frame in frames if frame.vectorized], default=0)
        dtypes = [site.dtype for site in self.sites.values()]
        self.dtype = max(dtypes, key=lambda dtype: torch.finfo(dtype).bits)
        self.device = first.nodes[next(iter(self.sites))]["value"].device
        self._check_is_function(self._vector(first))

    @property
    def size(self) -> int:
        """How many numbers the latents are."""
        return sum(site.size for site in self.sites.values())

    @property
    def has_scales(self) -> bool:
        """Whether scales of numbers are computed from other numbers."""
        return bool(self._scales)

    @property
    def moved(self) -> list[str]:
        """The sites from which scales are computed, or locations of more numbers than their own and not by others."""
        sizes: Counter[str] = Counter()
        for name, parents in self._scaled.items():
            sizes.update(dict.fromkeys(parents, self.sites[name].size))
        of_scales = frozenset().union(*self._scales.values())

        def is_moved(name: str, site: Site) -> bool:
            return name in of_scales or (name not in self._scaled and site.size < sizes[name])

        return [name for name, site in self.sites.items() if site.point is None and is_moved(name, site)]

    @property
    def all_scales_move(self) -> bool:
        """Whether sites depend on others by locations and scales alone, and all that scales are computed from moves.

        It is false without scales.
        """
        of_scales = frozenset().union(*self._scales.values())
        return self.has_scales and self._depend <= self._scaled.keys() and of_scales <= {*self.moved}

    def move(self, vector: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """A vector ``(D,)`` whose numbers are shifted, and the logarithm of the determinant of this map.

        Sites with a location or a scale that is computed from others keep their noise, to which the shift is added.
        """
        program = self._summed()
        with OutOfPlaceRandom(), ConstantMasks(), ConstantsOnDevice(), DecompositionsOnDevice():
            with _Noise(self._numbers(vector), self._scaled.keys()) as before:
                program(*self.args, **self.kwargs)
            numbers = {**before.numbers, **before.noise}
            parts = {name: numbers[name] + step for name, step in self._numbers(shift).items()}
            with _Noise(parts, self._scaled.keys(), inverse=True) as after:
                program(*self.args, **self.kwargs)
        return self._joined(after.numbers), after.log_det - before.log_det

    def __call__(self, vector: Tensor) -> tuple[Tensor, Tensor, dict[str, list[Tensor]]]:
        """The energy of one vector ``(D,)``, what scales add to it, and the curvatures of the spaces of points by site.

        The second is the sum of the logarithms of scales that are computed from other numbers. Less that, it is the
        energy with respect to the noise of what these scale.
        """
        with OutOfPlaceRandom(), ConstantMasks(), ConstantsOnDevice(), DecompositionsOnDevice():
            return self._energy(vector)

    def _energy(self, vector: Tensor) -> tuple[Tensor, Tensor, dict[str, list[Tensor]]]:
        with _Spaces() as spaces:
            trace, log_det = self._run(vector)
        log_joint = trace.log_prob_sum() if not self.enumerated else self._summed_out(trace)
        log_det = log_det + self._unscaled(trace)
        curvatures = {
            name: [torch.as_tensor(c, dtype=self.dtype, device=self.device) for c in space.curvatures]
            for name, space in spaces.found.items()
        }
        # Densities of data may be wider than the latents.
        return -(log_joint + log_det).to(self.dtype), self._log_scales(trace).to(self.dtype), curvatures

    def _log_scales(self, trace: Any) -> Tensor:
        total = torch.zeros((), dtype=self.dtype, device=self.device)
        for name in self._scales:
            scale = base_distribution(trace.nodes[name]["fn"]).scale
            total = total + scale.expand(self.sites[name].shape).log().sum()
        return total

    def _unscaled(self, trace: Any) -> Any:
        """What densities of coordinates lack where those of points are scaled: a scale is no power of their measure."""
        total: Any = 0.0
        for name, own in self.sites.items():
            node = trace.nodes[name]
            if own.point is None or own.is_noise or _is_one(node["scale"]):
                continue
            log_det = base_distribution(node["fn"]).manifold.log_det_unconstrained(node["value"])
            total = total + ((1 - node["scale"]) * sum_rightmost(log_det, node["fn"].event_dim - 1)).sum()
        return total

    def values(self, vector: Tensor) -> dict[str, Tensor]:
        """Values of the latents and of the deterministic sites of the program."""
        with OutOfPlaceRandom(), ConstantMasks(), ConstantsOnDevice(), DecompositionsOnDevice():
            trace, _ = self._run(vector)
        hidden = self.enumerated | {name for name, site in self.sites.items() if site.point is not None}
        sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample" and name not in hidden}
        return {name: site["value"] for name, site in sites.items() if _is_latent(site) or _is_function(site)}

    def draw(self) -> tuple[Tensor, float]:
        """The vector of a draw from the prior, and the logarithm of its likelihood."""
        trace = self._prior_trace()
        with pyro.validation_enabled(False), torch.no_grad():
            trace.compute_log_prob(lambda name, site: site["is_observed"])
        scores = [site["log_prob_sum"] for site in trace.nodes.values() if site.get("log_prob_sum") is not None]
        return self._vector(trace), float(sum(scores))

    def vector_of(self, values: dict[str, Tensor]) -> Tensor:
        """The vector of values of the program's own sites; those that are not given are drawn from the prior."""
        program = InitMessenger(init_to_value(values=values, fallback=init_to_sample))(self.program)
        with pyro.validation_enabled(False), torch.no_grad(), _InSupport(values.keys() & self.sites.keys()):
            return self._vector(poutine.trace(program).get_trace(*self.args, **self.kwargs))

    def culprit(self, vector: Tensor) -> str:
        """The site whose density at a vector is 0 or not a number, for an error message."""
        with pyro.validation_enabled(False), torch.no_grad():
            trace, _ = self._run(vector)
            trace.compute_log_prob()
        for name, site in trace.nodes.items():
            if site["type"] == "sample" and not bool(torch.as_tensor(site["log_prob_sum"]).isfinite()):
                return f"site {name!r}"
        return "the program"

    def columns(self, name: str) -> Tensor:
        """Where the coordinates of a site are in a vector, with the shape of the site."""
        start = 0
        for other, site in self.sites.items():
            if other == name:
                return torch.arange(start, start + site.size, device=self.device).reshape(site.shape)
            start += site.size
        raise KeyError(name)

    def _check_is_function(self, vector: Tensor) -> None:
        """Refuse a program that draws more random numbers than its sites, or sites that enumerated ones multiply."""
        state = torch.get_rng_state if self.device.type == "cpu" else lambda: torch.cuda.get_rng_state(self.device)
        before = state()
        with pyro.validation_enabled(False), torch.no_grad():
            trace, _ = self._run(vector)
        for name in self.spaces:
            _check_shape(name, trace.nodes[name]["value"], self.shapes)
        if not torch.equal(before, state()):
            raise ValueError(
                "model draws random numbers that belong to no site, so that its density is another one in each run;"
                " leave out what samples the data (num_nonedges= of a LatentSpaceNetwork) or drops units, with"
                " module.eval()."
            )

    def _vector(self, trace: Any) -> Tensor:
        nodes = trace.nodes
        return self._joined(
            {name: _bijection(nodes[name]["fn"]).inv(nodes[name]["value"]).detach() for name in self.sites}
        )

    def _joined(self, numbers: dict[str, Tensor]) -> Tensor:
        return torch.cat([numbers[name].reshape(-1).to(self.dtype) for name in self.sites])

    def _numbers(self, vector: Tensor) -> dict[str, Tensor]:
        parts = vector.split([site.size for site in self.sites.values()])
        return {
            name: part.reshape(site.shape).to(site.dtype)
            for (name, site), part in zip(self.sites.items(), parts, strict=True)
        }

    def _run(self, vector: Tensor) -> tuple[Any, Any]:
        with poutine.trace() as tracer, _Assigned(self._numbers(vector), self.shapes) as assigned:
            self._summed()(*self.args, **self.kwargs)
        return tracer.trace, assigned.log_det

    def _summed_out(self, trace: Any) -> Tensor:
        """The logarithm of the joint density, with enumerated sites summed out: a bound without a guide."""
        nothing = poutine.trace(lambda: None).get_trace()
        trace.compute_log_prob()
        nothing.pack_tensors()
        trace.pack_tensors()
        return enumerated_elbo(trace, nothing)

    def _summed(self) -> Program:
        if not self.enumerated:
            return self.program
        return poutine.enum(self.program, first_available_dim=-1 - self._nesting)

    def _prior_trace(self) -> Any:
        with pyro.validation_enabled(False), torch.no_grad(), _Proper():
            return poutine.trace(self.program).get_trace(*self.args, **self.kwargs)

    def _checked(self, trace: Any) -> dict[str, Site]:
        sites = {}
        for name, site in trace.nodes.items():
            if site["type"] != "sample":
                continue
            if site_is_subsample(site) and (site["fn"].subsample_size or site["fn"].size) < site["fn"].size:
                raise ValueError(
                    f"plate {name!r} of model draws a subsample, so that the posterior would be another one in each"
                    " step; give it all of its data."
                )
            if _is_summed_out(site) and not site["fn"].has_enumerate_support:
                raise ValueError(
                    f"site {name!r} cannot be enumerated, as {type(site['fn']).__name__} has no list of its values;"
                    " sum it out by hand, or use a Categorical of as many values as matter."
                )
            if _is_latent(site) and not _is_summed_out(site):
                is_noise = _is_noise(site)
                is_coords = is_noise or isinstance(base_distribution(site["fn"]), NormalCoordinates)
                point = name.removesuffix(_NOISE if is_noise else _SUFFIX) if is_coords else None
                _check_site(point or name, site)
                if is_noise and not _is_one(site["scale"]):
                    raise ValueError(
                        f"site {point!r} is drawn by its noise, whose density cannot be scaled in the place of its own;"
                        " leave infer={'noise': True} or poutine.scale out."
                    )
                try:
                    value = _bijection(site["fn"]).inv(site["value"])
                except NotImplementedError as error:
                    raise ValueError(
                        f"site {name!r} has a support that torch has no bijection for ({error}); write it by other"
                        " sites, a mixture by the kind of each point, which is enumerated, and its component, and draw"
                        " points of spheres from the distributions of this package."
                    ) from error
                is_plain = isinstance(_without_dims(site["fn"].support), type(constraints.real))
                sites[name] = Site(value.shape, value.dtype, point, is_noise, is_plain)
        if not sites:
            raise ValueError("model has no continuous latent, so there is nothing to sample.")
        return sites


def _check_shape(name: str, value: Tensor, shapes: dict[str, torch.Size]) -> None:
    if value.shape != shapes[name]:
        raise ValueError(
            f"the support of site {name!r}, or its curvature, depends on a site that is enumerated, so that it would"
            " have a value for each value of that; draw one for each in a plate, and let observations choose among"
            " them."
        )


def _is_one(scale: Any) -> bool:
    return not isinstance(scale, Tensor) and scale == 1


def _check_site(name: str, site: Any) -> None:
    masks = _masks(site)
    if name.endswith("_unobserved") and masks:
        raise ValueError(
            f"site {name!r} is what obs_mask= makes: latents for all data, those that are known too, of which nothing"
            " holds the values; observe all data with a mask, as in dist.Normal(...).mask(known), and draw those that"
            " are missing from the posterior's predictive distribution."
        )
    if not all(bool(torch.as_tensor(mask).all()) for mask in masks):
        raise ValueError(
            f"site {name!r} is a latent with a mask: where that is False it has no density, and the posterior no"
            " integral; mask observations alone."
        )
    if site["fn"].support.is_discrete:
        raise ValueError(
            f"site {name!r} is discrete and is not enumerated; sum it out, with infer={{'enumerate': 'parallel'}} in"
            " its pyro.sample or with pyro.infer.config_enumerate(model, 'parallel')."
        )


def _check_observed(trace: Any, sources: Sources) -> None:
    """Refuse observed values that a distribution does not have: without validation it has a density there."""
    for name, site in trace.nodes.items():
        support = getattr(base_distribution(site["fn"]), "support", None) if site["type"] == "sample" else None
        if support is None or not site["is_observed"] or _masks(site) or not isinstance(site["value"], Tensor):
            continue
        if any(sources.of(tensor) for tensor in (site["value"], *_tensors_of(support))):
            continue  # they are others in another run
        if not bool(site["fn"].support.check(site["value"]).all()):
            raise ValueError(
                f"site {name!r} is observed to have values that its distribution cannot have ({site['fn'].support});"
                " check the data."
            )


def _tensors_of(support: Any) -> Iterator[Tensor]:
    """The bounds and curvatures of a support, and of those that it is made of."""
    parts = support.manifold.curvatures if isinstance(support, OnManifold) else vars(support).values()
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        for inner in part if isinstance(part, (list, tuple)) else [part]:
            if isinstance(inner, constraints.Constraint):
                yield from _tensors_of(inner)


def _without_dims(support: Any) -> Any:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _masks(site: Any) -> list[Any]:
    """The masks of a site, of handlers and of its distribution."""
    found, distribution = [] if site["mask"] is None else [site["mask"]], site["fn"]
    while distribution is not None:
        if isinstance(distribution, MaskedDistribution):
            found.append(mask_of(distribution))
        distribution = getattr(distribution, "base_dist", None)
    return found


def _compare(first: Any, second: Any) -> None:
    """Refuse a program whose sites depend on values."""
    before, after = ([(name, site["type"]) for name, site in trace.nodes.items()] for trace in (first, second))
    if before != after:
        changed = sorted({name for name, _ in before} ^ {name for name, _ in after}) or [before[0][0]]
        raise ValueError(
            f"the structure of model depends on values: site {changed[0]!r} is not there, or not in the same place, in"
            " every run; write the alternatives as one program of fixed structure, or use pyro.infer.Importance."
        )


def _points(msg: Any, at_origin: bool = False) -> ManifoldReparam | NoiseReparam | None:
    """The strategy: latent points are drawn by their normal coordinates, or by noise where they ask for it."""
    support = manifold_of(base_distribution(msg["fn"]))
    if msg["is_observed"] or support is None:
        return None
    if msg["infer"].get("noise") and support.manifold.geodesics_close:
        return NoiseReparam()
    return ManifoldReparam(at_origin)


def _is_noise(site: Any) -> bool:
    """Whether a site is that of the noise of points."""
    return site["name"].endswith(_NOISE) and hasattr(base_distribution(site["fn"]), "checked")


def _bijection(distribution: Any) -> Any:
    return biject_to(distribution.support)


def _is_latent(site: Any) -> bool:
    return not (site["type"] != "sample" or site["is_observed"] or site_is_subsample(site) or _is_function(site))


def _is_summed_out(site: Any) -> bool:
    return _is_latent(site) and site["infer"].get("enumerate") == "parallel"


def _is_function(site: Any) -> bool:
    """Whether a site is deterministic, which a reparametrised one is too."""
    return isinstance(base_distribution(site["fn"]), dist.Delta)


class _Proper(Messenger):
    """Refuses priors of which nothing can be drawn."""

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"] and isinstance(base_distribution(msg["fn"]), dist.ImproperUniform):
            raise ValueError(
                f"site {msg['name']!r} has an improper prior, of which nothing can be drawn and under which the"
                " posterior may not exist; use a proper one, such as a wide Normal."
            )


class _InSupport(Messenger):
    """Refuses values of some sites that these cannot have."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.names = names

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self.names and not bool(msg["fn"].support.check(msg["value"]).all()):
            raise ValueError(
                f"start has values of site {msg['name']!r} that are not in its support, {msg['fn'].support}; pass"
                " others, or none."
            )


class _Assigned(Messenger):
    """Gives latents the values of numbers without bounds, and sums the logarithms of the Jacobians."""

    def __init__(self, numbers: dict[str, Tensor], shapes: dict[str, torch.Size]) -> None:
        super().__init__()
        self.numbers, self.shapes = numbers, shapes
        self.log_det: Any = 0.0

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] not in self.numbers or msg["is_observed"]:
            return
        number = self.numbers[msg["name"]]
        transform = _bijection(msg["fn"])
        msg["value"] = transform(number)
        _check_shape(msg["name"], msg["value"], self.shapes)
        msg["done"] = True
        self.log_det = self.log_det + transform.log_abs_det_jacobian(number, msg["value"]).sum()


class _Noise(Messenger):
    """Gives latents the values of numbers without bounds, and some of them that of their noise, or the other way round.

    :ivar noise: of the sites named: what their location and scale make their numbers.
    :ivar log_det: the sum of the logarithms of their scales.
    :param inverse: whether the numbers given for these are their noise.
    """

    def __init__(self, numbers: dict[str, Tensor], scaled: Collection[str], inverse: bool = False) -> None:
        super().__init__()
        self.numbers, self.scaled, self.inverse = dict(numbers), scaled, inverse
        self.noise: dict[str, Tensor] = {}
        self.log_det: Any = 0.0

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        if name not in self.numbers or msg["is_observed"]:
            return
        if name in self.scaled:
            given = self.numbers[name]
            base = base_distribution(msg["fn"])
            loc, scale = base.loc.expand(given.shape), base.scale.expand(given.shape)
            self.noise[name] = given if self.inverse else (given - loc) / scale
            self.numbers[name] = loc + scale * given if self.inverse else given
            self.log_det = self.log_det + scale.log().sum()
        msg["value"], msg["done"] = _bijection(msg["fn"])(self.numbers[name]), True


class _Scaled(Messenger):
    """Notes latents with a location or a scale that comes from others, and from which.

    :ivar found: by site.
    :ivar scales: the same of scales alone.
    :ivar depend: the latents whose density depends on others in any way.
    """

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self._sources = sources
        self.found: dict[str, frozenset[str]] = {}
        self.scales: dict[str, frozenset[str]] = {}
        self.depend: set[str] = set()

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["is_observed"] or site_is_subsample(msg) or _is_function(msg):
            return
        base = base_distribution(msg["fn"])
        value = torch.tensor(msg["value"].tolist(), dtype=msg["value"].dtype, device=msg["value"].device)
        if self._sources.of(msg["fn"].log_prob(value)):
            self.depend.add(msg["name"])
        if type(base) not in _LOC_SCALE:
            return
        scale = self._sources.of(base.scale)
        if scale:
            self.scales[msg["name"]] = scale
        if parents := self._sources.of(base.loc) | scale:
            self.found[msg["name"]] = parents


class _Spaces(Messenger):
    """Notes the spaces of points, and which of their distributions are centred at the origin in every run.

    :ivar found: by site.
    :param sources: what tensors were computed from, to look for the latter, which reads values.
    """

    def __init__(self, sources: Sources | None = None) -> None:
        super().__init__()
        self._sources = sources
        self.found: dict[str, Manifold] = {}
        self._elsewhere: set[str] = set()

    @property
    def at_origin(self) -> set[str]:
        """The sites of the latter, where geodesics do not close."""
        return self.found.keys() - self._elsewhere

    def _pyro_post_sample(self, msg: Any) -> None:
        coords = base_distribution(msg["fn"])
        if _is_noise(msg):
            name = msg["name"].removesuffix(_NOISE)
            self.found[name] = coords.checked.manifold
            self._elsewhere.add(name)
            return
        if not msg["name"].endswith(_SUFFIX) or not hasattr(coords, "distribution"):
            return
        name, space, inner = msg["name"].removesuffix(_SUFFIX), coords.manifold, coords.distribution
        self.found[name] = space
        if self._sources is None or name in self._elsewhere:
            return
        is_plain = isinstance(inner, ManifoldDistribution) and not space.geodesics_close
        if not is_plain or self._may_move(inner.loc, space) or bool(space.to_normal_coords(None, inner.loc).any()):
            self._elsewhere.add(name)

    def _may_move(self, loc: Tensor, space: Manifold) -> bool:
        """Whether a centre comes from latents; the origin of a hyperboloid does from its curvature."""
        assert self._sources is not None
        curvatures = [self._sources.of(c) for c in space.curvatures if isinstance(c, Tensor)]
        return not self._sources.of(loc) <= frozenset().union(*curvatures)
