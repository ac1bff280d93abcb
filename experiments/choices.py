"""Initial values of gyroplanes and learning rates, chosen without the test images of MNIST."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.job import Cell
from experiments.mnist import MnistCell, MnistExperiment
from experiments.table2 import DIMENSIONS
from pyro_hyperbolic.models import VAE
from pyro_hyperbolic.nn import GyroplaneLinear
from pyro_hyperbolic.nn.linear import GAIN, SPREAD

CURVATURES = (0.1, 1.4)
"""The least and the greatest curvature of Table 2."""
GAINS = (0.5, 1.0, 2.0, 4.0)
SPREADS = (0.5, 1.0, 2.0)
"""Those other than the default are tried with the default gain and learning rate only."""
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3)


@dataclass(frozen=True)
class ChoiceCell(Cell):
    """One auto-encoder with its initial values and learning rate.

    :param latent_dim: dimension of the latent space.
    :param curvature: ``c`` of the wrapped normals; 0 for the Euclidean model, which has no gyroplanes.
    :param learning_rate: of Adam.
    :param gain: of the normals of the gyroplanes, see :meth:`~pyro_hyperbolic.nn.GyroplaneLinear.reset_parameters`.
    :param spread: of their offsets.
    """

    latent_dim: int
    curvature: float
    learning_rate: float
    gain: float = GAIN
    spread: float = SPREAD

    @property
    def name(self) -> str:
        end = f"lr={self.learning_rate:g}, d={self.latent_dim}"
        if self.curvature == 0:
            return f"euclidean, {end}"
        return f"c={self.curvature:g}, gain={self.gain:g}, spread={self.spread:g}, {end}"


@dataclass(frozen=True)
class Choices(MnistExperiment):
    """Initial values of gyroplanes and learning rates, compared on held-out training images of MNIST.

    Training is that of :class:`Table2`, on fewer images; an estimate with fewer samples ranks the cells as well. The
    test images play no part.

    :param held_out: how many of the training images are scored and not trained on, the last ones.
    """

    command = "choices"

    seeds: int = 3
    iwae_samples: int = 500
    held_out: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data_limit is not None and self.held_out >= self.data_limit:
            raise ValueError(f"held_out must be below data_limit, {self.data_limit}, got {self.held_out}.")

    def cells(self) -> Sequence[ChoiceCell]:
        cells = [ChoiceCell(d, 0.0, rate) for d in DIMENSIONS for rate in RATES]
        for d in DIMENSIONS:
            for c in CURVATURES:
                cells += [ChoiceCell(d, c, rate, gain) for rate in RATES for gain in GAINS]
                others = (spread for spread in SPREADS if spread != SPREAD)
                cells += [ChoiceCell(d, c, self.learning_rate, spread=spread) for spread in others]
        return cells

    def shape(self, cell: Any) -> Hashable:
        return cell.latent_dim, cell.curvature > 0, cell.learning_rate

    def rate(self, cell: Any) -> float:
        return cell.learning_rate

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in super().settings().items() if key != "learning_rate"}

    def extras(self, cell: Any, member: Any) -> dict[str, Any]:
        return {}

    def build(self, cell: Any) -> VAE:
        kind = "wrapped" if cell.curvature else "euclidean"
        vae = super().build(MnistCell(cell.latent_dim, kind, cell.curvature))
        for layer in vae.modules():
            if isinstance(layer, GyroplaneLinear):
                layer.reset_parameters(cell.gain, cell.spread)
        return vae

    def images(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The training images to train on, and those that are held out."""
        train, _ = super().images(device)
        return train[: -self.held_out], train[-self.held_out :]
