"""The No-U-Turn sampler with compiled steps.

This file is a door to private names too: a kernel that adapts as Pyro's does works on what ``NUTS`` keeps to itself.
Where that is gone, or private names are switched off, :class:`FastNUTS` is Pyro's ``NUTS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyro
import torch
from pyro.infer import NUTS
from pyro.ops import integrator
from pyro.ops.integrator import potential_grad
from torch import Tensor

from pyro_hyperbolic.accelerate.programs.compiled import compile_function, explained
from pyro_hyperbolic.accelerate.programs.functional import check_program
from pyro_hyperbolic.accelerate.programs.warning import warn_user
from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.private import is_on

_REMEDY = "use pyro.infer.NUTS for this model"
# Steps from the initial point after which compiled and ordinary code are compared: the first that leads to a finite
# energy. Even the last one changes numbers around 1 in float32.
_TRIAL_SIZES = tuple(10.0**-power for power in range(1, 7))
# How many times the effect of rounding a position by which they may differ.
_ROUNDINGS = 30

# What is used of NUTS beside its public names.
_OF_NUTS = (
    *(
        "_accept_cnt",
        "_adapter",
        "_cache",
        "_direction_threshold",
        "_divergences",
        "_fetch_from_cache",
        "_max_stepsize",
    ),
    *("_max_sliced_energy", "_max_tree_depth", "_mean_accept_prob", "_min_stepsize", "_t"),
)


class Leaf(NamedTuple):
    """A point of a trajectory.

    :param z: the unconstrained values of all sites.
    :param p: their momentum, in units in which the mass matrix is one.
    :param grad: of the potential at ``z``.
    :param potential: at ``z``.
    """

    z: Tensor
    p: Tensor
    grad: Tensor
    potential: Tensor


class Tree(NamedTuple):
    """A part of a trajectory, built in one direction.

    :param first: its leaf that was built first.
    :param last: its leaf that was built last.
    :param proposal: one of its leaves, drawn by their weights.
    :param momentum: the sum over its leaves.
    :param log_weight: of all leaves together.
    :param accepted: the sum of the leaves' probabilities of acceptance.
    :param leaves: how many there are.
    """

    first: Leaf
    last: Leaf
    proposal: Leaf
    momentum: Tensor
    log_weight: float
    accepted: float
    leaves: int
    turning: bool = False
    diverging: bool = False


class FastNUTS(NUTS):
    r"""Takes what :class:`pyro.infer.NUTS` takes, and draws from the same posterior, faster.

    A leapfrog step with the energy and its gradient is one compiled function, and trees are built of vectors.
    Adaptation and diagnostics are Pyro's. Draws agree with those of ``NUTS`` in distribution, not number by number.

    The structure of the model must not depend on values: the model is run once, and what it computes is compiled, which
    takes seconds for small models and up to three minutes where a curvature is drawn. The compiled energy and its
    gradient are compared with the model's before the chain starts; a warning says so where no point near the initial
    one has a finite energy. After that, distributions are not validated. Where the energy is not finite, the
    trajectory ends, as a divergence.

    :param model: the model.
    :param potential_fn: instead of a model, its potential energy as a function of a dictionary of unconstrained values.
    :param options: those of :class:`pyro.infer.NUTS`. Those of torch's JIT are refused, and so is slice sampling.

    >>> from pyro.infer import MCMC
    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.distributions import WrappedNormal
    >>> def model():
    ...     ball = PoincareBall(1.0)
    ...     z = pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, ball))
    ...     pyro.sample("x", pyro.distributions.Normal(ball.dist0(z), 0.1), obs=torch.tensor(1.0))
    >>> mcmc = MCMC(FastNUTS(model), num_samples=30, warmup_steps=30, disable_progbar=True)
    >>> mcmc.run()
    >>> mcmc.get_samples()["z"].shape
    torch.Size([30, 2])
    """

    _compiled: Callable[..., Sequence[Tensor]] | None
    _roots: list[Tensor]

    def __init__(
        self, model: Callable[..., Any] | None = None, potential_fn: Callable[..., Any] | None = None, **options: Any
    ) -> None:
        for name in ("jit_compile", "jit_options", "ignore_jit_warnings"):
            if options.get(name):
                raise ValueError(f"{name} must be left out: FastNUTS compiles by itself; or use pyro.infer.NUTS.")
        if not options.get("use_multinomial_sampling", True):
            raise ValueError("use_multinomial_sampling must be True; for slice sampling use pyro.infer.NUTS.")
        for name, program in (("model", model), ("potential_fn", potential_fn)):
            if program is not None:
                check_program(name, program)
        checked_integer("max_tree_depth", options.get("max_tree_depth", 1), least=1)
        size = options.get("step_size")
        if size is not None and (isinstance(size, str) or not 0 < size < math.inf):
            raise ValueError(f"step_size must be a positive number, or None for Pyro's, got {size!r}.")
        self._is_fast = is_on()
        super().__init__(model, potential_fn, **options)
        if not all(hasattr(self, name) for name in _OF_NUTS):
            self._is_fast = False
        self.num_leapfrogs = 0
        """Of all chains of this kernel so far."""

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        super().setup(warmup_steps, *args, **kwargs)
        if self.initial_params and self._is_fast:
            self._compare()

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        if not params or not self._is_fast:
            return super().sample(params)
        z, potential, grads = self._fetch_from_cache()
        if z is None:  # it was cleared
            z = params
            grads, potential = potential_grad(self.potential_fn, z)
        start, energy = self._kicked(self._flat(z), self._flat(grads), potential)
        sizes = [torch.full_like(potential, sign * self.step_size) for sign in (-1, 1)]
        ends = [start, start]  # of the trajectory, backwards and forwards in time
        chosen, momentum, log_weight = start, start.p, 0.0
        accepted, leaves, diverging = 0.0, 0, False
        for depth in range(self._max_tree_depth):
            direction = int(_uniform() < 0.5)
            tree = self._grow(ends[direction], sizes[direction], depth, energy)
            ends[direction] = tree.last
            accepted, leaves = accepted + tree.accepted, leaves + tree.leaves
            diverging = tree.diverging
            if tree.diverging or tree.turning:
                break
            if _uniform() < _probability(tree.log_weight - log_weight):
                chosen = tree.proposal
            momentum = momentum + tree.momentum
            if _turns(ends[0].p, ends[1].p, momentum):
                break
            log_weight = _log_add(log_weight, tree.log_weight)
        new, grads = self._by_name(chosen.z), self._by_name(chosen.grad)
        self._cache(new, chosen.potential, grads)
        self._note(new, grads, accepted / leaves, chosen is not start, diverging)
        return new.copy()

    def _note(
        self, z: dict[str, Tensor], grads: dict[str, Tensor], probability: float, moved: bool, diverging: bool
    ) -> None:
        """Adaptation and diagnostics, as Pyro has them."""
        if diverging and self._t >= self._warmup_steps:
            self._divergences.append(self._t - self._warmup_steps)
        self._t += 1
        count = self._t - self._warmup_steps
        if count > 0:
            self._accept_cnt += int(moved)
        else:
            count = self._t
            self._adapter.step(self._t, z, torch.tensor(probability), grads)
        self._mean_accept_prob += (probability - self._mean_accept_prob) / count

    def _grow(self, leaf: Leaf, size: Tensor, depth: int, energy: float) -> Tree:
        """A tree of that depth, from the leaf after this one on; ``energy`` is that of the trajectory's start."""
        if depth == 0:
            new, own = self._leapfrog(leaf, size)
            change = math.inf if math.isnan(own) else own - energy
            return Tree(
                new, new, new, new.p, -change, _probability(-change), 1, diverging=change > self._max_sliced_energy
            )
        half = self._grow(leaf, size, depth - 1, energy)
        if half.turning or half.diverging:
            return half
        other = self._grow(half.last, size, depth - 1, energy)
        log_weight = _log_add(half.log_weight, other.log_weight)
        proposal = other.proposal if _uniform() < _probability(other.log_weight - log_weight) else half.proposal
        momentum = half.momentum + other.momentum
        turning = other.turning or _turns(half.first.p, other.last.p, momentum)
        accepted, leaves = half.accepted + other.accepted, half.leaves + other.leaves
        return Tree(half.first, other.last, proposal, momentum, log_weight, accepted, leaves, turning, other.diverging)

    def _find_reasonable_step_size(self, z: dict[str, Tensor]) -> float:
        """Pyro's search, in compiled steps."""
        if not self._is_fast:
            return super()._find_reasonable_step_size(z)
        size = self.step_size
        grads, potential = potential_grad(self.potential_fn, z)
        position, grad = self._flat(z), self._flat(grads)
        grows = None
        while grows is None or self._min_stepsize < size < self._max_stepsize:
            start, energy = self._kicked(position, grad, potential)
            _, new = self._leapfrog(start, torch.full_like(potential, size))
            good = energy - new > self._direction_threshold  # which nan is not
            if grows is None:
                grows = good
            elif good != grows:
                break
            size *= 2.0 if grows else 0.5
        return min(max(size, self._min_stepsize), self._max_stepsize)

    def _kicked(self, z: Tensor, grad: Tensor, potential: Tensor) -> tuple[Leaf, float]:
        """A point with a new momentum, and its energy."""
        # Roots of the inverse mass matrix, which changes between trajectories only.
        self._roots = [_root(matrix) for matrix in self.inverse_mass_matrix.values()]
        p = torch.randn_like(z)
        return Leaf(z, p, grad, potential), potential.item() + 0.5 * p.dot(p).item()

    def _leapfrog(self, leaf: Leaf, size: Tensor) -> tuple[Leaf, float]:
        """The next leaf, and its energy."""
        self.num_leapfrogs += 1
        if self._compiled is None:
            # Without moving, because there may be nothing where this step leads.
            still = leaf.z, leaf.p, leaf.grad, torch.zeros_like(size), *self._roots
            with explained("compiled", _REMEDY):
                self._compiled = compile_function(self._step, *still).fixed(*still)
        try:
            z, p, grad, potential, energy = self._compiled(leaf.z, leaf.p, leaf.grad, size, *self._roots)
        except Exception as error:
            # A matrix that has no factors, for example: a rejection for Pyro too.
            if not any(known(error) for known in getattr(integrator, "_EXCEPTION_HANDLERS", {}).values()):
                raise
            return leaf, math.inf
        return Leaf(z, p, grad, potential), energy.item()

    def _step(self, z: Tensor, p: Tensor, grad: Tensor, size: Tensor, *roots: Tensor) -> tuple[Tensor, ...]:
        """What is compiled."""
        p = p - 0.5 * size * _times(roots, grad)
        z = (z + size * _times([root.mT if root.dim() == 2 else root for root in roots], p)).detach().requires_grad_()
        with torch.enable_grad():
            potential = self.potential_fn(self._by_name(z))
            (grad,) = torch.autograd.grad(potential, z)
        potential = potential.detach()
        p = p - 0.5 * size * _times(roots, grad)
        return z.detach(), p, grad, potential, potential + 0.5 * p.dot(p)

    def _compare(self) -> None:
        """Compiled and ordinary energies and gradients, at another point than the one at which the model was traced."""
        z, potential, grads = self._fetch_from_cache()
        for size in _TRIAL_SIZES:
            start, _ = self._kicked(self._flat(z), self._flat(grads), potential)
            leaf, _ = self._leapfrog(start, torch.full_like(potential, size))
            with pyro.validation_enabled(False):
                expected_grads, expected = potential_grad(self.potential_fn, self._by_name(leaf.z))
            expected_grad = self._flat(expected_grads)
            if leaf is start or not (expected.isfinite() and expected_grad.isfinite().all()):
                continue  # after a smaller step they may be
            # Far out, the last digit of a position can change more than the order of the operations does.
            rounding = torch.finfo(leaf.z.dtype).eps
            moved = leaf._replace(z=leaf.z * (1 + rounding * torch.randn_like(leaf.z)))
            near, _ = self._leapfrog(moved, torch.zeros_like(potential))
            for what, own, other, beside in (
                ("energy", leaf.potential, expected, near.potential),
                ("gradient", leaf.grad, expected_grad, near.grad),
            ):
                error, scale, change = (own - other).abs().max(), other.abs().max(), (own - beside).abs().max()
                if not error <= rounding**0.5 * (1 + scale) + _ROUNDINGS * change:
                    raise ValueError(
                        f"the compiled {what} of the model is not the model's own at another point: they differ by"
                        f" {error.item():g}. The structure of the model may depend on values; {_REMEDY}."
                    )
            return
        warn_user(
            "the compiled energy of the model could not be compared with the model's own: the energy is not finite at"
            f" points as near to the initial one as a step of {_TRIAL_SIZES[-1]:g} leads; pass other initial values, by"
            " init_strategy or initial_params, or check the model."
        )

    def _reset(self) -> None:
        super()._reset()
        self._compiled = None
        self._roots = []

    @property
    def _names(self) -> list[str]:
        """The sites in the order of the mass matrix."""
        return [name for block in self.inverse_mass_matrix for name in block]

    def _flat(self, values: dict[str, Tensor]) -> Tensor:
        return torch.cat([values[name].detach().reshape(-1) for name in self._names])

    def _by_name(self, vector: Tensor) -> dict[str, Tensor]:
        like = {name: self.initial_params[name] for name in self._names}
        parts = vector.split([value.numel() for value in like.values()])
        return {name: part.reshape(like[name].shape).to(like[name]) for name, part in zip(like, parts, strict=True)}


def _uniform() -> float:
    return torch.rand(()).item()


def _probability(log: float) -> float:
    return math.exp(min(log, 0.0))


def _log_add(a: float, b: float) -> float:
    most = max(a, b)
    return most if most == -math.inf else most + math.log(math.exp(a - most) + math.exp(b - most))


def _turns(first: Tensor, last: Tensor, momentum: Tensor) -> bool:
    """Whether a trajectory between these momenta comes back, as in Pyro."""
    rho = momentum.sub(first + last, alpha=0.5)
    return first.dot(rho).item() <= 0 or last.dot(rho).item() <= 0


def _root(matrix: Tensor) -> Tensor:
    """Of a diagonal, or the upper triangular factor ``U`` of a matrix ``U^T U``."""
    return matrix.sqrt() if matrix.dim() == 1 else torch.linalg.cholesky(matrix).mT.contiguous()


def _times(roots: Sequence[Tensor], vector: Tensor) -> Tensor:
    """A vector times a matrix of blocks."""
    parts = vector.split([root.shape[-1] for root in roots])
    return torch.cat([root * part if root.dim() == 1 else root @ part for root, part in zip(roots, parts, strict=True)])
