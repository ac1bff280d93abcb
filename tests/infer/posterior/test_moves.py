"""Moves of points between arrangements, and what turns freely."""

from __future__ import annotations

import math

import pytest
import torch

from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Sphere, Stereographic
from pyro_hyperbolic.accelerate.hmc import State, geometric_mean
from pyro_hyperbolic.infer.posterior import gauge, jumps
from pyro_hyperbolic.infer.posterior import sets as module
from pyro_hyperbolic.infer.posterior.gauge import KAPPA, blocks
from pyro_hyperbolic.infer.posterior.jumps import Jumps
from pyro_hyperbolic.infer.posterior.moves import MOVES, Points, moved_vectors
from pyro_hyperbolic.infer.posterior.places import Places, curvature
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


def numbers_of(move):
    """Which tries are those of a move."""
    before = sum(list(MOVES.values())[: list(MOVES).index(move)])
    return range(before, before + MOVES[move])


def moved(points, vectors, manifold, tries, number):
    parts = (part[number].unsqueeze(1) for part in tries.parts)
    there, gain = moved_vectors(points.columns.mT, vectors, *curvature(manifold, vectors), *parts)
    return there.squeeze(1), gain.squeeze(1)


@pytest.mark.parametrize("space", SPACES)
def test_volume_and_distances(space):
    """What a move gains in volume is what the derivative says, and what moves together keeps its distances."""
    for dim in (2, 3):
        points, vectors, manifold = setting(space, dim)
        tries = points.tries(COUNT)
        for move in MOVES:
            number = numbers_of(move)[-1]
            there, gain = moved(points, vectors, manifold, tries, number)
            assert torch.equal(there[:, :2], vectors[:, :2])

            def again(x, number=number, points=points, manifold=manifold, tries=tries):
                return moved(points, x, manifold, tries, number)[0].sum(0)  # rows do not depend on each other

            jacobian = torch.autograd.functional.jacobian(again, vectors).transpose(0, 1)
            log_det = torch.linalg.slogdet(jacobian).logabsdet
            v, w = vectors[:, points.columns], there[:, points.columns]
            volume = (manifold.log_det_unconstrained(w) - manifold.log_det_unconstrained(v)).sum(-1)
            # Isometries of the points that move: what is gained is the change of the volume of their numbers.
            assert torch.allclose(gain, -volume, atol=1e-6)
            assert torch.allclose(log_det, -volume, atol=1e-5)
            changed = (v - w).norm(dim=-1) > 1e-9
            assert changed.any(-1).double().mean() > 0.5
            before, after = distances(manifold, v), distances(manifold, w)
            if move == "exchange":
                assert torch.allclose(*(d.flatten(1).sort(-1).values for d in (before, after)), atol=1e-6)
                continue
            # Two of those that are mirrored or not by the same mirrors, and do not take the place of another.
            ways = torch.cat([tries.moves[number], (tries.sources[number] != torch.arange(NUMBER)).unsqueeze(1)], 1)
            together = (ways.unsqueeze(-1) == ways.unsqueeze(-2)).all(1) & ~(ways[:, 3].unsqueeze(-1))
            assert torch.allclose(before[together], after[together], atol=1e-6)


@pytest.mark.parametrize("space", ["ball", "sphere", "flat"])
def test_tries_lead_back(space):
    """The same once more: who moves, and the mirror, do not depend on what has moved. Two mirrors change order."""
    for dim in (2, 3):
        points, vectors, manifold = setting(space, dim)
        tries = points.tries(COUNT)
        turned = points.tries(COUNT)
        order = [1, 0, 2]
        is_two = (~tries.moves[:, :, 2].any(-1))[..., None, None]
        turned.picks, turned.sources, turned.shifts = tries.picks, tries.sources, -tries.shifts
        turned.moves = torch.where(is_two, tries.moves[:, :, order], tries.moves)
        turned.spans = torch.where(is_two.unsqueeze(-1), tries.spans[:, :, order], tries.spans)
        kinds = set()
        for number in [*numbers_of("shift"), *numbers_of("mirror")]:
            there, _ = moved(points, vectors, manifold, tries, number)
            back, _ = moved(points, there, manifold, turned, number)
            kinds |= {tuple(row) for row in tries.moves[number].any(-1).int().tolist()}
            assert not torch.allclose(there, vectors)
            assert torch.allclose(back, vectors, atol=1e-6)
        assert {(1, 0, 0), (1, 1, 0), (1, 1, 1), (0, 0, 0)} <= kinds


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
    # Those that have the same form exchange their points, those next to 2 with each other.
    assert sets.exchanges.tolist() == [[4, 3, 2, 1, 0, 5]]
    # So do branches of any length.
    line = torch.arange(2501.0)
    path = (line - line.unsqueeze(-1)).abs()
    halves = [[line < point, line > point] for point in range(2501)]
    assert module._exchanges(path, halves).tolist() == [list(range(2500, -1, -1))]
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


