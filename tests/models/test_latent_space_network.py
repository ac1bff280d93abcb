"""Latent space models of networks."""

import math

import networkx
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO

from pyro_hyperbolic import PoincareBall, datasets, infer
from pyro_hyperbolic.geometry import from_signature
from pyro_hyperbolic.infer.posterior.energy import Energy
from pyro_hyperbolic.models import LatentSpaceNetwork, Network
from pyro_hyperbolic.models.edges import EDGE_LIKELIHOODS
from pyro_hyperbolic.models.hops import hops, scaled_hops
from tests.helpers import LargestStorage, each, same

NODES = 6
NAN = float("nan")


def symmetric(x):
    return (x + x.transpose(0, 1)) / 2


CASES = [
    ("bernoulli", "e2", {}),
    ("bernoulli", "h2", {"curvature": "fixed", "degrees": True}),
    ("bernoulli", "s2", {"curvature": "learned", "directed": True, "degrees": True}),
    ("poisson", "h2,e1", {"node_covariates": torch.arange(12.0).reshape(6, 2) / 6}),
    ("normal", "h3", {"directed": True, "node_covariates": torch.linspace(-1, 1, 6).reshape(6, 1)}),
    ("signed", "p2", {"pair_covariates": symmetric(torch.linspace(-1, 1, 72).reshape(6, 6, 2))}),
    ("bernoulli", "h2", {"groups": 2}),
]


@pytest.fixture(autouse=True)
def _validated():
    with pyro.validation_enabled(True):
        yield


def matrix(net):
    """Values of all pairs that the likelihood may have, one of them missing."""
    torch.manual_seed(1)
    x = torch.randn(NODES, NODES, dtype=torch.float64)
    name = type(net.likelihood).__name__
    made = {
        "BernoulliEdges": (x > 0).double(),
        "PoissonEdges": (2 * x.abs()).round(),
        "NormalEdges": x,
        "SignedEdges": (1.5 * x).round().clamp(-1, 1),
    }[name]
    made = made.fill_diagonal_(0.0)
    if not net.directed:
        made = made.triu() + made.triu().T
    made[0, 1] = made[1, 0] = NAN
    return made


def log_density(name, a, eta, values):
    """Of one value, by its formula."""
    p = 1 / (1 + math.exp(-eta))
    if name == "BernoulliEdges":
        return math.log(p if a == 1 else 1 - p)
    if name == "PoissonEdges":
        return a * eta - math.exp(eta) - math.lgamma(a + 1)
    if name == "NormalEdges":
        noise = values["noise"].item()
        return -0.5 * ((a - eta) / noise) ** 2 - math.log(noise * math.sqrt(2 * math.pi))
    above = 1 / (1 + math.exp(-eta - values["gap"].item()))
    return math.log({1: p, 0: above - p, -1: 1 - above}[int(a)])


def by_hand(net, a, values, space):
    """The logarithm of the likelihood, by a double loop."""
    total = 0.0
    for i in range(NODES):
        for j in range(NODES):
            if i == j or (j < i and not net.directed) or math.isnan(a[i, j]):
                continue
            z = values["z"]
            eta = values["intercept"] - space.dist(z[i], z[j]) / values["temperature"]
            if net.effects:
                eta = eta + values["sociality"][i] + values["popularity" if net.directed else "sociality"][j]
            x, y = net.node_covariates, net.pair_covariates
            if x is not None:
                eta = eta + (torch.cat([x[i], x[j]]) if net.directed else x[i] + x[j]) @ values["coefficients"]
            if y is not None:
                eta = eta + y[i, j].double() @ values["coefficients"]
            total += log_density(type(net.likelihood).__name__, a[i, j].item(), eta.item(), values)
    return total


def build(likelihood, space, options):
    torch.manual_seed(0)
    return LatentSpaceNetwork(space, NODES, likelihood=likelihood, **options).double()


