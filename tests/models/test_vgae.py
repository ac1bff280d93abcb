"""Auto-encoders of graphs."""

import math

import mpmath
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam
from torch import nn

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.models import EuclideanVGAE, HyperbolicVGAE, ManifoldVGAE, edge_log_odds
from pyro_hyperbolic.nn import Log0, ManifoldModule
from tests.helpers import DTYPES, SLOPE, LargestStorage, same
from tests.models.cases import EDGES, NUM_NODES, VGAES

every_vgae = pytest.mark.parametrize("case", VGAES, ids=str)
two_spaces = pytest.mark.parametrize("case", [VGAES[0], VGAES[-2]], ids=str)
DISTANCES = [1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4]


@pytest.fixture(autouse=True)
def _validated():
    with pyro.validation_enabled(True):
        yield


def observations(vgae, z, **kwargs):
    """log p(A | z) of the program at given latents."""
    conditioned = poutine.condition(vgae.model, data={"z": z})
    trace = poutine.trace(conditioned).get_trace(**kwargs)
    trace.compute_log_prob(lambda name, site: name.startswith("x"))
    return sum(site["log_prob_sum"] for name, site in trace.nodes.items() if name.startswith("x"))


def ring(num_nodes):
    nodes = torch.arange(num_nodes)
    return torch.stack([nodes, (nodes + 1) % num_nodes], -1)


class TestLogOdds:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("distance", DISTANCES)
    def test_against_exact_arithmetic(self, distance, dtype):
        d = torch.tensor(distance, dtype=dtype, requires_grad=True)
        value = edge_log_odds(d)
        value.backward()
        with mpmath.workdps(30):
            exact = mpmath.mpf(d.item())
            expected = mpmath.log(2) - mpmath.log(mpmath.expm1(2 * exact))
            slope = -2 / (1 - mpmath.exp(-2 * exact))
        same(value, float(expected), SLOPE[dtype])
        same(d.grad / float(slope), 1.0, SLOPE[dtype])

    def test_are_those_of_the_probability(self):
        d = torch.linspace(0.05, 8.0, 50, dtype=torch.float64)
        p = 1 - torch.tanh(d)
        same(edge_log_odds(d), torch.log(p / (1 - p)), 1e-8)
        same(edge_log_odds(d).sigmoid(), p, 1e-12)

    def test_fall_with_the_distance(self):
        d = torch.tensor(DISTANCES)
        assert (edge_log_odds(d).diff() < 0).all()


class TestWholeGraph:
    @every_vgae
    def test_likelihood_by_a_double_loop(self, case):
        vgae = case.build()
        z = vgae.prior().sample((NUM_NODES,))
        edges = {frozenset(pair) for pair in EDGES.tolist()}
        total = 0.0
        for i in range(NUM_NODES):
            for j in range(NUM_NODES):
                if i != j:
                    odds = math.tanh(vgae.latent.dist(z[i].double(), z[j].double()).item())
                    total += math.log(1 - odds if {i, j} in edges else odds)
        same(observations(vgae, z), total, 1e-4)

    @two_spaces
    def test_loss_by_a_double_loop(self, case):
        vgae = case.build()
        pyro.set_rng_seed(5)
        z = poutine.trace(vgae.guide).get_trace().nodes["z"]["value"].clone()
        divergence = (vgae.encode().log_prob(z) - vgae.prior().log_prob(z)).sum()
        edges = EDGES.tolist()
        total = sum(
            edge_log_odds(vgae.latent.dist(z[i], z[j]))
            .mul(1 if [i, j] in edges or [j, i] in edges else -1)
            .sigmoid()
            .log()
            for i in range(NUM_NODES)
            for j in range(NUM_NODES)
            if i != j
        )
        pyro.set_rng_seed(5)
        assert Trace_ELBO().loss(vgae.model, vgae.guide) == pytest.approx((divergence - total).item(), rel=1e-5)

    def test_distances_to_itself_leave_no_trace_in_the_gradient(self):
        vgae = VGAES[0].build()
        z = vgae.prior().sample((NUM_NODES,)).requires_grad_()
        observations(vgae, z).backward()
        assert z.grad.isfinite().all()
        assert z.grad.abs().min() > 0

    @two_spaces
    def test_memory_is_quadratic_in_the_nodes(self, case):
        n = 80
        options = {"num_nodes": n, "edges": ring(n), "latent_dim": 6, "hidden_dim": 4}
        vgae = EuclideanVGAE(**options) if case.c is None else HyperbolicVGAE(PoincareBall(1.0), **options)
        with LargestStorage() as largest:
            Trace_ELBO().differentiable_loss(vgae.model, vgae.guide).backward()
        assert n * n <= largest.numel <= 2 * n * n

    @pytest.mark.parametrize("particles", [1, 3])
    @two_spaces
    def test_particles(self, case, particles):
        vgae = case.build()
        with pyro.plate("particles", particles, dim=-2):
            z = poutine.trace(vgae.guide).get_trace().nodes["z"]["value"]
            trace = poutine.trace(poutine.condition(vgae.model, data={"z": z})).get_trace()
        trace.compute_log_prob()
        assert trace.nodes["x"]["log_prob"].shape == (particles, 1)
        for k in range(particles):
            same(trace.nodes["x"]["log_prob"][k, 0], observations(vgae, z[k]), 1e-5)