def star():
    """Four points, three of which hang from the second."""
    near = torch.full((4, 4), 2.0) - (torch.arange(4) == 1).double() - (torch.arange(4) == 1).double().unsqueeze(-1)
    return Points("z", 0, torch.arange(8).reshape(4, 2), near.fill_diagonal_(-1), 1.0)


@pytest.mark.parametrize("often", [math.inf, pytest.param(10, marks=pytest.mark.slow)])
def test_jumps_have_the_density(often, monkeypatch):
    """Draws of a distribution that jump are still draws of it, also where proposals are compiled."""
    monkeypatch.setattr(jumps, "_OFTEN", often)
    monkeypatch.setattr(jumps, "_BARRIER", -math.inf)
    torch.manual_seed(0)
    points, weight = star(), 1.2

    def energies(x):
        return 0.5 * x.square().sum(-1) - weight * (x[:, 1] > 0).double()

    expected = math.exp(weight) / (1 + math.exp(weight))
    x = torch.randn(2000, 8)
    above = torch.rand(2000) < expected
    x[:, 1] = torch.where(above, 1, -1) * x[:, 1].abs()
    jump, paths = Jumps(energies, lambda x: (energies(x), torch.zeros_like(x)), 3), torch.zeros(2000)
    state = State.at(jump.gradients, x)
    for number in range(6):
        if number % 2 == 0:
            points.learn()  # from here on what has led far is tried again
        state, moved = jump(state, [points], {"z": [(Euclidean(), 2)]}, learn=number < 4)
        paths = paths + moved
    assert points.library.known
    assert paths.mean() > 3
    assert ((state.x[:, 1] > 0) != above).double().mean() > 0.1
    for draws, mean, variance in (
        ((state.x[:, 1] > 0).double(), expected, expected * (1 - expected)),
        (state.x[:, :2].square().sum(-1), 2.0, 4.0),
        (state.x[:, 2:].square().sum(-1), 6.0, 12.0),
        (state.x[:, 3], 0.0, 1.0),
    ):
        assert abs(draws.mean() - mean) < 4 * math.sqrt(variance / 2000)


def test_how_many_tries_are_looked_at_does_not_matter():
    ends = []
    for ahead in (1, 4, 50):
        torch.manual_seed(0)
        points, x = star(), torch.randn(20, 8)
        jump = Jumps(lambda x: x.square().sum(-1), lambda x: (x.square().sum(-1), 2 * x), ahead)
        state = State.at(jump.gradients, x)
        for _ in range(3):
            state, moved = jump(state, [points], {"z": [(Euclidean(), 2)]}, learn=True)
            points.learn()
        assert moved.any()
        ends.append((state.x, points.library.weights))
    for x, weights in ends[1:]:
        assert torch.allclose(x, ends[0][0])
        assert torch.allclose(weights, ends[0][1])


def test_tries_in_vain_do_not_become_more():
    """Nor do those that move nothing count as accepted."""
    points, _, _ = setting("flat", 2)
    points.most = 16
    for share, times in ((0.0, 16), (1e-4, 16), (0.01, 256), (0.1, 50)):
        tries = points.tries(COUNT)
        points.note(tries, torch.full(tries.picks.shape, share), torch.zeros_like(tries.picks, dtype=torch.bool))
        points.learn()
        assert points.times["mirror"] == times
    jump = Jumps(lambda x: 0 * x.sum(-1), lambda x: (0 * x.sum(-1), 0 * x), 4)
    points, x = star(), torch.zeros(20, 8)  # in one place, where all but shifts move nothing
    points.times["shift"] = 0
    _, _, moved = jump.jump(x, jump.energies(x), points, Euclidean(), learn=True)
    assert not moved.any()
    assert [float(points._shares[move][0]) for move in ("exchange", "mirror")] == [0.0, 0.0]


def test_what_is_accepted_in_some_tries_is_tried_more_often():
    points, _, _ = setting("flat", 2)
    points.most, before = 4, points.weights
    points.learn()
    for _ in range(50):
        tries = points.tries(COUNT)
        own = (tries.sets == 3).any(-1)
        chance = torch.where(own, 0.05, 0.001)
        chance[: -MOVES["mirror"]] = 1.0
        points.note(tries, chance, torch.ones_like(own))
    points.learn()
    # What is always accepted is tried once, but for shifts, and what hardly is as often as is allowed.
    assert points.times == MOVES | {"exchange": 1, "mirror": 4 * MOVES["mirror"]}
    assert points.weights[3] > 2 * before[3]
    assert points.weights.sum() == pytest.approx(1.0)
    assert (points.weights > 0).all()


