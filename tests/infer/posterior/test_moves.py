"""Moves of points between arrangements, and what turns freely."""

from __future__ import annotations

import math

import pytest
import torch

from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Sphere, Stereographic
from pyro_hyperbolic.accelerate.hmc import State, geometric_mean
from pyro_hyperbolic.infer.posterior import moves
from pyro_hyperbolic.infer.posterior.gauge import KAPPA, blocks
from pyro_hyperbolic.infer.posterior.moves import MOVES, Points, jump
from pyro_hyperbolic.infer.posterior.sets import Sets

COUNT, NUMBER = 40, 7
SPACES = {
    "ball": PoincareBall,
    "hyperboloid": Lorentz,
    "sphere": Sphere,
    "negative": lambda c: Stereographic(-c),
    "positive": Stereographic,
    "flat": lambda c: Euclidean(),
}

pytestmark = pytest.mark.usefixtures("double")


def setting(space, dim):
    """Points, vectors with two other numbers before those of the points, and a space with a curvature for each."""
    torch.manual_seed(1)
    vectors = torch.randn(COUNT, 2 + NUMBER * dim)
    columns = 2 + torch.arange(NUMBER * dim).reshape(NUMBER, dim)
    points = Points("z", 0, columns, torch.rand(NUMBER, NUMBER).fill_diagonal_(-1), 1.0)
    return points, vectors, SPACES[space](0.2 + torch.rand(COUNT, 1))


def distances(space, v):
    x = space.from_unconstrained(v)
    return space.unsqueeze().dist(x.unsqueeze(-2), x.unsqueeze(-3))


@pytest.mark.parametrize("space", SPACES)
def test_volume_and_distances(space):
    """What a move gains in volume is what the derivative says, and what moves together keeps its distances."""
    for dim in (2, 3):
        points, vectors, manifold = setting(space, dim)
        for move in MOVES:
            state = torch.get_rng_state()
            moved, gain = points.moved(vectors, manifold, move)
            assert torch.equal(moved[:, :2], vectors[:, :2])

            def again(x, state=state, move=move, points=points, manifold=manifold):
                torch.set_rng_state(state)
                return points.moved(x, manifold, move)[0].sum(0)  # rows do not depend on each other

            jacobian = torch.autograd.functional.jacobian(again, vectors).transpose(0, 1)
            log_det = torch.linalg.slogdet(jacobian).logabsdet
            v, w = vectors[:, points.columns], moved[:, points.columns]
            volume = (manifold.log_det_unconstrained(w) - manifold.log_det_unconstrained(v)).sum(-1)
            if move == "exchange":
                assert torch.allclose(gain, torch.zeros(COUNT))
                before, after = (distances(manifold, u).flatten(1).sort(-1).values for u in (v, w))
                assert torch.allclose(before, after, atol=1e-6)
                continue
            # An isometry of the points that move: what is gained is the change of the volume of their numbers.
            assert torch.allclose(gain, -volume, atol=1e-6)
            assert torch.allclose(log_det, -volume, atol=1e-5)
            changed = (v - w).norm(dim=-1) > 1e-9
            together = changed.unsqueeze(-1) & changed.unsqueeze(-2)
            assert changed.any(-1).double().mean() > 0.5
            if move in ("two mirrors", "swap"):
                continue
            before, after = distances(manifold, v), distances(manifold, w)
            assert torch.allclose(before[together], after[together], atol=1e-6)


@pytest.mark.parametrize("move", ["mirror", "swap"])
@pytest.mark.parametrize("space", ["ball", "sphere", "flat"])
def test_mirrors_lead_back(space, move):
    """The same sets mirrored once more: who moves, and the mirror, do not depend on what has moved."""
    for dim in (2, 3):
        points, vectors, manifold = setting(space, dim)
        state = torch.get_rng_state()
        there, _ = points.moved(vectors, manifold, move)
        torch.set_rng_state(state)
        back, _ = points.moved(there, manifold, move)
        assert not torch.allclose(there, vectors)
        assert torch.allclose(back, vectors, atol=1e-7)


