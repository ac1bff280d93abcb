"""Training of continuous flows by the velocities of points on geodesics."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from pyro_hyperbolic.distributions.continuous import FlowField, late
from pyro_hyperbolic.distributions.flow import ConditionalManifoldFlow, ManifoldFlow
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.ops.checks import checked_integer, is_number
from pyro_hyperbolic.ops.special import safe_norm
from pyro_hyperbolic.ops.tolerances import eps

_DECAY = 0.999  # of the averages of parameters, per step
_GROUP = 64  # points whose ends are averaged over
_CHECKS = 20  # of the validation data
_LAST_RATE = 0.01  # as a share of the learning rate
_MOST_CLIP = 1.0
_ROOM = 1.001
_TRIED = 64  # draws of a base, to see that they are points


class MatchingHistory(NamedTuple):
    """What :func:`flow_matching` did.

    :ivar losses: of all steps, ``(steps,)``.
    :ivar validation: negative log-density of the validation data at each check, ``(20,)``; ``None`` without.
    :ivar best_step: the step whose parameters were kept.
    """

    losses: Tensor
    validation: Tensor | None
    best_step: int


def flow_matching(
    flow: ManifoldFlow | ConditionalManifoldFlow,
    base: Any,
    data: Tensor | tuple[Tensor, Tensor],
    *,
    validation: Tensor | tuple[Tensor, Tensor] | None = None,
    steps: int = 5000,
    batch_size: int = 256,
    learning_rate: float = 2e-3,
    seed: int = 0,
    progress: bool = False,
) -> MatchingHistory:
    r"""Train a continuous flow by flow matching along geodesics (Chen and Lipman, *Flow matching on general
    geometries*, 2024).

    .. math:: \mathbb{E}\,\Big|u_t(x_t) - \mathbb{E}\big[\dot x_t \,\big|\, x_t\big]\Big|^2, \qquad
              x_t = \exp_{x_0}(t\log_{x_0} x_1), \quad x_0 \sim p, \quad x_1 \sim \text{data}

    The field with the least loss carries ``p`` to the data, and no step solves an equation. The inner expectation, over
    the point of the data that :math:`x_t` is bound for, is taken over groups of 64, with exact weights: its loss has
    the same minimum as that of single velocities, and much less noise (Xu, Tong and Jaakkola, *Stable target field for
    reduced variance score estimation*, 2023). With contexts, a velocity is that of its own geodesic. Times are denser
    towards 1, as the steps of the solver.

    Adam's learning rate falls to a hundredth along a cosine, and the parameters are averaged over the last thousand
    steps. The flow is that of ``TransformedDistribution(base,
    [flow])``, on which you can go on training.

    :param flow: what :func:`~pyro_hyperbolic.distributions.continuous_flow` makes; its parameters are changed.
    :param base: a distribution :math:`p` of points of its space, without batch.
    :param data: points ``(N, D)``; for a conditional flow a pair of them and their contexts ``(N, context_dim)``.
    :param validation: of the same kind as ``data``. Then the parameters are kept that give it the largest density, of
        twenty checks on the way.
    :param steps: how many.
    :param batch_size: points of a step, rounded up to whole groups.
    :param learning_rate: of Adam at first.
    :param seed: of all that is drawn.
    :param progress: show a progress bar.

    >>> from pyro_hyperbolic import Sphere
    >>> from pyro_hyperbolic.distributions import HypersphericalUniform, VonMisesFisher, continuous_flow
    >>> _ = torch.manual_seed(0)
    >>> x = VonMisesFisher(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(10.0)).sample((500,))
    >>> flow, base = continuous_flow(Sphere(1.0), 2, hidden_dims=(32,), steps=8), HypersphericalUniform(3)
    >>> history = flow_matching(flow, base, x, steps=40, batch_size=64, learning_rate=0.01)
    >>> q = dist.TransformedDistribution(base, [flow])
    >>> bool(q.log_prob(x).mean() > base.log_prob(x).mean() + 0.5)
    True
    """
    layers, space = getattr(flow, "layers", None), getattr(flow, "manifold", None)
    if not isinstance(layers, FlowField) or not isinstance(space, Manifold):
        raise ValueError(f"flow must be a continuous flow, got {flow!r}; make one with continuous_flow.")
    if space.batch_shape:
        raise ValueError(f"flow must be on one space, got curvatures of shape {tuple(space.batch_shape)}; use numbers.")
    _check_base(base, space, layers.dim)
    x, context = _checked("data", data, space, layers)
    held_out = None if validation is None else _checked("validation", validation, space, layers)
    steps = checked_integer("steps", steps, least=1)
    batch_size = checked_integer("batch_size", batch_size, least=1)
    if not (is_number(learning_rate) and 0 < learning_rate < math.inf):
        raise ValueError(f"learning_rate must be a positive number, got {learning_rate!r}; 2e-3 is usual.")
    size = min(batch_size, _GROUP)
    groups = (-(-batch_size // size), size)
    optim = torch.optim.Adam(layers.parameters(), lr=learning_rate)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optim, steps, eta_min=_LAST_RATE * learning_rate)
    average = copy.deepcopy(layers.state_dict())
    losses, checks = [], []
    least, best, best_step = math.inf, average, steps
    # All devices by name: without it torch warns where there are several.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        pyro.set_rng_seed(seed)
        for step in tqdm(range(1, steps + 1), disable=None if progress else True, unit=" steps"):
            rows = torch.randint(len(x), groups, device=x.device)
            known = context if context is None else context[rows]
            with torch.no_grad():
                points, velocities, time = matched(space, layers.dim, base, x[rows], average=known is None)
            loss = layers.mismatch(space, points, velocities, time, x.new_zeros(0) if known is None else known).mean()
            optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(layers.parameters(), _MOST_CLIP)
            optim.step()
            rates.step()
            _follow(average, layers.state_dict(), step)
            losses.append(loss.detach())
            if held_out is not None and (step * _CHECKS) // steps > ((step - 1) * _CHECKS) // steps:
                now = copy.deepcopy(layers.state_dict())
                layers.load_state_dict(average)
                checks.append(_negative_log_density(flow, base, *held_out))
                if checks[-1] < least:
                    least, best_step, best = float(checks[-1]), step, copy.deepcopy(average)
                layers.load_state_dict(now)
    layers.load_state_dict(best)
    return MatchingHistory(torch.stack(losses), torch.stack(checks) if checks else None, best_step)


@torch.no_grad()
def _follow(average: dict[str, Tensor], now: dict[str, Tensor], step: int) -> None:
    """Move averages towards parameters: over the last thousand steps, or the last tenth of fewer."""
    share = max(1 - _DECAY, 10 / (10 + step))
    for name, value in average.items():
        value.lerp_(now[name], share)


def matched(space: Manifold, dim: int, base: Any, x1: Tensor, *, average: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Points on geodesics from draws of the base to the data, their velocities there, and their times ``(..., B, 1)``.

    :param x1: points of the data, in groups ``(..., B, D)``.
    :param average: whether a velocity is the mean over all ends of its group that the point may be bound for.
    :returns: velocities as components in the frame carried from the origin.
    """
    x0 = base.sample(x1.shape[:-1]).to(x1.dtype)
    # So much time is left at least, that the way already made tells the velocity to half of the digits.
    least = eps(x1.dtype) ** 0.5
    time = (1 - least) * late(torch.rand_like(x1[..., :1]))
    whole = space.to_normal_coords(x0, x1)
    x = space.from_normal_coords(x0, time * whole)
    if not average:
        # From the end that is farther away, where rounding is magnified less.
        other = torch.where(time > 0.5, x0, x1)
        return x, space.to_normal_coords(x, other) / torch.where(time > 0.5, -time, 1 - time), time
    # The density of a point at its time, for each end: that of the beginning of the geodesic through both, times the
    # determinant by which geodesics close up. Ways that are longer than all of the group are left out.
    here, end, left = x.unsqueeze(-2), x1.unsqueeze(-3), (1 - time).unsqueeze(-2)
    back = space.to_normal_coords(end, here)
    way = back / left
    short = torch.eye(x1.shape[-2], dtype=torch.bool, device=x.device).unsqueeze(-1)
    dims = [d for _, d in space.leaves(dim)]
    inside = [
        safe_norm(part) <= _ROOM * safe_norm(own).amax(-2, keepdim=True).unsqueeze(-3)
        for part, own in zip(way.split(dims, -1), whole.split(dims, -1), strict=True)
    ]
    short = short | torch.cat(inside, -1).all(-1, keepdim=True)
    back, way = torch.where(short, back, 0.0), torch.where(short, way, 0.0)
    density = base.log_prob(space.from_normal_coords(end, way)) + space.log_det_exp(way) - space.log_det_exp(back)
    weights = torch.where(short, density.unsqueeze(-1), -math.inf).softmax(-2)
    return x, (weights * space.to_normal_coords(here, end) / left).sum(-2), time


