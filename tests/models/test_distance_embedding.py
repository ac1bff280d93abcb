"""Points from their distances: the joint density by hand, starts, guides, and data that cannot be."""

import math

import networkx
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.optim import Adam

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.datasets import graph_distances
from pyro_hyperbolic.geometry import from_signature
from pyro_hyperbolic.infer import check_model_guide, sample_posterior
from pyro_hyperbolic.models import DistanceEmbedding
from pyro_hyperbolic.models.dissimilarities import OBSERVATIONS
from tests.helpers import each, same

POINTS = 7
NAN = math.nan


def example(space="h2", curvature=1.0, scale=1.0):
    """Exact distances of points of a space."""
    torch.manual_seed(0)
    manifold = from_signature(space, curvature)
    v = scale * torch.randn(POINTS, sum(dim for _, dim in manifold.leaves(int(space[-1]))), dtype=torch.float64)
    z = manifold.from_normal_coords(None, v)
    return manifold.pairwise_dist(z, z)


def levels(d):
    return torch.bucketize(d, torch.tensor([1e-9, 0.7, 1.4])).double().fill_diagonal_(0.0)


def site_of(embedding, *args):
    """The site "x" of a run, with its density, and the latents."""
    trace = poutine.trace(embedding.model).get_trace(*args)
    trace.compute_log_prob()
    return trace.nodes["x"]["log_prob"], {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}


@each("likelihood", list(OBSERVATIONS))
def test_density_of_a_measurement_by_hand(likelihood):
    d = example()
    d = levels(d) if likelihood == "ordinal" else d
    d[0, 1] = d[1, 0] = NAN
    d[0, 2] = NAN  # known in the other direction
    options = {"num_levels": 4} if likelihood == "ordinal" else {}
    log_prob, values = site_of(DistanceEmbedding("h2", POINTS, likelihood=likelihood, **options), d)
    i, j = torch.triu_indices(POINTS, POINTS, 1)
    delta = Lorentz(values["c"]).dist(values["z"][i], values["z"][j])
    x = d[j, i]
    if likelihood == "ordinal":
        cuts = torch.cat([torch.tensor([-math.inf]), values["cuts"], torch.tensor([math.inf])])
        level = x.nan_to_num(0).long()
        exact = ((cuts[level + 1] - delta).sigmoid() - (cuts[level] - delta).sigmoid()).log()
    else:
        noise, x = values["noise"], x.nan_to_num(1.0)
        above = torch.special.log_ndtr(delta / noise)  # the probability that a measurement is positive
        exact = {
            "normal": lambda: dist.Normal(delta, noise).log_prob(x),
            "log_normal": lambda: dist.Normal(delta.log(), noise).log_prob(x.log()) - x.log(),
            "truncated_normal": lambda: dist.Normal(delta, noise).log_prob(x) - above,
        }[likelihood]()
    same(log_prob, torch.where(d[j, i].isnan(), 0.0, exact), 1e-9)


def test_three_ways_to_measure_twice():
    d = example()
    again = (d + 0.1).fill_diagonal_(0.0)
    pairs = torch.triu_indices(POINTS, POINTS, 1).T
    i, j = pairs.T
    embedding = DistanceEmbedding("p2", POINTS)
    totals = []
    for args in [
        (torch.stack([d, again]),),
        (torch.cat([d[i, j], again[i, j]]), torch.cat([pairs, pairs.flip(-1)])),
    ]:
        pyro.set_rng_seed(1)
        log_prob, _ = site_of(embedding, *args)
        totals.append(log_prob.sum())
        starts = embedding.start(*args)
        same(starts["c"], embedding.start(0.5 * (d + again))["c"], 1e-9)
    same(*totals, 1e-9)


def test_priors_follow_the_unit_of_the_data():
    """The same data in another unit have the same posterior, with other numbers."""
    d = example()
    embedding = DistanceEmbedding("h2", POINTS)
    values = [embedding.start(d), embedding.start(1000 * d)]
    joints, names = [], ("c", "spread", "noise")
    for start, x in zip(values, [d, 1000 * d], strict=True):
        trace = poutine.trace(poutine.condition(embedding.model, {name: start[name] for name in names})).get_trace(x)
        trace.compute_log_prob(lambda name, site: name in names)
        joints.append(sum(trace.nodes[name]["log_prob"] + start[name].log() for name in names))
    same(*joints, 1e-9)
    for name, power in [("c", -2), ("spread", 1), ("noise", 1)]:
        same(values[1][name], values[0][name] * 1000.0**power, 1e-6)


