from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyro_hyperbolic.datasets.idx import read_idx, write_idx

Idx = Callable[..., bytes]


@pytest.mark.parametrize("gz", [False, True])
def test_reads_every_element_in_row_major_order(tmp_path: Path, idx: Idx, gz: bool) -> None:
    path = tmp_path / ("images.gz" if gz else "images")
    path.write_bytes(idx(2, 3, 4, payload=bytes(range(24)), gz=gz))
    values = read_idx(path, ndim=3)
    assert values.dtype == torch.uint8
    assert torch.equal(values, torch.arange(24, dtype=torch.uint8).view(2, 3, 4))


def test_gzip_is_recognised_without_the_suffix(tmp_path: Path, idx: Idx) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx(2, payload=b"\x05\x09", gz=True))
    assert read_idx(path, ndim=1).tolist() == [5, 9]


@pytest.mark.parametrize(
    ("payload", "shape", "magic", "message"),
    [
        pytest.param(bytes(23), (2, 3, 4), None, "expected 40 bytes.*found 39", id="truncated"),
        pytest.param(bytes(25), (2, 3, 4), None, "expected 40 bytes.*found 41", id="trailing"),
        pytest.param(bytes(24), (2, 3, 4), 0x801, "0x00000803.*0x00000801", id="labels-as-images"),
        pytest.param(bytes(24), (2, 3, 4), 0xD03, "0x00000803.*0x00000d03", id="floats"),
        pytest.param(b"", (2,), None, "header of 16 bytes, found 8", id="short-header"),
        pytest.param(b"", (0, 3, 4), None, "holds no element", id="empty"),
    ],
)
@pytest.mark.parametrize("gz", [False, True])
def test_damage_is_an_error_with_file_sizes_and_remedy(
    tmp_path: Path,
    idx: Idx,
    payload: bytes,
    shape: tuple[int, ...],
    magic: int | None,
    message: str,
    gz: bool,
) -> None:
    path = tmp_path / "some-images"
    path.write_bytes(idx(*shape, payload=payload, magic=magic, gz=gz))
    with pytest.raises(ValueError, match=message) as caught:
        read_idx(path, ndim=3)
    assert str(path) in str(caught.value)
    assert "delete it and download it again" in str(caught.value)


def test_empty_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.touch()
    with pytest.raises(ValueError, match="found 0"):
        read_idx(path, ndim=3)


def test_plain_content_under_a_gz_name_is_an_error(tmp_path: Path, idx: Idx) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(idx(2, payload=b"\x01\x02"))
    with pytest.raises(ValueError, match="name says gzip"):
        read_idx(path, ndim=1)


def _cut(content: bytes) -> bytes:
    return content[:-9]


def _flip_checksum(content: bytes) -> bytes:
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]


def _flip_body(content: bytes) -> bytes:
    return content[:10] + b"\xff" + content[11:]


def _append(content: bytes) -> bytes:
    return content + b"rubbish"


@pytest.mark.parametrize("damage", [_cut, _flip_checksum, _flip_body, _append])
def test_broken_gzip_is_an_error(tmp_path: Path, idx: Idx, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(damage(idx(2, 3, 4, payload=bytes(range(24)), gz=True)))
    with pytest.raises(ValueError, match=r"broken gzip stream.*delete it"):
        read_idx(path, ndim=3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.integers(0, 255), min_size=1), gz=st.booleans())
def test_write_then_read(tmp_path: Path, values: list[int], gz: bool) -> None:
    path = tmp_path / ("file.gz" if gz else "file")
    written = torch.tensor(values, dtype=torch.uint8)
    write_idx(path, written)
    assert torch.equal(read_idx(path, ndim=1), written)


def test_write_is_deterministic_and_gzips_by_name(tmp_path: Path, idx: Idx) -> None:
    path = tmp_path / "file.gz"
    write_idx(path, torch.arange(6, dtype=torch.uint8).view(1, 2, 3))
    assert gzip.decompress(path.read_bytes()) == idx(1, 2, 3, payload=bytes(range(6)))
    assert path.read_bytes()[4:8] == bytes(4)  # the time stamp of the gzip header


def test_write_refuses_other_types(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"torch\.uint8, got torch\.float32"):
        write_idx(tmp_path / "file", torch.zeros(2))
