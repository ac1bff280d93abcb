"""Covariates as features."""

import pytest
import torch

from pyro_hyperbolic.nn import Continuous, Covariates, Embedding, OneHot
from tests.helpers import same


def values(size=4):
    number = torch.arange(size)
    return {"batch": number % 2, "donor": number % 3, "age": number / 2, "shape": torch.ones(size, 2)}


def build():
    return Covariates(batch=OneHot(["a", "b"]), donor=Embedding(3, 2), age=Continuous(), shape=Continuous(2))


def test_features_in_the_order_of_the_names():
    covariates = build()
    features = covariates(values())
    assert features.shape == (4, covariates.size) == (4, 7)
    same(features[:, :2], torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), 0.0)
    same(features[:, 2:4], covariates.parts["donor"].vectors.weight[[0, 1, 2, 0]], 0.0)
    same(features[:, 4], torch.arange(4) / 2, 0.0)
    same(features[:, 5:], torch.ones(4, 2), 0.0)


def test_one_value_for_all():
    covariates, given = build(), values()
    given["batch"] = torch.tensor(1)
    assert torch.equal(covariates(given)[:, :2], torch.tensor([0.0, 1.0]).expand(4, 2))
    single = {name: value[0] for name, value in given.items() if name != "batch"} | {"batch": torch.tensor(1)}
    assert covariates(single).shape == (7,)


@pytest.mark.parametrize("kind", [OneHot, lambda categories: Embedding(categories, 2)])
def test_codes_of_names(kind):
    part = kind(["x", "y", "z"])
    assert part.codes(["z", "x"]).tolist() == [2, 0]
    assert kind(3).codes([2, "0"]).tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"batch has unknown categories \['q'\]; known are \['x', 'y', 'z'\]"):
        part.codes(["x", "q"], "batch")


ERRORS = {
    "unknown category": ({"batch": torch.tensor([0, 2, 0, 1])}, r"covariates\['batch'\] .* from 0 to 1, got .* 0 to 2"),
    "negative category": ({"donor": torch.tensor([0, -1, 0, 1])}, r"covariates\['donor'\] .* from 0 to 2, got .*-1"),
    "no integer": ({"batch": torch.rand(4)}, r"covariates\['batch'\] must hold .* integers, got torch.float32"),
    "missing number": ({"age": torch.tensor([0.0, torch.nan, 1.0, 2.0])}, r"covariates\['age'\] must hold finite"),
    "vector": ({"shape": torch.ones(4, 3)}, r"covariates\['shape'\] must have shape \(N, 2\), got \(4, 3\)"),
    "lengths": ({"batch": torch.tensor([0, 1])}, r"covariates must have the same length, got \{'batch': \(2,\)"),
    "name": ({"sex": torch.zeros(4)}, r"dictionary with the names \['age', 'batch', 'donor', 'shape'\], got"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    changes, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        build()(values() | changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Covariates(), "needs at least one covariate"),
        (lambda: Covariates(batch=3), "covariate 'batch' must be a OneHot, an Embedding or a Continuous, got 3"),
        (lambda: OneHot(0), "categories must be different names, or their number, got 0"),
        (lambda: OneHot(["a", "a"]), "categories must be different names"),
        (lambda: Embedding(3, 0), "dim must be a positive integer, got 0"),
        (lambda: Continuous(0), "size must be a positive integer, got 0"),
        (lambda: build()(torch.zeros(4)), "covariates must be a dictionary .* got Tensor"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_under_vmap():
    covariates = build()
    stacked = {name: torch.stack([value, value.flip(0)]) for name, value in values().items()}
    together = torch.vmap(covariates)(stacked)
    same(together[1], covariates({name: value[1] for name, value in stacked.items()}), 0.0)
