"""Shuffled epochs."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import scipy.sparse
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
        (torch.ones(3), {"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        (torch.ones(3), {"batch_size": 2, "members": 0}, "members must be a positive integer, got 0"),
        (torch.ones(3, 0), {"batch_size": 2, "members": 3, "own_data": True}, "data must not be empty"),
        (torch.ones(3, 5), {"batch_size": 2, "members": 2, "own_data": True}, "got 3 parts for members=2"),
        (torch.ones(3, 5), {"batch_size": 2, "own_data": True}, "got 3 parts for members=None"),
        (np.ones((3, 5)), {"batch_size": 2, "members": 3, "own_data": True}, "own_data needs dense tensors"),
        (np.ones((3, 5)), {"batch_size": 2, "members": 3}, "members need tensors.*shared=True"),
        (
            (torch.ones(3), torch.ones(4)),
            {"batch_size": 2},
            r"have the same number of rows, got \[3, 4\]",
        ),
        ({"data_size": 4}, {"batch_size": 2}, r"must hold tensors or arrays with rows \(N, ...\), got none in int"),
        *(
            ({"x": torch.ones(3), "n": other}, {"batch_size": 2}, r"data must hold .* numbers and None, got .*partial")
            for other in ("a", {1, 2})
        ),
        ([], {"batch_size": 2}, "must hold tensors or arrays with rows .* got none in nothing"),
        *(
            (torch.ones(3), {"batch_size": size}, f"batch_size must .* got {size!r}")
            for size in (32.0, True, "a", None)
        ),
        (torch.ones(3), {"batch_size": 2, "members": 2.0}, "members must be a positive integer, got 2.0"),
        *((torch.ones(3), {"batch_size": 2, "seed": s}, f"seed must be an integer, got {s!r}") for s in (1.5, None)),
        (torch.eye(3).to_sparse(), {"batch_size": 2}, r"by rows, got torch.sparse_coo; .* \.to_sparse_csr\(\)"),
        (np.ones(3), {"batch_size": 2, "device": "nowhere"}, "device must be one that torch finds here, got 'nowhere'"),
        (np.ones(3), {"batch_size": 2, "block_size": 0}, "block_size must be a positive integer, got 0"),
        (np.ones(3), {"batch_size": 2, "num_blocks": 0}, "num_blocks must be a positive integer, got 0"),
        (torch.ones(3), {"batch_size": 4, "drop_last": True}, "leaves no batch: 3 data do not fill one of 4"),
    ],
)
def test_errors(data, options, message):
    with pytest.raises(ValueError, match=message):
        Minibatches(data, **options)


@pytest.mark.parametrize("data", [torch.ones(10), np.ones(10)], ids=["here", "read"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": "a"}, "number must be an integer, got 'a'"),
        ({"number": 1.5}, "number must be an integer, got 1.5"),
        ({"number": 1, "start": -1}, "start must be an integer of at least 0, got -1"),
        ({"number": 1, "start": 6}, "start must be at most 5, the number of batches in an epoch, got 6"),
    ],
)
def test_there_is_no_such_epoch(data, options, message):
    batches = Minibatches(data, 2)
    assert list(batches.epoch(1, start=5)) == []
    with pytest.raises(ValueError, match=message):
        batches.epoch(**options)


def test_integers_of_numpy():
    data = torch.arange(50)
    same = Minibatches(data, np.int64(8), seed=np.int64(2**40))
    assert torch.equal(orders(same, np.int64(3)), orders(Minibatches(data, 8, seed=2**40), 3))


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


def test_aligned_parts_come_as_they_were_given():
    rows = torch.arange(7)
    data = {"x": rows, "covariates": {"batch": rows.unsqueeze(-1) * 10}, "extra": (rows * 100, None), "data_size": 7}
    for batch in Minibatches(data, 3).epoch(1):
        assert batch.keys() == data.keys()
        assert torch.equal(batch["covariates"]["batch"], batch["x"].unsqueeze(-1) * 10)
        assert torch.equal(batch["extra"][0], batch["x"] * 100)
        assert batch["extra"][1] is None
        assert batch["data_size"] == 7
    alone = [batch["x"] for batch in Minibatches(data, 3).epoch(1)]
    assert all(map(torch.equal, alone, Minibatches(rows, 3).epoch(1)))


def counts(size=53, columns=6):
    """Rows with their number in the first column; some rows are empty, and the last is the longest."""
    values = (np.random.default_rng(0).random((size, columns)) < 0.3).astype(np.float32)
    values[:, 0] = np.arange(size)
    values[7] = 0
    values[-1, 1:] = 3
    return values


def on_disk(tmp_path):
    stored = np.memmap(tmp_path / "counts", dtype=np.uint16, mode="w+", shape=counts().shape)
    stored[:] = counts()
    stored.flush()
    return np.memmap(tmp_path / "counts", dtype=np.uint16, mode="r", shape=stored.shape)


def in_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "counts.h5", "w") as file:
        file["counts"] = counts()
    return h5py.File(tmp_path / "counts.h5", "r")["counts"]


def with_duplicates(_):
    row = scipy.sparse.coo_matrix(counts())
    twice = [np.concatenate([part, part]) for part in (row.data / 2, row.row, row.col)]
    return scipy.sparse.csr_matrix((twice[0], twice[1:]), shape=row.shape)


SOURCES = {
    "tensor": lambda _: torch.tensor(counts()),
    "sparse tensor": lambda _: torch.tensor(counts()).to_sparse_csr(),
    "array": lambda _: counts(),
    "memory map": on_disk,
    "HDF5": in_hdf5,
    "sparse matrix": lambda _: scipy.sparse.csr_matrix(counts()),
    "sparse matrix by columns": lambda _: scipy.sparse.csc_array(counts()),
    "sparse matrix with duplicates": with_duplicates,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("block_size", "num_blocks", "batch_size"), [(10, 2, 8), (4, 3, 16), (60, 1, 5), (1, 9, 4)])
@pytest.mark.parametrize("name", SOURCES)
def test_rows_of_every_source(name, block_size, num_blocks, batch_size, drop_last, tmp_path):
    number = torch.arange(53)
    batches = Minibatches(
        (SOURCES[name](tmp_path), {"number": number}),
        batch_size,
        seed=3,
        drop_last=drop_last,
        block_size=block_size,
        num_blocks=num_blocks,
    )
    seen = list(batches.epoch(2))
    assert len(seen) == len(batches)
    assert all(len(x) == batch_size for x, _ in seen[:-1])
    expected = torch.tensor(counts())
    for x, other in seen:
        assert torch.equal(x.float(), expected[other["number"]])
    order = torch.cat([other["number"] for _, other in seen])
    assert len(order.unique()) == len(order) == (53 // batch_size * batch_size if drop_last else 53)
    # The same again, from any batch on; another epoch is another order.
    for start in (1, len(batches) - 1, len(batches)):
        again = torch.cat([torch.zeros(0), *[other["number"] for _, other in batches.epoch(2, start)]])
        assert torch.equal(again, order[start * batch_size :])
    assert not torch.equal(torch.cat([other["number"] for _, other in batches.epoch(3)]), order)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_members_take_sparse_rows():
    data = torch.tensor(counts())
    sparse = Minibatches((data.to_sparse_csr(), torch.arange(53)), 8, members=3)
    for x, number in sparse.epoch(0):
        assert x.shape == (3, number.shape[1], 6)
        assert torch.equal(x, data[number])


def test_blocks_are_shuffled_and_so_are_rows_in_them():
    order = torch.cat(list(Minibatches(np.arange(1000), 50, block_size=10, num_blocks=5).epoch(0)))
    windows = order.reshape(20, 50)
    for window in windows:
        assert len((window // 10).unique()) == 5
    assert not torch.equal(windows[0] // 10, (windows[0] // 10).sort().values)
    blocks = torch.stack([(window // 10).unique() for window in windows])
    assert torch.equal(blocks.flatten().sort().values, torch.arange(100))
    assert (blocks.diff() > 10).any()


def test_every_row_comes_first_equally_often():
    """Over 600 epochs of four rows in two blocks, six standard errors."""
    batches = Minibatches(np.arange(4), 1, block_size=2, num_blocks=2)
    first = torch.cat([next(batches.epoch(number)) for number in range(600)]).bincount(minlength=4)
    assert ((first - 150).abs() < 6 * (600 * 0.25 * 0.75) ** 0.5).all()


def test_only_blocks_are_read():
    class Source:
        shape = (100, 3)
        reads = []

        def __getitem__(self, span):
            assert span.step is None
            self.reads.append((span.start, span.stop))
            return np.zeros((span.stop - span.start, 3))

    batches = Minibatches(Source(), 8, block_size=16, num_blocks=2)
    stream = batches.epoch(0)
    next(stream)
    assert len(Source.reads) == 2
    list(stream)
    assert sorted(Source.reads) == [(i, min(i + 16, 100)) for i in range(0, 100, 16)]
    Source.reads.clear()
    list(batches.epoch(0, 11))
    assert len(Source.reads) <= 3


@pytest.mark.slow
def test_memory_is_bounded_by_the_blocks(tmp_path):
    """4 GB of counts that no memory is needed for: the file is sparse, and read by blocks."""
    program = f"""
        import resource, numpy as np
        from pyro_hyperbolic.infer import Minibatches
        data = np.memmap({str(tmp_path / "counts")!r}, dtype=np.int16, mode="w+", shape=(1_000_000, 2000))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        batches = Minibatches(np.memmap(data.filename, np.int16, "r", shape=data.shape), 512)
        assert sum(len(batch) for batch, _ in zip(batches.epoch(0), range(200))) == 200 * 512
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=600
    )
    # A window is 16 * 1024 rows, 66 MB; the pages of the file that were read count too, 410 MB.
    assert int(done.stdout) < 1e6


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", ["sparse tensor", "memory map", "sparse matrix"])
def test_batches_on_a_device(name, tmp_path):
    source = SOURCES[name](tmp_path)
    source = source.cuda() if isinstance(source, torch.Tensor) else source
    batches = Minibatches((source, torch.arange(53).cuda()), 8, block_size=10, num_blocks=2, device="cuda")
    expected = torch.tensor(counts()).cuda()
    for x, number in batches.epoch(0):
        assert x.device.type == number.device.type == "cuda"
        assert torch.equal(x.float(), expected[number])


def test_loops_go_through_successive_epochs():
    batches, same = (Minibatches(torch.arange(7), 3, seed=2) for _ in range(2))
    for number in range(3):
        assert torch.equal(torch.cat(list(batches)), torch.cat(list(same.epoch(number))))
