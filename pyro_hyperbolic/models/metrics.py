"""Scores of link prediction."""

from __future__ import annotations

import torch
from torch import Tensor


def roc_auc(positive: Tensor, negative: Tensor) -> float:
    """Area under the ROC curve: the probability that a positive scores above a negative, where ties count half."""
    _check(positive, negative)
    order = negative.sort().values
    positive = positive.contiguous()
    below = torch.searchsorted(order, positive, right=False)
    not_above = torch.searchsorted(order, positive, right=True)
    return float((below + not_above).double().mean() / (2 * len(negative)))


def average_precision(positive: Tensor, negative: Tensor) -> float:
    """Average precision: the mean over the positives of the precision at their score. Tied scores enter together."""
    _check(positive, negative)
    positive = positive.contiguous()
    hits = len(positive) - torch.searchsorted(positive.sort().values, positive)
    false = len(negative) - torch.searchsorted(negative.sort().values, positive)
    return float((hits / (hits + false).double()).mean())


def _check(positive: Tensor, negative: Tensor) -> None:
    if not (isinstance(positive, Tensor) and isinstance(negative, Tensor)):
        raise ValueError(
            f"positive and negative must be tensors, got {type(positive).__name__} and {type(negative).__name__}; pass"
            " torch.as_tensor(scores)."
        )
    if positive.dim() != 1 or negative.dim() != 1 or not len(positive) or not len(negative):
        raise ValueError(
            f"positive and negative must be non-empty vectors of scores, got {tuple(positive.shape)} and"
            f" {tuple(negative.shape)}; pass scores.flatten()."
        )
    if bool(positive.isnan().any()) or bool(negative.isnan().any()):
        raise ValueError("scores must not be nan: the model that gave them has diverged.")