def test_sets_are_balls_and_branches():
    """A path 0 - 1 - 2 - 3 - 4 with another point 5 at 2."""
    tree = {(0, 1), (1, 2), (2, 3), (3, 4), (2, 5)}
    distances = torch.full((6, 6), torch.inf).fill_diagonal_(0.0)
    for i, j in tree:
        distances[i, j] = distances[j, i] = 1.0
    for k in range(6):
        distances = torch.minimum(distances, distances[:, k : k + 1] + distances[k])
    sets = Sets.of(distances.fill_diagonal_(-1.0))
    assert sets.weights.sum() == pytest.approx(1.0)
    found = {tuple(row.nonzero().flatten().tolist()) for row in sets.members}
    # Branches at 2 and pairs of them, without the larger half of the points.
    assert {(0, 1), (3, 4), (5,), (0, 1, 5), (3, 4, 5)} <= found
    # Two branches at 2 may change places, but not those of a path.
    assert sets.at.tolist() == [2]
    assert [row.nonzero().flatten().tolist() for row in sets.pairs[0]] in ([[3, 4], [5]], [[0, 1], [5]])
    size = sets.members.sum(-1)
    assert (size <= 3).all()
    for row, order, count in zip(sets.members, sets.order, size, strict=True):
        assert row[order[:count]].all()
        assert not row[order[count:]].any()
    # Next to a branch comes the point that it hangs from.
    branch = next(
        k for k in range(len(sets.members) - 1, -1, -1) if sets.members[k].nonzero().flatten().tolist() == [5]
    )
    assert sets.order[branch, 1] == 2


@pytest.mark.parametrize("often", [math.inf, pytest.param(10, marks=pytest.mark.slow)])
def test_jumps_have_the_density(often, monkeypatch):
    """Draws of a distribution that jump are still draws of it, also where proposals are compiled."""
    monkeypatch.setattr(moves, "_OFTEN", often)
    torch.manual_seed(0)
    columns = torch.arange(8).reshape(4, 2)
    star = torch.full((4, 4), 2.0) - (torch.arange(4) == 1).double() - (torch.arange(4) == 1).double().unsqueeze(-1)
    points = Points("z", 0, columns, star.fill_diagonal_(-1), 1.0)
    assert points.moves == MOVES
    weight = 1.2

    def gradients(x):
        return 0.5 * x.square().sum(-1) - weight * (x[:, 1] > 0).double(), torch.zeros_like(x)

    expected = math.exp(weight) / (1 + math.exp(weight))
    x = torch.randn(4000, 8)
    above = torch.rand(4000) < expected
    x[:, 1] = torch.where(above, 1, -1) * x[:, 1].abs()
    state, paths = State.at(gradients, x), torch.zeros(4000)
    for number in range(60):
        if number % 20 == 0:
            points.learn(20 * state.x)  # from here on what has led far is tried again
        learn = number < 40
        state, moved = jump(gradients, state, points, Euclidean(), list(MOVES)[number % len(MOVES)], learn=learn)
        paths = paths + moved
    assert all(library.known for library in points.libraries.values())
    assert paths.mean() > 5
    assert ((state.x[:, 1] > 0) != above).double().mean() > 0.1
    for draws, mean, variance in (
        ((state.x[:, 1] > 0).double(), expected, expected * (1 - expected)),
        (state.x[:, :2].square().sum(-1), 2.0, 4.0),
        (state.x[:, 2:].square().sum(-1), 6.0, 12.0),
        (state.x[:, 3], 0.0, 1.0),
    ):
        assert abs(draws.mean() - mean) < 4 * math.sqrt(variance / 4000)


def test_sets_that_move_are_chosen_more_often():
    points, vectors, _ = setting("flat", 2)
    before = points.weights
    always = torch.ones(1, COUNT, dtype=torch.bool)
    for _ in range(50):
        tries = points.tries(COUNT, 1, "mirror")
        points.note("mirror", tries, (tries.sets == 3).squeeze(1), always)
        points.note("exchange", points.tries(COUNT, 1, "exchange"), always, always)
        points.note("shift", points.tries(COUNT, 1, "shift"), always, always)
    points.learn(vectors)
    # What is always accepted is tried once, what hardly is as often as before, and of the others nothing is known.
    assert points.moves == MOVES | {"exchange": 1}
    assert points.weights[3] > 5 * before[3]
    assert points.weights.sum() == pytest.approx(1.0)
    assert (points.weights > 0).all()