class TestSampledNonEdges:
    @two_spaces
    def test_unbiased(self, case):
        vgae = case.build()
        with torch.no_grad():
            z = vgae.prior().sample((NUM_NODES,))
            whole = observations(vgae, z)
            draws = torch.stack([observations(vgae, z, num_negatives=20) for _ in range(400)])
        error = draws.std() / 20
        assert abs(draws.mean() - whole) < 5 * error < 0.1 * abs(whole)

    @pytest.mark.slow
    def test_gradient_is_unbiased(self):
        vgae = VGAES[0].build()
        z = vgae.prior().sample((NUM_NODES,)).requires_grad_()
        (whole,) = torch.autograd.grad(observations(vgae, z), z)
        draws = torch.stack([torch.autograd.grad(observations(vgae, z, num_negatives=40), z)[0] for _ in range(200)])
        error = draws.std(0) / math.sqrt(len(draws))
        assert ((draws.mean(0) - whole).abs() < 5 * error).all()

    @pytest.mark.parametrize("particles", [None, 3])
    @two_spaces
    def test_sites(self, case, particles):
        vgae = case.build()
        model = vgae.model if particles is None else pyro.plate("particles", particles, dim=-2)(vgae.model)
        trace = poutine.trace(model).get_trace(num_negatives=7)
        trace.compute_log_prob()
        batch = () if particles is None else (particles,)
        x, negatives = trace.nodes["x"], trace.nodes["x_negatives"]
        assert x["value"].shape == (*batch, 1, 2 * len(EDGES))
        assert (x["value"] == 1).all()
        assert negatives["value"].shape == (*batch, 1, 7)
        assert (negatives["value"] == 0).all()
        assert (x["scale"], negatives["scale"]) == (1.0, NUM_NODES * (NUM_NODES - 1) / 7)

    def test_all_pairs_of_different_nodes_are_drawn_alike(self):
        # One edge, and log-odds that name the pair: node i at the place 2^i on a line.
        vgae = EuclideanVGAE(4, torch.tensor([[0, 1]]), latent_dim=1)
        z = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
        trace = poutine.trace(poutine.condition(vgae.model, data={"z": z})).get_trace(num_negatives=6000)
        distribution = trace.nodes["x_negatives"]["fn"]
        masked, logits = distribution.base_dist, distribution.base_dist.base_dist.logits
        distances = {(i, j): abs(2**i - 2**j) for i in range(4) for j in range(i)}
        for pair, distance in distances.items():
            here = torch.isclose(logits, edge_log_odds(torch.tensor(float(distance))))
            # 6000 draws over 6 unordered pairs: 1000 each, with a standard deviation of 29.
            assert abs(here.sum().item() - 1000) < 5 * 29, pair
            assert masked._mask[here].all() == (pair != (1, 0))
            assert masked._mask[here].any() == (pair != (1, 0))

    @two_spaces
    def test_memory_does_not_hold_the_matrix(self, case):
        n = 300
        options = {"num_nodes": n, "edges": ring(n), "latent_dim": 3, "hidden_dim": 4}
        vgae = EuclideanVGAE(**options) if case.c is None else HyperbolicVGAE(PoincareBall(1.0), **options)
        with LargestStorage() as largest:
            Trace_ELBO().differentiable_loss(vgae.model, vgae.guide, num_negatives=100).backward()
        assert largest.numel <= 4 * 3 * n < n * n

    @pytest.mark.parametrize("num_negatives", [0, -3, 10.5, True])
    def test_at_least_one(self, num_negatives):
        with pytest.raises(ValueError, match=f"num_negatives must be a positive integer, got {num_negatives}"):
            poutine.trace(VGAES[0].build().model).get_trace(num_negatives=num_negatives)