@torch.no_grad()
def _negative_log_density(flow: Any, base: Any, x: Tensor, context: Tensor | None) -> Tensor:
    transform = flow if context is None else flow.condition(context)
    return -dist.TransformedDistribution(base, [transform]).log_prob(x).mean()


def _check_base(base: Any, space: Manifold, dim: int) -> None:
    shapes = [getattr(base, name, None) for name in ("batch_shape", "event_shape")]
    wanted = space.ambient_dim(dim)
    is_there = shapes == [(), (wanted,)]
    if is_there:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
            is_there = bool(space.contains(base.sample((_TRIED,))).all())
    if not is_there:
        raise ValueError(
            f"base must be a distribution of points of {space!r}, with batch_shape () and event_shape ({wanted},), got"
            f" {base!r}; use a WrappedNormal there, or HypersphericalUniform on a sphere."
        )


def _checked(name: str, data: Any, space: Manifold, layers: FlowField) -> tuple[Tensor, Tensor | None]:
    """Points and contexts, the latter ``None`` for a flow that has none."""
    size = layers.context_dim
    x, context = data if isinstance(data, (tuple, list)) and len(data) == 2 else (data, None)
    wanted = space.ambient_dim(layers.dim)
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[-1] != wanted or len(x) == 0:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name} must be points ({wanted} coordinates each) as a tensor (N, {wanted}), got {got}.")
    outside = (~space.contains(x)).sum().item()
    if outside:
        raise ValueError(f"{name} has {outside} rows that are no points of {space!r}; move them with its projx.")
    if (context is None) != (size == 0) or (context is not None and context.shape != (len(x), size)):
        got = "none" if context is None else f"shape {tuple(context.shape)}"
        remedy = f"pass a pair, points and contexts ({len(x)}, {size})" if size else "pass the points alone"
        raise ValueError(f"{name} must have contexts where the flow is conditional, got {got}; {remedy}.")
    return x, context