def test_what_has_led_far_is_tried_again():
    points, _, _ = setting("ball", 3)
    points.learn()
    tries = points.tries(COUNT)
    assert (tries.entries == -1).all()
    chance = torch.zeros_like(tries.picks)
    chance[-1, tries.moves[-1].any(-1).any(-1).nonzero().flatten()[:5]] = 1.0
    points.note(tries, chance, chance > 0)
    points.learn()
    assert points.library.known == 5
    again = points.tries(COUNT)
    chosen = again.entries >= 0
    assert not chosen[: -MOVES["mirror"]].any()
    assert 0.4 < chosen[-MOVES["mirror"] :].double().mean() < 0.6
    assert points.tries(COUNT, learn=False).entries[-MOVES["mirror"] :].ge(0).double().mean() > 0.7
    assert again.entries.max() == 4
    # In either order: the other one is the way back.
    ways, known = again.moves[chosen], points.library.moves[again.entries[chosen]]
    same, turned = ((way == known).flatten(1).all(-1) for way in (ways, ways[:, [1, 0, 2]]))
    assert (same | turned).all()
    assert (again.sources[chosen] == points.library.sources[again.entries[chosen]]).all()
    other, _, _ = setting("ball", 3)
    other.load(points.state())
    assert torch.equal(other.library.weights, points.library.weights)
    assert other.tries(COUNT).entries.max() == 4


@pytest.mark.parametrize("used", [0, 1, 5, 8])
def test_tries_that_were_drawn_come_again(used):
    """Those of some rounds are drawn together: a run that goes on has the rest of them, and then the same new ones."""
    points, _, _ = setting("ball", 3)
    points.learn()
    for _ in range(used):
        points.next_tries(COUNT, learn=False)
    other, _, _ = setting("ball", 3)
    random, state = torch.get_rng_state(), points.state()
    rows = [points.next_tries(COUNT, learn=False) for _ in range(10)]
    torch.set_rng_state(random)
    other.load(state)
    assert torch.equal(torch.get_rng_state(), random)
    for row in rows:
        again = other.next_tries(COUNT, learn=False)
        assert all(torch.equal(a, b) for a, b in zip(row.parts, again.parts, strict=True))


def test_what_was_drawn_before_is_not_tried_after_the_warm_up():
    points, _, _ = setting("ball", 3)
    first = points.next_tries(COUNT, learn=True)
    points.times["mirror"] = 3
    assert len(points.next_tries(COUNT, learn=True).picks) == len(first.picks)  # which was drawn with it
    points.learn()
    points.times["mirror"] = 3
    assert len(points.next_tries(COUNT, learn=False).picks) == len(first.picks) - MOVES["mirror"] + 3


@pytest.mark.parametrize("sign", [1, 2])
def test_what_does_not_lead_back_is_not_proposed(sign):
    """At the far side of a sphere rounding decides where a point is."""
    angle = torch.tensor([3.0, math.pi - 2e-8])  # from the origin
    x = torch.stack([angle.cos(), angle.sin(), torch.zeros(2)]) + 4e-16 * torch.randn(50, 3, 2)
    here = Places.of(torch.randn(2, 2), torch.ones(1, 1), sign)
    for number in range(2):
        _, gain = here.moved_to(x, torch.arange(2) == number)
        assert (gain.isinf().double().mean() > 0.2) == (number == 1)