class TestEncoder:
    @every_vgae
    def test_posterior(self, case):
        vgae = case.build()
        posterior = vgae.encode()
        assert posterior.batch_shape == (NUM_NODES,)
        assert posterior.event_shape == (case.num_coordinates,)
        loc, scale = vgae.encoder(vgae.features, vgae.adjacency)
        assert loc.shape == (NUM_NODES, case.latent_dim)
        assert (scale > 0).all()
        isotropic = case.options.get("posterior_scale") == "isotropic"
        assert scale.shape == (NUM_NODES, 1 if isotropic else case.latent_dim)
        mean = posterior.mean if case.c is None else Log0(vgae.manifold)(posterior.mean)
        torch.testing.assert_close(mean.float(), loc, rtol=1e-4, atol=1e-5)

    def test_is_the_two_layer_convolution(self):
        vgae = VGAES[0].build()
        matrix = vgae.adjacency(torch.eye(NUM_NODES))
        hidden = torch.relu(matrix @ vgae.encoder.hidden.weight)
        loc, scale = vgae.encoder(vgae.features, vgae.adjacency)
        torch.testing.assert_close(loc, matrix @ hidden @ vgae.encoder.loc.weight)
        torch.testing.assert_close(scale, (1 + (matrix @ hidden @ vgae.encoder.scale.weight).exp()).log())

    def test_features_of_the_nodes(self):
        features = torch.rand(NUM_NODES, 3, generator=torch.Generator().manual_seed(0))
        vgae = ManifoldVGAE("p2", NUM_NODES, EDGES, 2, hidden_dim=4, features=features)
        assert vgae.encoder.hidden.weight.shape == (3, 4)
        matrix = vgae.adjacency(torch.eye(NUM_NODES))
        hidden = torch.relu(matrix @ features @ vgae.encoder.hidden.weight)
        loc, _ = vgae.encoder(vgae.features, vgae.adjacency)
        torch.testing.assert_close(loc, matrix @ hidden @ vgae.encoder.loc.weight)
        assert "features" in vgae.state_dict()

    def test_an_encoder_of_the_users(self):
        class Linear(nn.Module):
            def __init__(self, size: int) -> None:
                super().__init__()
                self.layer = nn.Linear(5, size)

            def forward(self, features, adjacency):
                loc, scale = adjacency(self.layer(features)).split([2, self.layer.out_features - 2], -1)
                return loc, scale.exp()

        features = torch.arange(NUM_NODES * 5).reshape(NUM_NODES, 5)  # integers too
        options = {"features": features, "posterior_scale": "isotropic"}
        vgae = ManifoldVGAE("p2", NUM_NODES, EDGES, 2, encoder=Linear(3), **options)
        before = vgae.encoder.layer.weight.clone()
        SVI(vgae.model, vgae.guide, Adam({"lr": 0.01}), Trace_ELBO()).step()
        assert not torch.equal(vgae.encoder.layer.weight, before)
        wrong = ManifoldVGAE("p2", NUM_NODES, EDGES, 2, encoder=Linear(4), **options)
        with pytest.raises(ValueError, match=r"encoder must return a location and .* got \[\(9, 2\), \(9, 2\)\]"):
            wrong.encode()

    @every_vgae
    def test_edge_scores(self, case):
        vgae = case.build()
        pairs = torch.tensor([[0, 1], [3, 8], [8, 3]])
        scores = vgae.edge_scores(pairs)
        assert not scores.requires_grad
        z = vgae.encode().mean
        for k, (i, j) in enumerate(pairs.tolist()):
            same(scores[k], edge_log_odds(vgae.latent.dist(z[i], z[j])), 1e-6)
        assert scores[1] == scores[2] != scores[0]

    @every_vgae
    def test_distances(self, case):
        vgae = case.build()
        z = vgae.prior().sample((2, 5))
        pairwise = vgae.latent.pairwise_dist(z)
        assert pairwise.shape == (2, 5, 5)
        same(pairwise, vgae.latent.dist(z.unsqueeze(-2), z.unsqueeze(-3)), 1e-5)
        if case.c is None:
            same(pairwise, (z.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1).sqrt(), 1e-5)