class TestProgram:
    @each(("likelihood", "space", "options"), CASES)
    def test_joint_density_by_hand(self, likelihood, space, options):
        net = build(likelihood, space, options)
        a = matrix(net)
        trace = poutine.trace(net.model).get_trace(a)
        trace.compute_log_prob()
        values = {name: site["value"] for name, site in trace.nodes.items() if site["type"] == "sample"}
        curvatures = [values[site] for site in net.positions.drawn] or net.positions.space.curvatures
        made = net.positions.space().with_curvatures([torch.as_tensor(c).double() for c in curvatures])
        same(trace.nodes["edges"]["log_prob_sum"], by_hand(net, a, values, made), 1e-9)
        usual = {"intercept": dist.Normal(0.0, 3.0), "temperature": dist.LogNormal(-0.5, 0.5)}
        usual |= {"gap": dist.LogNormal(1.0, 1.0)}
        usual |= {"noise": dist.LogNormal(0.0, 1.0), "sociality_scale": dist.LogNormal(-0.5, 0.5)}
        for name, prior in usual.items():
            if name in trace.nodes:
                same(trace.nodes[name]["log_prob_sum"], prior.log_prob(values[name]), 1e-6)
        for name in net.effects:
            exact = dist.Normal(0.0, values[f"{name}_scale"]).log_prob(values[name]).sum()
            same(trace.nodes[name]["log_prob_sum"], exact, 1e-9)
        if net.groups is None:
            # A wrapped normal around the origin: the normal density of the coordinates, over the change of volume.
            v = made.to_normal_coords(None, values["z"])
            if not made.geodesics_close:
                exact = dist.Normal(0.0, 1.0).log_prob(v).sum() - made.log_det_exp(v).sum()
                same(trace.nodes["z"]["log_prob_sum"], exact, 1e-9)
        else:
            components = [
                infer_log_prob(values["z"], values["group_loc"][k], values["group_scale"][k], made) for k in range(2)
            ]
            weighted = torch.stack(components, -1) + values["group_weights"].log()
            same(trace.nodes["z"]["log_prob_sum"], weighted.logsumexp(-1).sum(), 1e-6)

    @each(("likelihood", "space", "options"), CASES)
    def test_guide_has_the_latents_of_the_model(self, likelihood, space, options):
        net = build(likelihood, space, options)
        a = matrix(net)
        net.begin(net.start(a))
        loss = Trace_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
        value = loss.differentiable_loss(net.model, net.guide, a)
        value.backward()
        assert value.isfinite()
        learned = dict(net.named_parameters())
        assert all(p.grad is not None and p.grad.isfinite().all() for p in learned.values()), learned.keys()
        draws = Predictive(net.guide, num_samples=4)(a)
        found = net.predict(draws, torch.tensor([[0, 1], [2, 5]]))
        assert ((found.lower <= found.mean) & (found.mean <= found.upper)).all()
        if net.groups:
            together = net.co_membership(draws)
            same(together, together.T, 1e-12)
            assert ((together >= 0) & (together <= 1 + 1e-12)).all()

    def test_prediction_of_a_draw_by_hand(self):
        net = build("signed", "h2", {"degrees": True})
        a = matrix(net)
        draws = Predictive(net.guide, num_samples=3)(a)
        found = net.predict(draws, torch.tensor([[1, 4]])).mean[0]
        each_draw = []
        for k in range(3):
            space = from_signature("h2", draws["c"][k])
            eta = draws["intercept"][k] - space.dist(draws["z"][k, 1], draws["z"][k, 4]) / draws["temperature"][k]
            eta = eta + draws["sociality"][k, 1] + draws["sociality"][k, 4]
            above = (eta + draws["gap"][k]).sigmoid()
            each_draw.append(torch.stack([1 - above, above - eta.sigmoid(), eta.sigmoid()]).reshape(3))
        same(found, torch.stack(each_draw).mean(0), 1e-9)

    def test_forms_of_a_network_agree(self):
        net = LatentSpaceNetwork("h2", 34).double()
        graph = networkx.karate_club_graph()
        forms = [graph, Network.from_networkx(graph), datasets.network("karate").adjacency(torch.float64)]
        z = net.positions.space().origin(2, torch.float64).expand(34, -1)
        data = {"z": z, "intercept": torch.tensor(0.3), "c": torch.tensor(1.0), "temperature": torch.tensor(1.0)}
        found = []
        for form in forms:
            trace = poutine.trace(poutine.condition(net.model, data=data)).get_trace(form)
            found.append(float(trace.nodes["edges"]["fn"].log_prob(trace.nodes["edges"]["value"]).sum()))
        assert found[0] == found[1] == found[2]
        p = 1 / (1 + math.exp(-0.3))
        assert found[0] == pytest.approx(78 * math.log(p) + (561 - 78) * math.log(1 - p), rel=1e-6)

    def test_without_edges_it_draws_them(self):
        net = LatentSpaceNetwork("e2", 5, likelihood="poisson")
        trace = poutine.trace(net.model).get_trace()
        assert trace.nodes["edges"]["value"].shape == (10,)


