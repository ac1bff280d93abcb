"""Shuffled epochs."""

import pytest
import torch

from pyro_hyperbolic.infer import Minibatches


def orders(batches: Minibatches, epoch: int = 0) -> torch.Tensor:
    return torch.cat(list(batches.epoch(epoch)), -1)


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize(("size", "batch", "sizes"), [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (2, 5, [2]), (1, 1, [1])])
def test_epoch_is_a_partition(size, batch, sizes, members):
    batches = Minibatches(torch.arange(size), batch, seed=4, members=members)
    pieces = list(batches.epoch(2))
    assert len(batches) == len(pieces)
    assert [piece.shape[-1] for piece in pieces] == sizes
    lead = () if members is None else (members,)
    assert all(piece.shape[:-1] == lead for piece in pieces)
    everything = torch.cat(pieces, -1).sort(-1).values
    assert torch.equal(everything, torch.arange(size).expand(*lead, size))


def test_shape_and_dtype_of_the_data_are_kept():
    data = torch.rand(10, 4, 2, dtype=torch.float64)
    assert next(Minibatches(data, 3).epoch(0)).shape == (3, 4, 2)
    batch = next(Minibatches(data, 3, members=5).epoch(0))
    assert batch.shape == (5, 3, 4, 2)
    assert batch.dtype == data.dtype


def test_order_depends_on_seed_and_epoch_alone():
    data = torch.arange(50)
    first = orders(Minibatches(data, 8, seed=1), epoch=3)
    torch.manual_seed(9)
    state = torch.get_rng_state()
    again = Minibatches(data, 8, seed=1)
    orders(again, epoch=0)
    assert torch.equal(orders(again, epoch=3), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(orders(again, epoch=4), first)
    assert not torch.equal(orders(Minibatches(data, 8, seed=2), epoch=3), first)
    assert not torch.equal(first, data)


def test_members_have_orders_of_their_own():
    order = orders(Minibatches(torch.arange(50), 8, members=4))
    assert len({tuple(row.tolist()) for row in order}) == 4


def test_orders_are_uniform():
    """Every datum comes first equally often: 4000 members, 4 data, six standard errors."""
    first = orders(Minibatches(torch.arange(4), 4, members=4000))[:, 0].bincount(minlength=4)
    assert ((first - 1000).abs() < 6 * (4000 * 0.25 * 0.75) ** 0.5).all()


def test_data_of_their_own():
    data = torch.arange(3).unsqueeze(-1) * 100 + torch.arange(7)
    pieces = list(Minibatches(data, 4, members=3, own_data=True).epoch(0))
    assert [piece.shape for piece in pieces] == [(3, 4), (3, 3)]
    order = torch.cat(pieces, -1)
    assert torch.equal(order.sort(-1).values, data)
    assert len({tuple(row.tolist()) for row in order % 100}) == 3


@pytest.mark.parametrize("members", [None, 2])
def test_drop_last(members):
    data = torch.arange(7)
    batches = Minibatches(data, 3, members=members, drop_last=True)
    pieces = list(batches.epoch(0))
    assert len(batches) == len(pieces) == 2
    assert all(piece.shape[-1] == 3 for piece in pieces)
    whole = list(Minibatches(data, 3, members=members).epoch(0))
    assert all(torch.equal(piece, other) for piece, other in zip(pieces, whole[:2], strict=True))


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (torch.empty(0, 3), {"batch_size": 2}, "data must not be empty"),
        (torch.ones(3), {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (torch.ones(3), {"batch_size": 2, "members": 0}, "members must be at least 1, got 0"),
        (torch.ones(3, 0), {"batch_size": 2, "members": 3, "own_data": True}, "data must not be empty"),
        (torch.ones(3, 5), {"batch_size": 2, "members": 2, "own_data": True}, "got 3 parts for members=2"),
        (torch.ones(3, 5), {"batch_size": 2, "own_data": True}, "got 3 parts for members=None"),
        (torch.ones(3), {"batch_size": 4, "drop_last": True}, "leaves none of 3 data in batches of 4"),
    ],
)
def test_errors(data, options, message):
    with pytest.raises(ValueError, match=message):
        Minibatches(data, **options)


@pytest.mark.parametrize("seed", [2**62, 2**64 - 1, -(2**63), -1])
def test_every_seed_of_torch(seed):
    data = torch.arange(50)
    assert torch.equal(orders(Minibatches(data, 8, seed=seed), 3).sort().values, data)
    other = seed - 1 if seed > 0 else seed + 1
    assert not torch.equal(orders(Minibatches(data, 8, seed=seed), 3), orders(Minibatches(data, 8, seed=other), 3))


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_seed_out_of_range(seed):
    with pytest.raises(ValueError, match=f"seed must be between .* got {seed}"):
        Minibatches(torch.arange(5), 2, seed=seed)
