"""Files that are complete or not there."""

import os

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import load_checkpoint, save_checkpoint
from pyro_hyperbolic.models import HyperbolicVAE

STATES = {
    "tensors": {"a": torch.arange(3), "b": {"c": torch.rand(2, 2, dtype=torch.float64)}},
    "containers": {"epoch": 3, "loss": [1.5, 2.5], "name": "mnist", "pair": (1, None), "flag": True},
    "nothing": {},
}


def plain(value):
    """Tensors as lists, so that what holds them can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


class TestRoundTrip:
    @pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "Path"])
    @pytest.mark.parametrize("name", STATES)
    def test_state(self, tmp_path, name, kind):
        path = kind(tmp_path / "checkpoint.pt")
        save_checkpoint(STATES[name], path)
        assert plain(load_checkpoint(path)) == plain(STATES[name])

    def test_random_generator(self, tmp_path):
        torch.manual_seed(11)
        torch.randn(5)
        save_checkpoint({}, tmp_path / "checkpoint.pt")
        expected = torch.randn(100)
        torch.manual_seed(12)
        load_checkpoint(tmp_path / "checkpoint.pt")
        assert torch.equal(torch.randn(100), expected)

    def test_saving_draws_nothing(self, tmp_path):
        torch.manual_seed(11)
        expected = torch.randn(3)
        torch.manual_seed(11)
        save_checkpoint({}, tmp_path / "checkpoint.pt")
        assert torch.equal(torch.randn(3), expected)

    def test_weights_only(self, tmp_path):
        vae = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=4)
        optimiser = torch.optim.Adam(vae.parameters())
        vae.encoder(torch.rand(3, 6))[0].sum().backward()
        optimiser.step()
        save_checkpoint({"model": vae.state_dict(), "optimiser": optimiser.state_dict()}, tmp_path / "checkpoint.pt")
        payload = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
        assert set(payload) == {"state", "rng"}
        vae.load_state_dict(payload["state"]["model"])
        optimiser.load_state_dict(payload["state"]["optimiser"])

    def test_training_goes_on_as_if_it_had_not_stopped(self, tmp_path):
        x = torch.rand(8, 6)

        def fresh(seed):
            pyro.clear_param_store()
            torch.manual_seed(seed)
            vae = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=4)
            optimiser = Adam({"lr": 0.01})
            return vae, optimiser, SVI(vae.model, vae.guide, optimiser, Trace_ELBO())

        vae, optimiser, svi = fresh(0)
        for _ in range(2):
            svi.step(x)
        save_checkpoint({"model": vae.state_dict(), "optimiser": optimiser.get_state()}, tmp_path / "checkpoint.pt")
        expected = [svi.step(x) for _ in range(3)]

        vae, optimiser, svi = fresh(1)
        state = load_checkpoint(tmp_path / "checkpoint.pt")
        vae.load_state_dict(state["model"])
        optimiser.set_state(state["optimiser"])
        assert [svi.step(x) for _ in range(3)] == expected

    def test_folders_are_made(self, tmp_path):
        path = tmp_path / "a" / "b" / "checkpoint.pt"
        save_checkpoint({"epoch": 1}, path)
        assert load_checkpoint(path) == {"epoch": 1}

    def test_a_new_checkpoint_replaces_the_old_one(self, tmp_path):
        path = tmp_path / "checkpoint.pt"
        for epoch in range(3):
            save_checkpoint({"epoch": epoch}, path)
        assert load_checkpoint(path) == {"epoch": 2}
        assert os.listdir(tmp_path) == ["checkpoint.pt"]


class Failure(Exception):
    """What goes wrong in the middle of writing."""


def fail_while_writing(monkeypatch):
    def broken(value, path, *args, **kwargs):
        path.write_bytes(b"half of it")
        raise Failure

    monkeypatch.setattr(torch, "save", broken)


def fail_on_the_way_to_the_disk(monkeypatch):
    def broken(descriptor):
        raise Failure

    monkeypatch.setattr(os, "fsync", broken)


def fail_while_renaming(monkeypatch):
    def broken(old, new):
        raise Failure

    monkeypatch.setattr(os, "replace", broken)


FAILURES = [fail_while_writing, fail_on_the_way_to_the_disk, fail_while_renaming]


class TestAtomic:
    @pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f.__name__)
    def test_a_failure_leaves_the_old_file(self, tmp_path, failure):
        save_checkpoint({"epoch": 1}, tmp_path / "file")
        with pytest.MonkeyPatch.context() as monkeypatch:
            failure(monkeypatch)
            with pytest.raises(Failure):
                save_checkpoint({"epoch": 2}, tmp_path / "file")
        assert os.listdir(tmp_path) == ["file"]
        assert load_checkpoint(tmp_path / "file") == {"epoch": 1}

    @pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f.__name__)
    def test_a_failure_leaves_nothing_where_nothing_was(self, tmp_path, failure):
        with pytest.MonkeyPatch.context() as monkeypatch:
            failure(monkeypatch)
            with pytest.raises(Failure):
                save_checkpoint({"epoch": 2}, tmp_path / "file")
        assert os.listdir(tmp_path) == []

    def test_the_file_is_on_the_disk_before_it_has_its_name(self, tmp_path, monkeypatch):
        calls = []
        fsync, replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", lambda d: (calls.append("fsync"), fsync(d)))
        monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
        save_checkpoint({"epoch": 1}, tmp_path / "file")
        assert calls == ["fsync", "replace"]

    def test_what_cannot_be_saved_leaves_the_old_file(self, tmp_path):
        path = tmp_path / "checkpoint.pt"
        save_checkpoint({"epoch": 1}, path)
        with pytest.raises((AttributeError, TypeError)):
            save_checkpoint({"program": lambda x: x}, path)
        assert os.listdir(tmp_path) == ["checkpoint.pt"]
        assert load_checkpoint(path) == {"epoch": 1}

    @pytest.mark.parametrize("value", [np.float64(1.5), torch.nn.Linear(1, 1)], ids=["numpy", "module"])
    def test_what_could_not_be_loaded_leaves_the_old_file(self, tmp_path, value):
        path = tmp_path / "checkpoint.pt"
        save_checkpoint({"epoch": 1}, path)
        with pytest.raises(ValueError, match=r"state must hold tensors, numbers, .* got (numpy|torch\.nn).*state_dict"):
            save_checkpoint({"value": value}, path)
        assert os.listdir(tmp_path) == ["checkpoint.pt"]
        assert load_checkpoint(path) == {"epoch": 1}


def truncate(fraction):
    def write(path):
        save_checkpoint({"a": torch.zeros(1000)}, path)
        os.truncate(path, int(fraction * path.stat().st_size))

    return write


def other_bytes(path):
    save_checkpoint({"a": torch.zeros(1000)}, path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGED = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello"),
    "a word": lambda path: path.write_text("junk"),
    "not a text": lambda path: path.write_bytes(b"\x80\x02X\x01\x00\x00\x00\xff."),
    "json": lambda path: path.write_text('{"state": 1}'),
    "zeros": lambda path: path.write_bytes(bytes(500)),
    "a tenth": truncate(0.1),
    "half": truncate(0.5),
    "all but the end": truncate(0.995),
    "other bytes": other_bytes,
    "a list": lambda path: torch.save([1, 2], path),
    "another dictionary": lambda path: torch.save({"weights": torch.zeros(2)}, path),
    "no generator": lambda path: torch.save({"state": {}}, path),
    "no dictionary of generators": lambda path: torch.save({"state": {}, "rng": 3}, path),
    "no state of a generator": lambda path: torch.save({"state": {}, "rng": {"cpu": 3, "cuda": []}}, path),
}


class TestDamage:
    @pytest.mark.parametrize("name", DAMAGED)
    def test_is_an_error_that_names_the_file(self, tmp_path, name):
        path = tmp_path / "checkpoint.pt"
        DAMAGED[name](path)
        torch.manual_seed(11)
        expected = torch.get_rng_state()
        with pytest.raises(ValueError, match=r"checkpoint\.pt is not a checkpoint of this package, or is damaged"):
            load_checkpoint(path)
        assert torch.equal(torch.get_rng_state(), expected)

    def test_a_device_that_is_not_there_is_no_damage(self, tmp_path):
        path = tmp_path / "checkpoint.pt"
        save_checkpoint({"a": torch.zeros(2)}, path)
        with pytest.raises(ValueError, match=r"cannot be loaded to nowhere .*; use map_location='cpu'"):
            load_checkpoint(path, map_location="nowhere")

    def test_another_file_is_not_blamed_on_the_device(self, tmp_path):
        path = tmp_path / "checkpoint.pt"
        torch.save({"weights": torch.zeros(2)}, path)
        for device in ("nowhere", torch.device("cpu")):
            with pytest.raises(ValueError, match="is not a checkpoint of this package"):
                load_checkpoint(path, map_location=device)

    def test_a_file_that_is_not_there_is_no_damage(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            load_checkpoint(tmp_path / "nothing")

    def test_a_folder_is_no_damage(self, tmp_path):
        with pytest.raises(IsADirectoryError):
            load_checkpoint(tmp_path)
