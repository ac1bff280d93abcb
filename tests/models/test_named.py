"""Names of the parameters of models in Pyro's store."""

from __future__ import annotations

import copy
import pickle

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import FastSVI
from pyro_hyperbolic.models import EmbeddingClassifier, EuclideanVAE, HyperbolicVAE
from pyro_hyperbolic.nn import ManifoldModule

X = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))


def build(manifold=None, **options):
    return HyperbolicVAE(manifold or PoincareBall(1.0), 2, 4, hidden_dim=3, **options)


def train(*vaes, steps=2, trainer=SVI):
    """Optimisers of models that take turns."""
    optimisers = [Adam({"lr": 0.01}) for _ in vaes]
    svis = [trainer(vae.model, vae.guide, opt, Trace_ELBO()) for vae, opt in zip(vaes, optimisers, strict=True)]
    for _ in range(steps):
        for svi in svis:
            svi.step(X)
    return svis, optimisers


def names(vae):
    store = pyro.get_param_store()
    return {store.param_name(parameter).split("$$$")[0] for parameter in vae.parameters()}


@pytest.mark.parametrize("trainer", [SVI, FastSVI])
def test_models_have_their_own_names(trainer):
    vaes = [build(), build(), EuclideanVAE(2, 4, hidden_dim=3), build(name="mine")]
    train(*vaes, trainer=trainer)
    assert [names(vae) for vae in vaes] == [{"HyperbolicVAE"}, {"HyperbolicVAE_1"}, {"EuclideanVAE"}, {"mine"}]


def test_a_model_is_registered_as_by_pyro_module():
    vae = build(name="mine")
    train(vae)
    before = dict(pyro.get_param_store().named_parameters())
    pyro.module("mine", vae)
    assert dict(pyro.get_param_store().named_parameters()).keys() == before.keys()


@pytest.mark.parametrize("trainer", [SVI, FastSVI])
def test_an_optimiser_goes_on_in_another_process(trainer):
    torch.manual_seed(0)
    one, other = build(), build()
    (svi, _), (optimiser, _) = train(one, other, trainer=trainer)
    torch.manual_seed(1)
    saved = copy.deepcopy((one.state_dict(), optimiser.get_state()))
    expected = float(svi.step(X)), float(svi.step(X))
    pyro.clear_param_store()  # as in a new process, where the other model is not run first
    again = build()
    again.load_state_dict(saved[0])
    optimiser = Adam({"lr": 0.01})
    optimiser.set_state(saved[1])
    svi = trainer(again.model, again.guide, optimiser, Trace_ELBO())
    torch.manual_seed(1)
    assert (float(svi.step(X)), float(svi.step(X))) == pytest.approx(expected, rel=1e-6)


def test_names_begin_anew_in_a_new_store():
    first, second = build(), build()
    train(first, second)
    pyro.clear_param_store()
    train(second, first)
    assert (names(second), names(first)) == ({"HyperbolicVAE"}, {"HyperbolicVAE_1"})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda vae: pickle.loads(pickle.dumps(vae))])
def test_a_copy_has_another_name(copied):
    vae = build()
    train(vae)
    other = copied(vae)
    train(other, vae)
    assert (names(vae), names(other)) == ({"HyperbolicVAE"}, {"HyperbolicVAE_1"})


def test_a_shared_curvature():
    space = ManifoldModule(PoincareBall(1.0), learnable=True)
    vaes = build(space), build(space)
    start = space.raw.item()
    train(*vaes)
    own = [{id(parameter) for parameter in vae.parameters()} - {id(space.raw)} for vae in vaes]
    store = {id(parameter): name for name, parameter in pyro.get_param_store().named_parameters()}
    prefixes = [{store[i].split("$$$")[0] for i in ids} for ids in own]
    assert prefixes == [{"HyperbolicVAE"}, {"HyperbolicVAE_1"}]
    assert space.raw.item() != start


def test_a_name_that_is_taken():
    train(build(name="mine"))
    other = build(name="mine")
    with pytest.raises(ValueError, match=r"name 'mine' is that of other parameters in Pyro's store, among them 'enc"):
        train(other)
    pyro.clear_param_store()
    train(other)


@pytest.mark.parametrize(("given", "name"), [("mine", "mine"), (None, "HyperbolicVAE")])
def test_a_store_that_is_loaded(tmp_path, given, name):
    vae, other = build(name=given), build(name=given)
    train(vae)
    pyro.get_param_store().save(tmp_path / "store")
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "store")
    with pytest.raises(ValueError, match=rf"pyro.module\('{name}', model, update_module_params=True\)"):
        train(other)
    pyro.module(name, other, update_module_params=True)
    for key, parameter in other.named_parameters():
        torch.testing.assert_close(parameter, vae.get_parameter(key), rtol=0, atol=0)
    train(other)
    assert names(other) == {name}


@pytest.mark.parametrize("trainer", [SVI, FastSVI])
def test_a_value_that_is_set_in_the_store(trainer):
    vae = build()
    (svi,), _ = train(vae, trainer=trainer)
    pyro.get_param_store()["HyperbolicVAE$$$encoder.loc.bias"] = torch.zeros(2)
    with pytest.raises(ValueError, match="loaded from a file or set for this model"):
        svi.step(X)


def test_a_classifier_beside_its_auto_encoder():
    vae = build()
    classifier = EmbeddingClassifier(vae.decoder, 3)
    z, labels = vae.encode(X).mean.detach(), torch.arange(5) % 3
    train(vae)
    SVI(classifier.model, classifier.guide, Adam({"lr": 0.01}), Trace_ELBO()).step(z, labels)
    assert (names(vae), names(classifier)) == ({"HyperbolicVAE"}, {"EmbeddingClassifier"})


@pytest.mark.parametrize("name", ["", "a$$$b", 3])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="name must be a word without"):
        build(name=name)