@pytest.mark.parametrize("move", ["mirror", "two mirrors", "swap"])
def test_what_has_led_far_is_tried_again(move):
    points, vectors, _ = setting("ball", 3)
    points.learn(vectors)
    tries = points.tries(COUNT, 2, move)
    assert (tries.entries == -1).all()
    far = torch.zeros(2, COUNT, dtype=torch.bool)
    far[1, :5] = True
    points.note(move, tries, torch.ones_like(far), far)
    points.learn(vectors)
    library = points.libraries[move]
    assert library.known == 5
    again = points.tries(COUNT, 20, move)
    chosen = again.entries >= 0
    assert 0.4 < chosen.double().mean() < 0.6
    assert again.entries.max() == 4
    time, chain = chosen.nonzero(as_tuple=True)
    ways = again.moves[time, :, chain]
    same = (ways == library.moves[again.entries[chosen]]).flatten(1).all(-1)
    if move == "two mirrors":  # in either order: the other one is the way back
        assert 0.3 < same.double().mean() < 0.7
        same = same | (ways.flip(1) == library.moves[again.entries[chosen]]).flatten(1).all(-1)
    assert same.all()
    other, _, _ = setting("ball", 3)
    other.load(points.state())
    assert torch.equal(other.libraries[move].weights, library.weights)
    assert other.tries(COUNT, 20, move).entries.max() == 4


def test_a_term_that_holds_has_one_integral():
    """Over the rotations and reflections of any points; and it is lowest in the preferred orientation."""
    torch.manual_seed(0)
    (block,) = blocks({"z": torch.Size([5, 2])}, torch.zeros(1))
    best = torch.randn(10)
    block.hold(lambda x: x.square().sum(-1), torch.randn(4, 10), best)
    assert block.free == [("z",)]
    assert block.weight.tolist() == [KAPPA]
    angles = torch.linspace(0, 2 * math.pi, 2001)[:-1]
    turns = torch.stack(
        [torch.stack([angles.cos(), -angles.sin()], -1), torch.stack([angles.sin(), angles.cos()], -1)], -2
    )
    turns = torch.cat([turns, turns @ torch.tensor([[1.0, 0.0], [0.0, -1.0]])])
    integrals = []
    for points in torch.randn(3, 5, 2):
        turned = torch.einsum("rab,nb->rna", turns, points).reshape(-1, 10)
        term = torch.func.vmap(lambda x: block.term(x, block.reference, block.weight))(turned)
        integrals.append((-term).logsumexp(0))
        preferred = block.turned(turned[:50])
        assert torch.allclose(preferred, preferred[:1].expand_as(preferred))
        lowest = block.term(preferred[0], block.reference, block.weight)
        assert lowest.item() == pytest.approx(-2 * KAPPA)
        assert term.min() >= lowest - 1e-9
    assert torch.allclose(torch.stack(integrals), integrals[0].expand(3))


def test_what_does_not_turn_is_not_held():
    (block,) = blocks({"w": torch.Size([3]), "z": torch.Size([5, 3])}, torch.zeros(1))
    block.hold(lambda x: x[:, 0] + x[:, 3:].square().sum(-1), torch.randn(4, 18), torch.randn(18))
    assert block.free == [("z",)]


def test_what_has_no_shape_is_let_go():
    torch.manual_seed(0)
    (block,) = blocks({"z": torch.Size([5, 2])}, torch.zeros(1))
    best = torch.randn(10)
    block.hold(lambda x: x.square().sum(-1), torch.randn(4, 10), best)
    assert not block.loosen(best + 0.05 * torch.randn(500, 10))
    assert block.weight.tolist() == [KAPPA]
    assert block.loosen(torch.randn(500, 10))
    assert block.weight.tolist() == [0.0]
    assert block.free == [("z",)]


def test_geometric_mean():
    torch.manual_seed(0)
    a, b = (m @ m.mT + torch.eye(4) for m in torch.randn(2, 4, 4))
    m = geometric_mean(a, b)
    assert torch.allclose(m @ b @ m, a)