@pytest.mark.parametrize("proper", [False, True])
def test_a_term_that_holds_has_one_integral(proper):
    """Over the rotations of any points, and their reflections where these are not told apart; and it is lowest in the
    preferred orientation."""
    torch.manual_seed(0)
    (block,) = blocks({"z": torch.Size([5, 2])}, torch.zeros(1))
    best = torch.randn(10)

    def energy(x):
        area = x[:, 0] * x[:, 3] - x[:, 1] * x[:, 2]
        return x.square().sum(-1) + (area if proper else 0.0)

    block.hold(energy, torch.randn(4, 10), torch.randn(4, 10), best)
    assert block.free == [("z",)]
    assert (block.weight.tolist(), block.proper.tolist()) == ([KAPPA], [proper])
    angles = torch.linspace(0, 2 * math.pi, 2001)[:-1]
    turns = torch.stack(
        [torch.stack([angles.cos(), -angles.sin()], -1), torch.stack([angles.sin(), angles.cos()], -1)], -2
    )
    if not proper:
        turns = torch.cat([turns, turns @ torch.tensor([[1.0, 0.0], [0.0, -1.0]])])
    integrals = []
    for points in torch.randn(3, 5, 2):
        turned = torch.einsum("rab,nb->rna", turns, points).reshape(-1, 10)
        term = torch.func.vmap(lambda x: block.term(x, block.reference, block.weight, block.proper))(turned)
        integrals.append((-term).logsumexp(0))
        preferred = block.turned(turned[:50])
        assert torch.allclose(preferred, preferred[:1].expand_as(preferred))
        lowest = block.term(preferred[0], block.reference, block.weight, block.proper)
        assert lowest.item() == pytest.approx(-2 * KAPPA)
        assert term.min() >= lowest - 1e-9
    assert torch.allclose(torch.stack(integrals), integrals[0].expand(3))


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_axes_number_by_number(dim):
    """Both ways to Gram and Schmidt, and their derivatives, beside a decomposition."""
    torch.manual_seed(0)
    m = torch.randn(7, dim, dim, requires_grad=True)
    q, r = torch.linalg.qr(m.mT)
    expected = (q.diagonal(dim1=-2, dim2=-1) * r.diagonal(dim1=-2, dim2=-1).sign()).sum(-1)
    slope = torch.autograd.grad(expected.sum(), m)[0]
    for trace, last in (gauge._trace_of_few(m), gauge._trace_of_axes(m)):
        torch.testing.assert_close(trace, expected)
        torch.testing.assert_close(last, q[..., -1, -1] * r[..., -1, -1].sign())
        torch.testing.assert_close(torch.autograd.grad(trace.sum(), m)[0], slope)


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_axes_of_parallel_rows(dim):
    """Rounding leaves nothing of a row that is parallel to another one, but the trace is that of units."""
    torch.manual_seed(0)
    m = (torch.randn(1000, 1, dim) * torch.randn(1000, dim, 1)).float()
    for trace, last in (gauge._trace_of_few(m), gauge._trace_of_axes(m)):
        assert last.abs().max() <= 1 + 1e-6
        assert trace.abs().max() <= dim + 1e-5


def test_fits_at_zero_do_not_tell_what_turns():
    """Probabilities that are even are 0 on their unconstrained scale, and turning them is no symmetry."""
    torch.manual_seed(0)
    (block,) = blocks({"p": torch.Size([5, 2])}, torch.zeros(1))
    zeros, prior = torch.zeros(4, 10), torch.randn(4, 10)
    block.hold(lambda x: -2 * torch.nn.functional.logsigmoid(x).sum(-1) + x.sum(-1), zeros, prior, zeros[0])
    assert not block.free
    # What turns has no axes there, and nothing is held by rounding errors.
    block.hold(lambda x: x.square().sum(-1), zeros, prior, 1e-9 * prior[0])
    assert block.free == [("p",)]
    assert not block.weight.any()
    line = torch.stack([torch.arange(1.0, 6.0), 1e-4 * torch.randn(5)], -1).flatten()
    block.hold(lambda x: x.square().sum(-1), zeros, prior, line)
    assert not block.weight.any()


def test_a_large_energy_hides_nothing():
    """In float32 an energy of 10,000 has few digits; a difference of a nat is one of the posterior."""
    torch.manual_seed(0)
    (block,) = blocks({"z": torch.Size([5, 2])}, torch.zeros(1, dtype=torch.float32))
    fits, prior = torch.randn(2, 4, 10, dtype=torch.float32)

    def turns(x):
        return 1e4 + x.square().sum(-1)

    block.hold(turns, fits, prior, fits[0])
    assert block.free == [("z",)]
    assert block.turned(fits).dtype == torch.float32
    block.hold(lambda x: turns(x) + x[:, 0].tanh(), fits, prior, fits[0])
    assert not block.free


def test_what_does_not_turn_is_not_held():
    (block,) = blocks({"w": torch.Size([3]), "z": torch.Size([5, 3])}, torch.zeros(1))
    block.hold(lambda x: x[:, 0] + x[:, 3:].square().sum(-1), torch.randn(4, 18), torch.randn(4, 18), torch.randn(18))
    assert block.free == [("z",)]


def test_what_has_no_shape_is_let_go():
    torch.manual_seed(0)
    (block,) = blocks({"z": torch.Size([5, 2])}, torch.zeros(1))
    best = torch.randn(10)
    block.hold(lambda x: x.square().sum(-1), torch.randn(4, 10), torch.randn(4, 10), best)
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