@each(
    ("space", "options", "stress"),
    [
        ("h2", {}, 0.04),
        ("p2", {"curvature": 1.0}, 1e-6),
        ("e2", {}, 0.2),
        ("s2", {}, 0.2),
        ("u2", {}, 0.04),
        ("h2,e1", {}, 0.1),
        (PoincareBall(1.0), {"dim": 2, "curvature": "learned"}, 1e-6),
        ("h2", {"curvature": dist.Uniform(0.8, 1.1), "likelihood": "log_normal"}, 0.04),
        ("h2", {"likelihood": "ordinal", "num_levels": 4}, None),
    ],
)
def test_starts_and_guides(space, options, stress):
    d = example()
    x = levels(d) if stress is None else d
    embedding = DistanceEmbedding(space, POINTS, **options)
    start = embedding.start(x)
    found = embedding.distances(start)
    assert found.shape == d.shape
    if stress is not None:
        assert (found - d).norm() < stress * d.norm()
    embedding.begin(start)
    check_model_guide(embedding.model, embedding.guide, x)
    loss = Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1)
    loss.loss_and_grads(embedding.model, embedding.guide, x)
    for name, parameter in embedding.named_parameters():
        assert bool((parameter.grad.isfinite() & parameter.grad.any()).all()), name
    draws = {name: value.detach().expand(2, 3, *value.shape) for name, value in start.items()}
    assert embedding.distances(draws).shape == (2, 3, POINTS, POINTS)


def test_guide_is_trained_from_its_start():
    d = example()
    embedding = DistanceEmbedding("p2", POINTS)
    start = embedding.start(d)
    embedding.begin(start)
    draws = Predictive(embedding.guide, num_samples=100, parallel=True)(d)
    same(draws["c"].log().median(), start["c"].log(), 0.1)
    radii = PoincareBall(start["c"]).dist0(start["z"])
    same(embedding.positions.log_scale.exp(), 0.1 * radii.square().mean().sqrt().expand(POINTS, 2), 1e-4)
    svi = SVI(
        embedding.model, embedding.guide, Adam({"lr": 0.02}), Trace_ELBO(num_particles=4, vectorize_particles=True)
    )
    losses = [svi.step(d) for _ in range(40)]
    assert sum(losses[-10:]) < sum(losses[:10]) - 10 * 2.0


def test_start_of_missing_and_equal_points():
    d = graph_distances(networkx.star_graph(POINTS - 1))
    embedding = DistanceEmbedding("h2", POINTS, likelihood="log_normal")
    start = embedding.start(d)
    assert bool((embedding.distances(start) + torch.eye(POINTS) > 1e-3).all())
    assert start["noise"] < 1.0
    few = torch.where(d == 1, d, NAN).fill_diagonal_(0.0)
    fixed = DistanceEmbedding("h2", POINTS, curvature=1.0)
    same(fixed.start(few)["z"], fixed.start(d)["z"], 1e-9)
    few[0, 3] = few[3, 0] = NAN
    with pytest.raises(ValueError, match="no path of measured pairs from point 0 to point 3"):
        embedding.start(few)


@each(("space", "stress"), [("h2", 0.22), ("e2", 0.4), ("e1", 1.0), ("s2", 0.4), ("h2,e1", 0.3)])
def test_start_by_a_spanning_tree(space, stress):
    """The root is in the middle, its distances are kept, and what hangs on one node has one sector."""
    tree = networkx.balanced_tree(2, 4)
    d = graph_distances(tree)
    embedding = DistanceEmbedding(space, len(d))
    start = embedding.start(d, layout="tree")
    found = embedding.distances(start)
    if space not in ("s2", "e1"):  # on a line points coincide, and are moved
        same(found[0], d[0], 1e-6)
    assert (found - d).norm() < stress * d.norm()
    if space == "h2":
        v = Lorentz(start["c"]).to_normal_coords(None, start["z"])
        below = sorted(networkx.descendants(networkx.bfs_tree(tree, 0), 1) | {1})
        others = sorted(set(tree) - {0, *below})
        assert v[below, 1].sign().unique().tolist() == (-v[others, 1].sign().unique()).tolist()


@each(
    ("change", "message"),
    [
        (lambda d: d[:3], r"square matrix \(7, 7\)"),
        (lambda d: d[:3, :3], r"square matrix \(7, 7\)"),
        (lambda d: d.numpy(), "must be a tensor of real numbers, got ndarray"),
        (lambda d: d > 0, "must be a tensor of real numbers, got torch.bool"),
        (lambda d: d + torch.ones_like(d).triu(1), "must be symmetric"),
        (lambda d: -d, "must not be negative"),
        (lambda d: d + 1, "must be 0 on the diagonal, got 1"),
        (lambda d: d.clone().fill_diagonal_(NAN), "must be 0 on the diagonal, got nan"),
        (lambda d: torch.where(d > 1, math.inf, d), "must be finite, got inf; .* largest_component"),
        (lambda d: 0 * d, "must not all be 0"),
        (lambda d: d.to_sparse(), "dense tensor"),
        (lambda d: torch.full_like(d, NAN).fill_diagonal_(0.0), "not missing"),
    ],
)
def test_distances_that_cannot_be(change, message):
    d = change(example())
    embedding = DistanceEmbedding("h2", POINTS)
    for program in (embedding.model, embedding.guide, embedding.start):
        with pytest.raises(ValueError, match=message):
            program(d)
    with pytest.raises(ValueError, match=message), pyro.validation_enabled(False):
        embedding.model(d)


