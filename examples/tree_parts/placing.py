"""The posterior of a node of which a few distances to other nodes are known, whose positions are uncertain too."""

from __future__ import annotations

from typing import NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from tree_parts.data import BALL, DOUBLE, Data

# Positions of a held-out node tried for every draw of the reference nodes, such draws, and draws of the posterior.
CANDIDATES, DRAWS, KEPT = 4000, 400, 2000


class Placed(NamedTuple):
    """Draws from the joint posterior of one held-out node and the rest.

    :ivar z: its position, ``(KEPT, 2)``.
    :ivar points: the reference nodes, ``(KEPT, R, 2)``.
    :ivar length: of an edge, ``(KEPT,)``.
    :ivar noise: of the distances, ``(KEPT,)``.
    :ivar effective: how many independent draws the weights are worth.
    """

    z: Tensor
    points: Tensor
    length: Tensor
    noise: Tensor
    effective: float


def place(data: Data, fold: int, node: int, samples: dict[str, Tensor], points: Tensor, prior_scale: float) -> Placed:
    r"""The node's posterior by importance sampling.

    With draws of the reference nodes' posterior and draws of the node's prior, the weights are the likelihoods of
    its observed distances :math:`y_h`,

    .. math:: p(\theta, z_h \mid y, y_h) \propto p(\theta \mid y)\, p(z_h)\, p(y_h \mid z_h, \theta) .

    Circles around far points of the plane meet in places far from each other. A Markov chain that starts in one of them
    does not find the others; these draws do.

    :param node: which of the held-out nodes of the fold.
    :param samples: ``length`` and ``noise``, ``(chains, S, F)``.
    :param points: the reference nodes, ``(chains, S, F, R, 2)``.
    """
    x = points[:, :, fold].flatten(0, 1)
    pick = torch.linspace(0, len(x) - 1, min(DRAWS, len(x))).long()
    length, noise = (samples[name][:, :, fold].flatten()[pick] for name in ("length", "noise"))
    x, seen = x[pick], data.seen[fold, node]
    law = hdist.WrappedNormal(torch.zeros(2, **DOUBLE), prior_scale, BALL)
    candidates = law.sample((len(pick), CANDIDATES))
    mean = length[:, None, None] * BALL.pairwise_dist(candidates, x[:, seen])
    observed = data.of_held_out()[fold, node, seen]
    weights = dist.Normal(mean, noise[:, None, None]).log_prob(observed).sum(-1).flatten().softmax(0)
    chosen = weights.multinomial(KEPT, replacement=True)
    draw = chosen // CANDIDATES
    effective = 1 / weights.square().sum().item()
    return Placed(candidates.flatten(0, 1)[chosen], x[draw], length[draw], noise[draw], effective)