def infer_log_prob(z, loc, scale, space):
    from pyro_hyperbolic.distributions import WrappedNormal

    return WrappedNormal(loc, scale, space).log_prob(z)


class TestSampledPairs:
    @each(("likelihood", "options"), [("bernoulli", {}), ("normal", {"directed": True}), ("signed", {})])
    def test_likelihood_is_unbiased(self, likelihood, options):
        net = build(likelihood, "h2", options)
        a = matrix(net)
        if likelihood == "normal":
            a = a * (a > 0.3)
        network = net.network(a)
        prior = poutine.trace(net.model).get_trace()
        names = [*net.priors, "c", "z"]
        program = poutine.condition(net.model, data={name: prior.nodes[name]["value"] for name in names})

        def sites(**options):
            trace = poutine.trace(program).get_trace(network, **options)
            trace.compute_log_prob()
            return trace.nodes

        count = 100_000
        exact, sampled = sites()["edges"]["log_prob_sum"], sites(num_nonedges=count)
        error = sampled["nonedges"]["log_prob"].std() * count**0.5
        found = sampled["edges"]["log_prob_sum"] + sampled["nonedges"]["log_prob_sum"]
        assert (found - exact).abs() < 4 * error
        assert 0 < error < 0.02 * exact.abs()

    def test_no_square_of_the_nodes(self):
        count = 3000
        nodes = torch.arange(1, count)
        tree = Network(count, torch.stack([nodes, nodes // 2], -1))
        net = LatentSpaceNetwork("h2", count, degrees=True)
        net.begin(net.start(tree))
        with LargestStorage() as largest:
            Trace_ELBO().differentiable_loss(net.model, net.guide, tree, num_nonedges=count).backward()
        assert largest.numel <= 10 * count

    @pytest.mark.slow
    def test_training_finds_what_edges_were_drawn_from(self):
        torch.manual_seed(3)
        net = LatentSpaceNetwork("h2", 100, curvature=1.0)
        data = {"intercept": torch.tensor(4.0), "temperature": torch.tensor(0.4)}
        trace = poutine.trace(poutine.condition(net.model, data=data)).get_trace()
        truth, values = trace.nodes["z"]["value"], trace.nodes["edges"]["value"]
        i, j = torch.triu_indices(100, 100, 1)
        network = Network(100, torch.stack([i, j], -1)[values == 1])
        net.begin(net.start(network))
        svi = SVI(net.model, net.guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.996}), Trace_ELBO())
        for _ in range(600):
            svi.step(network, num_nonedges=2000)
        draws = Predictive(net.guide, num_samples=200)(network)
        found = net.predict(draws, torch.stack([i, j], -1)).mean
        space = net.positions.space()
        exact = (4.0 - space.dist(truth[i], truth[j]) / 0.4).sigmoid()
        assert torch.corrcoef(torch.stack([found, exact]))[0, 1] > 0.95
        assert abs(float(found.sum() / exact.sum()) - 1) < 0.1
        assert abs(draws["temperature"].mean().item() - 0.4) < 0.12


class TestStart:
    def test_steps_between_nodes(self):
        graph = networkx.barbell_graph(4, 3)
        edges = torch.tensor(list(graph.edges))
        found = hops(edges, len(graph), torch.arange(len(graph)))
        same(found, datasets.graph_distances(graph), 0.0)

    def test_scaling_of_a_path(self):
        points = scaled_hops(torch.tensor([[k, k + 1] for k in range(599)]), 600, 1)
        assert torch.corrcoef(torch.stack([points[:, 0], torch.arange(600.0).double()]))[0, 1].abs() > 0.999
        assert abs(float(points[0, 0] - points[-1, 0])) == pytest.approx(599, rel=0.01)

    @each("space", ["h2", "p2", "s2", "u2", "e2", "h2,s1"])
    def test_tells_edges_from_other_pairs(self, space):
        club = datasets.network("karate")
        net = LatentSpaceNetwork(space, 34)
        values = net.start(club)
        made = net.positions.space().with_curvatures([values[site] for site in net.positions.drawn])
        assert made.contains(values["z"]).all()
        i, j = torch.triu_indices(34, 34, 1)
        draws = {name: value.unsqueeze(0) for name, value in values.items()}
        p = net.predict(draws, torch.stack([i, j], -1)).mean
        a = club.adjacency()[i, j]
        assert p.mean() == pytest.approx(a.mean().item(), rel=0.1)
        assert p[a == 1].mean() > 2 * p[a == 0].mean()

    @each("count", [0, 3])
    def test_of_several_components_lone_nodes_and_no_edge_at_all(self, count):
        network = Network(7, torch.tensor([[0, 1], [1, 2], [3, 4]])[:count])
        net = LatentSpaceNetwork("h2", 7, degrees=True, groups=2)
        net.begin(net.start(network))
        for num_nonedges in (None, 5):
            assert math.isfinite(Trace_ELBO().loss(net.model, net.guide, network, num_nonedges))


NO_PAIRS = torch.zeros(0, 2, dtype=torch.int64)
PATH = networkx.Graph([(0, 1, {"weight": 2.0, "kind": "friend"}), (1, 2, {"weight": 3.0})])
WRONG_EDGES = [
    (lambda: torch.eye(5), "0 on the diagonal"),
    (lambda: torch.zeros(4, 4), r"matrix \(5, 5\)"),
    (lambda: torch.zeros(5, 5).index_fill(0, torch.tensor([0]), 1.0).fill_diagonal_(0.0), "directed=True"),
    (lambda: 2 * (1 - torch.eye(5)), "values 0 and 1"),
    (lambda: torch.full((5, 5), NAN), "some finite values"),
    (lambda: Network(4, torch.tensor([[0, 1]])), "network of 5 nodes"),
    (lambda: Network(5, torch.tensor([[0, 1]]), directed=True), "an undirected network"),
    (lambda: networkx.MultiGraph([(0, 1)]), "joins"),
    (lambda: [(0, 1)], "use Network"),
    (lambda: torch.zeros(5, 5).to_sparse(), "to_dense"),
    (lambda: torch.zeros(5, 5, dtype=torch.complex64), "real numbers"),
]


class TestWrongInput:
    @each(("edges", "words"), WRONG_EDGES)
    def test_edges(self, edges, words):
        with pytest.raises(ValueError, match=words):
            LatentSpaceNetwork("h2", 5).model(edges())

    @each(
        ("options", "words"),
        [
            ({"likelihood": "gaussian"}, "likelihood must be one of"),
            ({"likelihood": ["bernoulli"]}, "likelihood must be one of"),
            ({"curvature": 0.0}, "no flat limit"),
            ({"directed": "no"}, "directed must be True or False"),
            ({"node_covariates": torch.zeros(4, 2)}, "node_covariates must be"),
            ({"pair_covariates": torch.zeros(5, 5)}, r"\(5, 5, F\)"),
            ({"pair_covariates": torch.full((5, 5, 1), NAN)}, "finite"),
            ({"pair_covariates": torch.arange(25.0).reshape(5, 5, 1)}, "symmetric"),
            ({"pair_covariates": lambda i, j: torch.zeros(3)}, r"return a tensor \(P, F\)"),
            ({"pair_covariates": lambda i, j: [0.0]}, "got list for 1"),
            ({"priors": {"tau": (0.0, 1.0)}}, "site of priors"),
            ({"priors": {"intercept": (0.0, -1.0)}}, "positive scale"),
            ({"priors": {"intercept": (NAN, 1.0)}}, "positive scale"),
            ({"priors": [(0.0, 1.0)]}, "mapping"),
            ({"groups": 1}, "groups must be"),
        ],
    )
    def test_options(self, options, words):
        with pytest.raises(ValueError, match=words):
            LatentSpaceNetwork("h2", 5, **options)

    def test_more_nodes_than_the_space_holds(self):
        with pytest.raises(ValueError, match=r"num_nodes must be smaller for torch\.float32"):
            LatentSpaceNetwork(PoincareBall(40.0), 5_000_000, dim=2, curvature="fixed")
        with pytest.raises(ValueError, match="num_nonedges must be given"):
            LatentSpaceNetwork("e1", 20_000).model(Network(20_000, torch.tensor([[0, 1]])))

    def test_programs(self):
        net = LatentSpaceNetwork("e2", 5, pair_covariates=lambda i, j: torch.ones(1, 1))
        with pytest.raises(ValueError, match="got \\(1, 1\\) for 10"):
            net.model(torch.zeros(5, 5))
        with pytest.raises(ValueError, match="edges must come with their values"):
            LatentSpaceNetwork("e2", 5, likelihood="poisson").start(networkx.cycle_graph(5))
        with pytest.raises(ValueError, match="some pairs that are not missing"):
            LatentSpaceNetwork("e2", 2).start(Network(2, NO_PAIRS, missing=torch.tensor([[0, 1]])))
        with pytest.raises(ValueError, match=r"lack \['c', 'z'\]"):
            LatentSpaceNetwork("h2", 5).begin({})
        with pytest.raises(ValueError, match=r"shape \(5, D\), got \(3, 5, 2\)"):
            LatentSpaceNetwork("e2", 5).begin({"z": torch.zeros(3, 5, 2)})
        with pytest.raises(ValueError, match=r"lack \['sociality'\]"):
            LatentSpaceNetwork("e2", 5, degrees=True).begin({"z": torch.zeros(5, 2)})
        net = LatentSpaceNetwork("e2", 5)
        with pytest.raises(ValueError, match=r"belong to no site.*num_nonedges"):
            infer.sample_posterior(net.model, torch.zeros(5, 5), num_nonedges=3, num_samples=4, warmup=20)

    def test_predictions(self):
        net = LatentSpaceNetwork("e2", 5)
        with pytest.raises(ValueError, match=r"lack \['intercept'"):
            net.predict({"z": torch.zeros(3, 5, 2)}, torch.tensor([[0, 1]]))
        with pytest.raises(ValueError, match="level must be"):
            net.predict({}, torch.tensor([[0, 1]]), level=90)
        with pytest.raises(ValueError, match="groups=2"):
            net.co_membership({})

    @each(
        ("make", "words"),
        [
            (lambda e: Network(3, e[:, :1]), r"shape \(E, 2\)"),
            (lambda e: Network(3, torch.tensor([[1, 1]])), "self loops"),
            (lambda e: Network(3, torch.cat([e, e.flip(-1)])), "each pair once, in one of"),
            (lambda e: Network(3, e, torch.ones(3)), "one number for each"),
            (lambda e: Network(3, e, torch.tensor([1.0, NAN])), "finite"),
            (lambda e: Network(3, e, missing=e[:1].flip(-1)), "among the edges"),
            (lambda e: Network(3, e, names=("a",)), "one name"),
            (lambda e: Network(3, e, names=("1", "2", "1")), "got '1' for several nodes"),
            (lambda e: Network(2, e), "nodes 0 to 1"),
            (lambda e: Network.from_networkx(PATH, weight="size"), r"one of \['kind', 'weight'\], got 'size'"),
            (lambda e: Network.from_networkx(PATH, weight="kind"), "'kind' is not"),
        ],
    )
    def test_networks(self, make, words):
        with pytest.raises(ValueError, match=words):
            make(torch.tensor([[0, 1], [1, 2]]))


def test_numbers_of_nodes_of_any_width():
    """Products of two of them need more digits than they have."""
    nodes = torch.arange(60_000, dtype=torch.int32)
    path = Network(60_000, torch.stack([nodes[:-1], nodes[1:]], -1))
    assert bool(path.is_listed(path.edges.int()).all())
    Network(20, torch.combinations(torch.arange(20)).to(torch.uint8))


@each(("space", "prior"), [("h2", dist.Uniform(0.1, 0.5)), ("u2", dist.Uniform(-3.0, -1.0))])
def test_starts_are_in_the_support_of_the_prior(space, prior):
    net = LatentSpaceNetwork(space, 6, curvature=prior)
    start = net.start(networkx.cycle_graph(6))
    assert bool(prior.support.check(start["c"]))
    net.begin(start)
    with pytest.raises(ValueError, match="within the support"):
        net.begin(start | {"c": torch.tensor(9.0)})


def test_counts_that_are_unlikely():
    """Minus 125 is less than the logarithm of any float32 above 0."""
    distribution = EDGE_LIKELIHOODS["poisson"].distribution(torch.tensor([-125.0, 1.0]), {})
    expected = [2 * -125.0 - math.log(2), 2 - math.e - math.log(2)]
    assert torch.allclose(distribution.mask(torch.tensor(True)).log_prob(torch.tensor(2.0)), torch.tensor(expected))
    assert distribution.expand([3, 2]).sample().shape == (3, 2)


def test_covariates_of_pairs_have_no_direction():
    """Unless edges have one; a function is always asked in the same direction."""
    net = LatentSpaceNetwork("e2", 4, pair_covariates=lambda i, j: (i - 2.0 * j).unsqueeze(-1))
    i, j = torch.tensor([0, 3]), torch.tensor([2, 1])
    assert torch.equal(net._features(i, j), net._features(j, i))


DIRECTED = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])