@each(
    ("options", "message"),
    [
        ({"num_points": 3}, "num_points must be more than 3 in 2 dimensions"),
        ({"num_points": 1}, "at least 2"),
        ({"likelihood": "gamma"}, "likelihood must be one of"),
        ({"likelihood": "ordinal"}, "num_levels must be given"),
        ({"num_levels": 3}, "num_levels must be given for the likelihood 'ordinal' and for no other"),
        ({"likelihood": "ordinal", "num_levels": 3, "noise": dist.LogNormal(0.0, 1.0)}, "noise must be None"),
        ({"unit": -1.0}, "unit must be a positive length"),
        ({"space": PoincareBall(1.0)}, "dim must be given"),
        ({"dim": 3}, "dim must be the dimension 2 of 'h2'"),
        ({"curvature": "free"}, "curvature must be one of"),
        ({"curvature": -1.0}, "a number c >= 0 or a prior, got -1.0"),
        ({"curvature": dist.Normal(0.0, 1.0)}, "curvature must have a prior of one positive number"),
        ({"curvature": 0.0}, "no flat limit"),
        ({"spread": "unit"}, "spread must have a prior of one positive number"),
        ({"spread": dist.LogNormal(torch.zeros(2), 1.0)}, "spread must have a prior of one positive number"),
        ({"noise": 0.1}, "noise must have a prior of one positive number"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        DistanceEmbedding(**{"space": "h2", "num_points": POINTS, **options})


def test_data_that_do_not_suit_their_likelihood():
    d = example()
    ordinal = DistanceEmbedding("h2", POINTS, likelihood="ordinal", num_levels=3)
    with pytest.raises(ValueError, match=r"levels 0, 1, ..., 2 for the likelihood 'ordinal', got 3"):
        ordinal.model(levels(d))
    d[0, 1] = d[1, 0] = 0.0
    with pytest.raises(ValueError, match="must be positive for the likelihood 'log_normal'"):
        DistanceEmbedding("h2", POINTS, likelihood="log_normal").model(d)
    embedding = DistanceEmbedding("h2", POINTS)
    with pytest.raises(ValueError, match="samples must have draws of"):
        embedding.distances({"z": torch.zeros(POINTS, 3)})
    for pairs, message in [
        (torch.zeros(2, 2), "pairs must be integers"),
        (torch.tensor([[0, 1]]), "one number for each of the 1 pairs"),
        (torch.tensor([[0, 1], [2, POINTS]]), "pairs must join nodes 0 to 6"),
        (torch.tensor([[0, 1], [2, 2]]), "got one point twice"),
    ]:
        with pytest.raises(ValueError, match=message):
            embedding.model(torch.ones(2), pairs)


def test_points_beyond_float32():
    """A ball in float32 ends at a distance of 15 from its centre."""
    d = graph_distances(networkx.path_graph(40)).float() * 10
    with pytest.raises(ValueError, match=r"too large for torch.float32 coordinates .* pass distances.double"):
        DistanceEmbedding("p2", 40, curvature=1.0).start(d)
    start = DistanceEmbedding("p2", 40).start(d)
    assert start["c"] < 0.1


@pytest.mark.slow
def test_posterior_finds_the_curvature():
    """Of distances from a space of curvature -2, measured twice with noise and with a fifth of the pairs missing."""
    d = example(curvature=2.0, scale=0.8)
    torch.manual_seed(1)
    noise = 0.05 * torch.randn(2, POINTS, POINTS, dtype=d.dtype).triu(1)
    x = d + noise + noise.mT
    missing = (torch.rand(POINTS, POINTS) < 0.2).triu(1)
    x[:, missing | missing.mT] = NAN
    embedding = DistanceEmbedding("h2", POINTS, likelihood="truncated_normal")
    posterior = sample_posterior(embedding.model, x, num_chains=8, num_samples=400, warmup=300, progress=False)
    assert all(found.r_hat < 1.05 for found in posterior.diagnostics().values()), posterior.summary()
    low, high = posterior.samples["c"].flatten().quantile(torch.tensor([0.01, 0.99], dtype=d.dtype))
    assert low < 2.0 < high < 20.0
    found = embedding.distances(posterior.samples)
    assert found.shape == (8, 400, POINTS, POINTS)
    known = ~x[0].isnan()
    assert (found.mean((0, 1)) - d)[known].abs().max() < 0.15
