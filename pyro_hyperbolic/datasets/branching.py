"""A branching diffusion process: noisy observations of the nodes of a random walk on a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_hyperbolic.ops.checks import checked_integer

if TYPE_CHECKING:
    import networkx

#: Variance of an observation around its node, in units of that of a node around its parent.
OBSERVATION_VARIANCE = 1 / 5


@dataclass(frozen=True, eq=False)
class BranchingDiffusion:
    """What :func:`branching_diffusion` returns: ``N`` nodes, ``M`` observations, ``D`` features.

    Attributes:
        train: observations for training, float32 ``(0.7 M, D)``.
        test: the other observations, float32 ``(0.3 M, D)``.
        train_nodes: the node that each row of ``train`` observes, int64.
        test_nodes: the same for ``test``.
        nodes: the nodes without noise, float32 ``(N, D)``, in the coordinates of the observations.
        depths: the depth of each node, int64 ``(N,)``; 0 for the root, which is node 0.
        parents: the parent of each node, int64 ``(N,)``; -1 for the root.
    """

    train: Tensor
    test: Tensor
    train_nodes: Tensor
    test_nodes: Tensor
    nodes: Tensor
    depths: Tensor
    parents: Tensor

    @property
    def tree(self) -> networkx.DiGraph:
        """The tree, with edges from parent to child and the attribute ``depth`` on each node."""
        import networkx

        tree = networkx.DiGraph()
        for node, depth in enumerate(self.depths.tolist()):
            tree.add_node(node, depth=depth)
        tree.add_edges_from((p, i) for i, p in enumerate(self.parents.tolist()) if p >= 0)
        return tree


def branching_diffusion(
    depth: int = 6,
    branching: int = 2,
    dim: int = 50,
    observations: int = 5,
    seed: int = 0,
) -> BranchingDiffusion:
    r"""Sample the synthetic data set of the paper.

    The nodes of a complete tree diffuse away from the root, and each is observed ``J`` times:

    .. math::
        y_0 = 0, \qquad y_i \sim \mathcal{N}(y_{\pi(i)}, I), \qquad
        x_{ij} \sim \mathcal{N}(y_i, I / 5), \quad j = 1, \dots, J.

    Then each feature of the observations is centred and scaled to unit variance (over training and
    test set together), the nodes go through the same map, and the observations are split at random
    into 70% (rounded down) for training and the rest for testing.

    The root has depth 0 and the leaves have depth ``depth``, as in the authors' code: the tree has
    ``depth + 1`` levels and, for ``branching > 1``, ``(branching ** (depth + 1) - 1) /
    (branching - 1)`` nodes. Node ``i > 0`` has the parent ``(i - 1) // branching``.

    Args:
        depth: number of generations below the root, at least 1.
        branching: children of each node that is not a leaf, at least 1.
        dim: number of features.
        observations: noisy observations ``J`` of each node, the root and the leaves included.
        seed: the data set is a function of the arguments; the global random state is not touched.

    References:
        E. Mathieu, C. Le Lan, C. J. Maddison, R. Tomioka, Y. W. Teh: Continuous hierarchical
        representations with Poincaré variational auto-encoders. NeurIPS 2019, appendix
        "Synthetic Branching Diffusion Process".

    Example:
        >>> data = branching_diffusion()
        >>> data.nodes.shape, data.train.shape, data.test.shape
        (torch.Size([127, 50]), torch.Size([444, 50]), torch.Size([191, 50]))
        >>> data.depths.bincount().tolist()
        [1, 2, 4, 8, 16, 32, 64]
    """
    depth = checked_integer("depth", depth, least=1)
    branching = checked_integer("branching", branching, least=1)
    dim = checked_integer("dim", dim, least=1)
    observations = checked_integer("observations", observations, least=1)
    generator = torch.Generator().manual_seed(checked_integer("seed", seed))

    depths = torch.cat([torch.full((branching**level,), level) for level in range(depth + 1)])
    indices = torch.arange(len(depths))
    parents = (indices - 1).div(branching, rounding_mode="floor")  # -1 for the root

    nodes = torch.randn(len(depths), dim, dtype=torch.float64, generator=generator)
    nodes[0] = 0.0
    for level in range(1, depth + 1):  # steps become positions, one generation after another
        nodes[depths == level] += nodes[parents[depths == level]]

    observed = indices.repeat_interleave(observations)
    noise = torch.randn(len(observed), dim, dtype=torch.float64, generator=generator)
    data = nodes[observed] + OBSERVATION_VARIANCE**0.5 * noise
    mean, std = data.mean(0), data.std(0, correction=0)
    data, nodes = ((data - mean) / std).float(), ((nodes - mean) / std).float()

    order = torch.randperm(len(data), generator=generator)
    # Integers, because 0.7 is not a binary fraction and 10 rows must give 7.
    train, test = order.tensor_split([len(data) * 7 // 10])
    return BranchingDiffusion(
        train=data[train],
        test=data[test],
        train_nodes=observed[train],
        test_nodes=observed[test],
        nodes=nodes,
        depths=depths,
        parents=parents,
    )