def test_a_directed_network_is_an_energy():
    net = LatentSpaceNetwork("h2", 3, directed=True, degrees=True).double()
    energy = Energy(net.model, (DIRECTED,), {})
    vector, _ = energy.draw()
    assert energy.moved == ["sociality_scale", "popularity_scale"]
    assert energy(vector)[0].isfinite()
    assert energy.values(vector)["popularity"].shape == (3,)


@pytest.mark.slow
def test_chains_of_a_directed_network():
    net = LatentSpaceNetwork("h2", 3, directed=True, degrees=True).double()
    posterior = infer.sample_posterior(net.model, DIRECTED, num_chains=2, num_samples=20, warmup=20, progress=False)
    assert posterior.samples["popularity"].shape == (2, 20, 3)


@pytest.mark.slow
@pytest.mark.parametrize("space", ["e2", "s2"])
def test_posterior_of_a_small_network(space):
    families = datasets.network("florentine")
    net = LatentSpaceNetwork(space, families.num_nodes).double()
    posterior = infer.sample_posterior(
        net.model, families, num_chains=8, num_samples=600, warmup=300, start=net.start(families), progress=False
    )
    assert max(found.r_hat for found in posterior.diagnostics().values()) < 1.02
    i, j = torch.triu_indices(15, 15, 1)
    found = net.predict(posterior.samples, torch.stack([i, j], -1))
    a = families.adjacency()[i, j]
    # At the posterior of a model with a free intercept, expected and observed numbers of edges agree.
    assert abs(float(found.mean.sum()) - float(a.sum())) < 2.0
    # Over seeds the ratio was 1.73 to 1.77 in the plane and 1.49 to 1.51 on the sphere.
    assert found.mean[a == 1].mean() > 1.4 * found.mean[a == 0].mean()