BAD_GRAPHS = {
    "no edge": (torch.zeros(0, 2, dtype=torch.long), "edges must not be empty"),
    "a list": ([(0, 1)], r"edges must be a tensor \(E, 2\), got list; use torch.as_tensor\(edges\)"),
    "one dimension": (torch.tensor([0, 1]), r"edges must have shape \(E, 2\)"),
    "a node too many": (torch.tensor([[0, 9]]), "edges must join nodes 0 to 8"),
    "a loop": (torch.tensor([[0, 1], [2, 2]]), "edges must join different nodes"),
    "an edge twice": (torch.tensor([[0, 1], [1, 0]]), "edges must be listed once"),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graphs(name):
    edges, message = BAD_GRAPHS[name]
    with pytest.raises(ValueError, match=message):
        EuclideanVGAE(NUM_NODES, edges)
    with pytest.raises(ValueError, match=message):
        HyperbolicVGAE(PoincareBall(1.0), NUM_NODES, edges)


BAD_ARGUMENTS = {
    "latent_dim": ({"latent_dim": 0}, "latent_dim must be a positive integer, got 0"),
    "hidden_dim": ({"hidden_dim": 2.5}, "hidden_dim must be a positive integer, got 2.5"),
    "num_nodes": ({"num_nodes": 34.0}, "num_nodes must be a positive integer, got 34.0"),
    "latent_dim of a module": ({"manifold": ManifoldModule("h2")}, "latent_dim must be the dimension 2 of 'h2', got 5"),
    "prior_scale": ({"prior_scale": 0.0}, "prior_scale must be a positive number"),
    "posterior_scale": ({"posterior_scale": "full"}, "posterior_scale must be one of"),
    "prior": ({"prior": "cauchy"}, "prior must be one of"),
    "diagonal and Riemannian": ({"posterior": "riemannian"}, "'diagonal' needs posterior 'wrapped'"),
    "manifold": ({"manifold": 1.0}, "manifold must be a manifold"),
    "features of some nodes": ({"features": torch.ones(3, 2)}, r"features must be a tensor \(9, F\).* got \(3, 2\)"),
    "a list of features": ({"features": [1.0]}, r"features must be a tensor \(9, F\).* got list"),
    "missing features": ({"features": torch.full((9, 2), math.nan)}, "features must hold finite numbers"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(name):
    changes, message = BAD_ARGUMENTS[name]
    good = {"manifold": PoincareBall(1.0), "num_nodes": NUM_NODES, "edges": EDGES}
    with pytest.raises(ValueError, match=message):
        HyperbolicVGAE(**(good | changes))


@pytest.mark.parametrize(
    "pairs", [[(0, 1)], torch.tensor([0, 1]), torch.tensor([[0, 99]]), torch.tensor([[-1, 0]])], ids=str
)
def test_pairs_of_no_nodes(pairs):
    with pytest.raises(ValueError, match=r"pairs must (be a tensor|have shape \(E, 2\)|join nodes 0 to 8)"):
        VGAES[0].build().edge_scores(pairs)
