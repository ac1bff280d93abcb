"""A classifier on latent embeddings."""

from __future__ import annotations

import copy

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.models.named import NamedModel
from pyro_hyperbolic.nn import Decoder


class EmbeddingClassifier(NamedModel):
    """The classifier of the paper's Table 3: the decoder's architecture with class scores as output.

    The first layer starts as a copy of the decoder's (for a hyperbolic model, its gyroplanes). The last layer is
    initialised afresh. ``.fit`` trains one classifier. ``.model`` and ``.guide`` are Pyro programs without a latent,
    and their ELBO is the log-likelihood, so you can train many classifiers at once with
    :class:`~pyro_hyperbolic.accelerate.EnsembleSVI`.

    :param decoder: the decoder of a trained auto-encoder, which is not changed.
    :param num_classes: number of classes.
    :param name: name in Pyro's parameter store; see :class:`~pyro_hyperbolic.models.named.NamedModel`.
    """

    def __init__(self, decoder: Decoder, num_classes: int = 10, *, name: str | None = None) -> None:
        super().__init__(name)
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}.")
        self.num_classes = num_classes
        self.embed = copy.deepcopy(decoder.embed)
        hidden = copy.deepcopy(decoder.network[:-1])
        self.network = nn.Sequential(*hidden.children(), nn.Linear(decoder.output.in_features, num_classes))

    def forward(self, z: Tensor) -> Tensor:
        """Logits ``(N, num_classes)`` of embeddings ``(N, D)``."""
        last = self.network[-1]
        assert isinstance(last, nn.Linear)
        return self.network(self.embed(z).to(last.weight.dtype))

    def model(self, z: Tensor, labels: Tensor) -> None:
        """Classes ``"y"`` given embeddings ``z`` ``(N, D)``, in the plate ``"data"``."""
        self._register()
        # Not self(z), by which a PyroModule registers its layers once more, under names that all classifiers share.
        with pyro.plate("data", len(z)):
            pyro.sample("y", dist.Categorical(logits=self.forward(z)), obs=labels)

    def guide(self, z: Tensor, labels: Tensor) -> None:
        """Nothing is latent."""

    def fit(
        self,
        z: Tensor,
        labels: Tensor,
        *,
        num_epochs: int = 5,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> list[float]:
        """Minimise the cross entropy with Adam, by default with the paper's settings.

        :returns: the mean loss of every epoch.
        """
        if len(z) != len(labels) or len(z) == 0:
            raise ValueError(
                f"z and labels must have the same length and not be empty, got {len(z)} and {len(labels)}."
            )
        optimiser = torch.optim.Adam(self.parameters(), lr=learning_rate)
        generator = torch.Generator().manual_seed(seed)
        losses = []
        for _ in range(num_epochs):
            total = torch.zeros((), device=z.device)
            for index in torch.randperm(len(z), generator=generator).to(z.device).split(batch_size):
                loss = F.cross_entropy(self.forward(z[index]), labels[index])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.detach() * len(index)
            losses.append(total.item() / len(z))
        return losses

    @torch.no_grad()
    def confusion(self, z: Tensor, labels: Tensor) -> Tensor:
        """Counts ``(true class, predicted class)``."""
        codes = labels * self.num_classes + self.forward(z).argmax(-1)
        return torch.bincount(codes, minlength=self.num_classes**2).reshape(self.num_classes, self.num_classes)
