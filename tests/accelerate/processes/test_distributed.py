"""``DistributedSVI`` in several processes, which have to do what one process does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
import torch.distributed as torch_distributed
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor

from pyro_hyperbolic.infer import DistributedSVI, FastSVI, log_marginal_likelihood, process_group
from tests.accelerate.processes import distributed_worker as worker

WORKER = Path(worker.__file__)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)], ids="{} processes".format)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of several processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(WORKER), str(request.param), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=WORKER.parents[3], check=False)
    assert done.returncode == 0, done.stderr
    results = [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]
    failures = [scenario["failed"] for result in results for scenario in result.values() if "failed" in scenario]
    assert not failures, failures[0]
    return results


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process."""
    torch_distributed.init_process_group("gloo", store=torch_distributed.HashStore(), rank=0, world_size=1)
    yield
    torch_distributed.destroy_process_group()


def assert_same_training(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    for key, value in expected["state"].items():
        torch.testing.assert_close(found["state"][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trainer", [FastSVI, SVI])
@pytest.mark.parametrize("name", worker.CASES)
def test_processes_do_what_one_process_does(ranks: list[dict[str, Any]], name: str, trainer: Any) -> None:
    expected = worker.train(name, trainer)
    for result in ranks:
        assert_same_training(result["cases"][name], expected)
        # The random numbers that come next are the same too, in all processes and in one.
        assert torch.equal(result["cases"][name]["noise"], expected["noise"])


def test_the_first_process_decides_how_to_begin(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert_same_training(result["begun_differently"], result["cases"]["wrapped"])


def test_training_goes_on_from_a_state(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert result["resumed"]["losses"] == result["cases"]["wrapped"]["losses"]
        for key, value in result["cases"]["wrapped"]["state"].items():
            assert torch.equal(result["resumed"]["state"][key], value)


def test_different_random_numbers_are_an_error(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert "drawn different random numbers; call synchronize()" in result["drifted"]["error"]


@pytest.mark.parametrize("name", worker.REFUSED)
def test_what_cannot_be_shared_is_an_error(ranks: list[dict[str, Any]], name: str) -> None:
    for result in ranks:
        assert worker.REFUSED[name][1] in result["refused"][name]


@pytest.mark.parametrize("name", worker.PATTERNS)
def test_parameters_that_only_some_steps_use(ranks: list[dict[str, Any]], name: str) -> None:
    expected = worker.train_small(FastSVI, worker.PATTERNS[name])
    for result in ranks:
        found = result["parameters_now_and_then"][name]
        assert_same_training(found, expected)
        for key, value in ranks[0]["parameters_now_and_then"][name]["state"].items():
            assert torch.equal(found["state"][key], value)


def test_what_one_process_does_alone_is_an_error_in_all(ranks: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(ranks):
        found = result["apart"]
        assert "used different parameters in different processes, or failed in one of them" in found["parameter"]
        assert ("KeyError" if rank == 1 else "or failed in one of them") in found["failure"]
        assert "was not there when the programs first ran" in found["new"]
        assert "site 'f' has the density" in found["late factor"]
        assert "were given different batches" in found["batch"]
        assert "different parameters in different processes; build the same" in found["module"]
        assert found["then"] == ranks[0]["apart"]["then"]


def test_evaluation(ranks: list[dict[str, Any]]) -> None:
    module, svi = worker.start("wrapped", FastSVI)
    before = svi.evaluate_loss(worker.DATA[:7])
    svi.step(worker.DATA)
    expected = svi.evaluate_loss(worker.DATA[:7])
    data = worker.DATA.repeat(40, 1)[:301]
    reference, noise = log_marginal_likelihood(module.model, module.guide, data, num_samples=200, standard_error=True)
    for result in ranks:
        found = result["evaluated"]
        torch.testing.assert_close(found["before"], before)
        torch.testing.assert_close(found["after"], expected)
        # All processes have all estimates, each of which has noise of its own.
        assert torch.equal(found["estimates"], ranks[0]["evaluated"]["estimates"])
        assert len(found["estimates"].unique()) == len(data)
        difference = (found["estimates"] - reference).mean().abs()
        assert difference < 5 * (noise.square().sum() + found["errors"].square().sum()).sqrt() / len(data)


def test_evaluation_with_covariates(ranks: list[dict[str, Any]]) -> None:
    module, svi = worker.start("counts with covariates", FastSVI)
    svi.step(worker.DATA, **worker.EXTRA)
    expected, noise = log_marginal_likelihood(
        module.model, module.guide, worker.DATA, num_samples=2000, standard_error=True, **worker.EXTRA
    )
    for result in ranks:
        estimates, errors = result["evaluated"]["counts"]
        # The weights of this model have heavy tails; rows that were exchanged would be nats apart.
        assert ((estimates - expected).abs() < 0.2 + 3 * (noise + errors)).all()
        assert (errors < 0.3).all()


def vae(distribution: str = "wrapped") -> Any:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    return worker.vae(distribution)()


def adam() -> Any:
    return pyro.optim.Adam({"lr": 1e-2})


def test_needs_a_group() -> None:
    module = vae()
    with pytest.raises(ValueError, match=r"no process group: start the program with torchrun"):
        DistributedSVI(module.model, module.guide, adam(), Trace_ELBO())


@pytest.mark.usefixtures("alone")
class TestErrors:
    def test_nesting_must_be_known(self) -> None:
        module = vae()
        with pytest.raises(ValueError, match="give the loss max_plate_nesting"):
            DistributedSVI(module.model, module.guide, adam(), Trace_ELBO(num_particles=2, vectorize_particles=True))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"loss": Trace_ELBO}, r"got the class Trace_ELBO; pass loss=Trace_ELBO\(\)"),
            ({"model": None}, "model must be a function or a module, got None"),
            ({"validate_every": 1.5}, "validate_every must be a positive integer, got 1.5"),
        ],
    )
    def test_arguments(self, options: dict[str, Any], message: str) -> None:
        module = vae()
        usual = {"model": module.model, "guide": module.guide, "optim": adam(), "loss": Trace_ELBO()}
        with pytest.raises(ValueError, match=message):
            DistributedSVI(**usual | options)

    def test_the_plate_must_be_there(self) -> None:
        module = vae()
        svi = DistributedSVI(module.model, module.guide, adam(), Trace_ELBO(), plate="rows")
        with pytest.raises(ValueError, match="no plate 'rows'; name the one of the data by plate"):
            svi.step(worker.DATA)

    @pytest.mark.parametrize("args", [(), (worker.DATA, worker.DATA[:3]), (worker.DATA[:0],), (torch.tensor(1.0),)])
    def test_tensors_must_be_a_batch(self, args: tuple[Tensor, ...]) -> None:
        module = vae()
        svi = DistributedSVI(module.model, module.guide, adam(), Trace_ELBO())
        with pytest.raises(ValueError, match="must have the same non-zero length"):
            svi.step(*args)

    def test_parameters_must_belong_to_a_module(self) -> None:
        module = vae()

        def guide(x: Tensor) -> Tensor:
            pyro.param("lonely", torch.zeros(()))
            return module.guide(x)

        svi = DistributedSVI(module.model, guide, adam(), Trace_ELBO())
        with pytest.raises(ValueError, match=r"\['lonely'\] belong to no module"):
            svi.step(worker.DATA)

    def test_state_of_other_programs(self) -> None:
        module = vae()
        svi = DistributedSVI(module.model, module.guide, adam(), Trace_ELBO())
        svi.step(worker.DATA)
        state = svi.state_dict()
        state["parameters"].popitem()
        other = vae()
        svi = DistributedSVI(other.model, other.guide, adam(), Trace_ELBO())
        svi.load_state_dict(state)
        for _ in range(2):  # a step after the error must not go on without the state
            with pytest.raises(ValueError, match="belongs to other programs"):
                svi.step(worker.DATA)


@pytest.mark.usefixtures("alone")
def test_steps_are_validated_in_turn() -> None:
    module = vae()
    svi = DistributedSVI(module.model, module.guide, adam(), Trace_ELBO(), validate_every=2)
    for _ in range(2):
        svi.step(worker.DATA)
    with torch.no_grad():
        module.encoder.loc.bias.fill_(torch.inf)
    with pytest.raises(ValueError, match="loc"):
        svi.step(worker.DATA)


@pytest.mark.gpu
def test_group_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL with one process: losses, generator and estimates on the device."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    data = worker.DATA.cuda()
    with process_group("cuda") as place:
        assert place.device == torch.device("cuda", 0)
        assert torch_distributed.get_backend() == "nccl"
        module = vae("riemannian").to(place.device)
        svi = DistributedSVI(module.model, module.guide, adam(), Trace_ELBO())
        losses = [svi.step(data).item() for _ in range(3)]
        svi.synchronize()
        assert svi.log_marginal_likelihood(data, num_samples=50).device == place.device
    other = vae("riemannian").cuda()
    fast = FastSVI(other.model, other.guide, adam(), Trace_ELBO(), capture=False)
    assert losses == pytest.approx([fast.step(data).item() for _ in range(3)], rel=1e-4)
