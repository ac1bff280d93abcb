"""The classifier on embeddings."""

import copy

import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import nn

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.models import EmbeddingClassifier, EuclideanVAE, HyperbolicVAE
from pyro_hyperbolic.nn import DECODERS, GyroplaneLinear, ManifoldModule


def euclidean():
    return EuclideanVAE(2, 6, hidden_dim=16).decoder


def hyperbolic(name, learnable=False):
    return HyperbolicVAE(ManifoldModule(PoincareBall(1.0), learnable), 2, 6, hidden_dim=16, decoder=name).decoder


SPACES = {"euclidean": euclidean, **{name: lambda name=name: hyperbolic(name) for name in DECODERS}}
every_space = pytest.mark.parametrize("space", SPACES)


def clusters(size=60, classes=3):
    """Points of the ball around the corners of a regular polygon, and the corner of each."""
    labels = torch.arange(size) % classes
    angle = 2 * torch.pi * labels / classes
    centre = torch.stack([angle.cos(), angle.sin()], -1)
    return PoincareBall(1.0).expmap0(centre + 0.1 * torch.randn(size, 2)), labels


@every_space
def test_architecture_is_that_of_the_decoder(space):
    decoder = SPACES[space]()
    classifier = EmbeddingClassifier(decoder, 4)
    last = classifier.network[-1]
    assert (last.in_features, last.out_features) == (16, 4)
    assert str(classifier.embed) == str(decoder.embed)
    assert [str(layer) for layer in classifier.network[:-1]] == [str(layer) for layer in decoder.network[:-1]]
    assert classifier(torch.zeros(7, 2)).shape == (7, 4)


@every_space
def test_first_layers_start_as_those_of_the_decoder(space):
    decoder = SPACES[space]()
    classifier = EmbeddingClassifier(decoder)
    z = 0.3 * torch.randn(7, 2)
    assert torch.equal(classifier.embed(z), decoder.embed(z))
    hidden = decoder.network[:-1](decoder.embed(z))
    assert torch.equal(classifier.network[:-1](classifier.embed(z)), hidden)
    assert torch.equal(classifier(z), classifier.network[-1](hidden))


def test_gyroplanes_are_those_of_the_decoder():
    decoder = hyperbolic("gyroplane")
    classifier = EmbeddingClassifier(decoder)
    assert isinstance(classifier.embed, GyroplaneLinear)
    for ours, theirs in zip(classifier.embed.planes(), decoder.embed.planes(), strict=True):
        assert torch.equal(ours, theirs)


@every_space
def test_fit_leaves_the_decoder_alone(space):
    decoder = SPACES[space]()
    state = copy.deepcopy(decoder.state_dict())
    classifier = EmbeddingClassifier(decoder, 3)
    before = copy.deepcopy(classifier.state_dict())
    classifier.fit(*clusters(), num_epochs=1)
    assert all(torch.equal(state[name], value) for name, value in decoder.state_dict().items())
    changed = {name for name, value in classifier.state_dict().items() if not torch.equal(before[name], value)}
    assert changed == {name for name, _ in classifier.named_parameters()}


def test_fit_leaves_a_learnable_curvature_alone():
    decoder = hyperbolic("gyroplane", learnable=True)
    classifier = EmbeddingClassifier(decoder, 3)
    c = decoder.embed.manifold.c.item()
    classifier.fit(*clusters(), num_epochs=1)
    assert decoder.embed.manifold.c.item() == c != classifier.embed.manifold.c.item()


@every_space
def test_learns_separable_classes(space):
    z, labels = clusters()
    classifier = EmbeddingClassifier(SPACES[space](), 3)
    losses = classifier.fit(z, labels, num_epochs=25, batch_size=20, learning_rate=0.02)
    assert len(losses) == 25
    assert losses[-1] < 0.3 < losses[0]
    assert torch.equal(classifier.confusion(z, labels), torch.diag(torch.full((3,), 20)))


def test_the_loss_is_the_mean_cross_entropy():
    z, labels = clusters(10)
    classifier = EmbeddingClassifier(euclidean(), 3)
    expected = nn.functional.cross_entropy(classifier(z), labels).item()
    # At this rate nothing moves, and the batches of 4, 4 and 2 must be weighted by their sizes.
    (loss,) = classifier.fit(z, labels, num_epochs=1, batch_size=4, learning_rate=1e-12)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_fit_is_reproducible():
    z, labels = clusters()
    decoder = euclidean()
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(7)
        classifier = EmbeddingClassifier(decoder, 3)
        torch.manual_seed(len(states))  # the global generator has no say in the order of the batches
        classifier.fit(z, labels, num_epochs=1, batch_size=7, seed=seed)
        states.append(classifier.network[-1].weight.detach().clone())
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_confusion_counts_every_datum_once():
    z, labels = clusters(60)
    classifier = EmbeddingClassifier(euclidean(), 5)
    confusion = classifier.confusion(z, labels)
    assert confusion.shape == (5, 5)
    assert torch.equal(confusion.sum(-1), torch.tensor([20, 20, 20, 0, 0]))
    predicted = classifier(z).argmax(-1)
    for i in range(5):
        for j in range(5):
            assert confusion[i, j] == ((labels == i) & (predicted == j)).sum()


def test_latents_may_be_float64():
    z, labels = clusters()
    classifier = EmbeddingClassifier(hyperbolic("gyroplane"), 3)
    classifier.fit(z.double(), labels, num_epochs=1)
    assert classifier(z.double()).dtype == torch.float32


@pytest.mark.parametrize("num_classes", [0, 1, -2])
def test_at_least_two_classes(num_classes):
    with pytest.raises(ValueError, match=f"num_classes must be at least 2, got {num_classes}"):
        EmbeddingClassifier(euclidean(), num_classes)


@pytest.mark.parametrize(("first", "second"), [(3, 4), (0, 0)])
def test_lengths_must_agree(first, second):
    with pytest.raises(ValueError, match=f"same length and not be empty, got {first} and {second}"):
        EmbeddingClassifier(euclidean()).fit(torch.zeros(first, 2), torch.zeros(second, dtype=torch.long))


@every_space
def test_the_elbo_is_the_log_likelihood(space):
    z, labels = clusters(12)
    classifier = EmbeddingClassifier(SPACES[space](), 3)
    expected = nn.functional.cross_entropy(classifier(z), labels, reduction="sum")
    loss = Trace_ELBO().differentiable_loss(classifier.model, classifier.guide, z, labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in classifier.parameters())
