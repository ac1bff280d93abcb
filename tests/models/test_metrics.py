"""Scores of link prediction against their definitions."""

import math

import pytest
import torch

from pyro_hyperbolic.models import average_precision, roc_auc

# The first row is the example of scikit-learn's documentation: labels 0 0 1 1, scores .1 .4 .35 .8. By hand: of the
# four pairs (positive, negative) three are in order; going down, the precision is 1/1 at .8 and 2/3 at .35.
HAND = [
    ("scikit-learn's example", [0.35, 0.8], [0.1, 0.4], 3 / 4, (1 + 2 / 3) / 2),
    ("all in order", [3.0, 4.0], [1.0, 2.0], 1.0, 1.0),
    ("all out of order", [1.0, 2.0], [3.0, 4.0], 0.0, (1 / 3 + 2 / 4) / 2),
    ("one score for all", [1.0, 1.0], [1.0, 1.0, 1.0], 0.5, 2 / 5),
    ("a tie between the kinds", [2.0, 1.0], [1.0, 0.0], 3.5 / 4, (1 + 2 / 3) / 2),
    ("a tie among positives", [2.0, 2.0], [3.0], 0.0, 2 / 3),
    ("infinite scores", [math.inf, 0.0], [-math.inf, 1.0], 3 / 4, (1 + 2 / 3) / 2),
    ("one of each", [1.0], [0.0], 1.0, 1.0),
]


def brute_auc(positive, negative):
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    return sum(pairs) / len(pairs)


def brute_precision(positive, negative):
    """Sum over the thresholds of the rise of the recall times the precision."""
    total = recall = 0.0
    for threshold in sorted({*positive, *negative}, reverse=True):
        hits = sum(p >= threshold for p in positive)
        false = sum(n >= threshold for n in negative)
        total += (hits / len(positive) - recall) * hits / (hits + false)
        recall = hits / len(positive)
    return total


@pytest.mark.parametrize(("positive", "negative", "auc", "precision"), [r[1:] for r in HAND], ids=[r[0] for r in HAND])
def test_by_hand(positive, negative, auc, precision):
    assert roc_auc(torch.tensor(positive), torch.tensor(negative)) == pytest.approx(auc, abs=1e-12)
    assert average_precision(torch.tensor(positive), torch.tensor(negative)) == pytest.approx(precision, abs=1e-12)
    assert brute_auc(positive, negative) == pytest.approx(auc)
    assert brute_precision(positive, negative) == pytest.approx(precision)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("levels", [3, 10, 10**6])
@pytest.mark.parametrize("sizes", [(30, 30), (7, 50), (50, 7)], ids=str)
def test_by_brute_force(sizes, levels, dtype):
    positive, negative = ((torch.randint(levels, (size,)) / levels).to(dtype) for size in sizes)
    expected = brute_auc(positive.tolist(), negative.tolist())
    assert roc_auc(positive, negative) == pytest.approx(expected, abs=1e-12)
    expected = brute_precision(positive.tolist(), negative.tolist())
    assert average_precision(positive, negative) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [roc_auc, average_precision])
def test_only_the_order_counts(metric):
    positive, negative = torch.randn(20), torch.randn(20)
    assert metric(positive, negative) == metric(positive.exp(), negative.exp())
    order = torch.randperm(20)
    assert metric(positive, negative) == metric(positive[order], negative.flip(0))


@pytest.mark.parametrize("metric", [roc_auc, average_precision])
def test_strided_scores(metric):
    scores = torch.randn(20, 2)
    assert metric(*scores.unbind(-1)) == metric(*scores.T.contiguous())


BAD = {
    "no positive": (torch.zeros(0), torch.zeros(3), "non-empty vectors"),
    "no negative": (torch.zeros(3), torch.zeros(0), "non-empty vectors"),
    "a matrix": (torch.zeros(3, 1), torch.zeros(3), "non-empty vectors"),
    "a number": (torch.zeros(3), torch.zeros(()), "non-empty vectors"),
    "a list": ([1.0], torch.zeros(3), r"must be tensors, got list and Tensor; pass torch.as_tensor"),
    "nan among the positives": (torch.tensor([math.nan, 1.0]), torch.zeros(3), "scores must not be nan"),
    "nan among the negatives": (torch.zeros(3), torch.tensor([math.nan, 1.0]), "scores must not be nan"),
}


@pytest.mark.parametrize("metric", [roc_auc, average_precision])
@pytest.mark.parametrize("name", BAD)
def test_bad_scores(name, metric):
    positive, negative, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        metric(positive, negative)
