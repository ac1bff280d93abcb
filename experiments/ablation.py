"""The ablation of the decoder: its first layer, over the dimension of the latent space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.mnist import MnistCell, MnistExperiment
from experiments.table2 import DIMENSIONS

DECODERS = ("mlp", "logmap", "gyroplane")
"""The baseline first."""


@dataclass(frozen=True)
class Ablation(MnistExperiment):
    """The paper's Figure "Decoder ablation study": wrapped normals, ``c = 1``."""

    command = "ablation"

    def cells(self) -> Sequence[MnistCell]:
        return [MnistCell(d, "wrapped", 1.0, decoder=decoder) for decoder in DECODERS for d in DIMENSIONS]
