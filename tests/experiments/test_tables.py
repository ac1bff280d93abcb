"""Every table, tiny, from data to report."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyro
import pytest
import scipy.stats
import torch
from torch.testing import assert_close

from examples.intervals import mean_interval
from experiments import Choices, Job, Mixed, RunStore, Table1, Table2, Table4, sweep
from experiments.choices import ChoiceCell
from experiments.cli import EXPERIMENTS, configured, main
from experiments.mnist import digits
from experiments.paper import paper_tables
from experiments.report import REPORTS, write_report
from experiments.report.results import Results, number, within
from experiments.table1 import NEARLY_FLAT
from experiments.table2 import DIMENSIONS, FAR
from pyro_hyperbolic import datasets
from pyro_hyperbolic.nn import GyroplaneLinear
from pyro_hyperbolic.ops.special import unit
from tests.experiments.conftest import TINY

pytestmark = pytest.mark.usefixtures("coarse_pictures")
PATTERNS = {
    "table1": ["*sigma0=1.0"],
    "table2": ["*, d=2", "riemannian*, d=20"],
    "table3": ["euclidean"],
    "table4": [],
    "ablation": ["*, d=2"],
    "mixed": ["mnist, e6", "mnist, h2,s2,e2 c learned", "branching, u2,u2,u2 k=*", "phylogenetic, u5*"],
    "choices": ["euclidean, lr=0.0005, d=2", "c=1.4, gain=1, *, lr=0.0005, d=2"],
    "distances": ["karate*"],
    "cells": ["paul15, euclidean", "branching, c=1"],
    "networks": ["florentine, e2, *", "phylogenetic, h2, *"],
    "earth": ["fire", "flood", "flood, continuous"],
    "flows": ["binary, d=2*", "grey, d=2*"],
}


MACHINE = {"device": "d", "pyro_hyperbolic": "0", "torch": "2", "pyro": "1", "matmul_precision": "high"}
KARATE = datasets.graph("karate")
sweep_module = sys.modules["experiments.sweep"]  # whose name the function of the same name hides


# Two kinds of data; test_sweep trains on the third, and test_pages has a report of each.
QUICK = {"table4"}


@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS]
)
def test_from_data_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(datasets, "graph", lambda name: KARATE)
    monkeypatch.setattr("experiments.earth.places", lambda name: unit(torch.randn(60, 3, dtype=torch.float64)))
    experiment, store = TINY[name], RunStore(tmp_path)
    sweep(experiment, store, patterns=PATTERNS[name])
    runs = store.records(name).values()
    assert runs
    assert all(run["machine"]["torch"] and run["seconds"] > 0 for run in runs)
    write_report(experiment, store, tmp_path)
    text = (tmp_path / f"{name}.md").read_text()
    assert f"![{Results(experiment, store).title}]({name}.png)" in text
    assert f"Runs: {len(runs)} of {len(experiment.cells()) * experiment.seeds}" in text
    assert (tmp_path / f"{name}.png").stat().st_size > 1000
    finite = [value for run in runs for value in run["metrics"].values() if isinstance(value, float)]
    assert all(map(math.isfinite, finite))


@pytest.mark.slow
@pytest.mark.usefixtures("bundled")
def test_every_cell_of_mixed_curvature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "graph", lambda name: KARATE)
    experiment, store = TINY["mixed"], RunStore(tmp_path)
    sweep(experiment, store)
    write_report(experiment, store, tmp_path)
    text = (tmp_path / "mixed.md").read_text()
    ours = [line for line in text.splitlines() if "e5" not in line and "p5" not in line]
    assert not any("not run" in line or "finite" in line for line in ours)


def test_every_experiment_has_its_report() -> None:
    assert REPORTS.keys() == EXPERIMENTS.keys()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_names_of_cells_are_unique(name: str) -> None:
    names = [cell.name for cell in TINY[name].cells()]
    assert len(set(names)) == len(names)


class TestPaper:
    def test_cells_of_table_2_are_those_of_the_paper(self) -> None:
        paper = paper_tables()["table2_mnist_negative_iwae_5000"]
        cells = {(cell.row, cell.latent_dim): cell for cell in Table2().cells()}
        starred = set()
        for row, values in paper.items():
            if row not in ("runs", "columns"):
                for d, value in zip(DIMENSIONS, values, strict=True):
                    assert cells[row, d].chart == ("hyperboloid" if value is None else "ball")
                    if value is None:
                        starred.add((d, cells[row, d].curvature))
        assert starred == set(FAR)

    @pytest.mark.parametrize(
        ("name", "key", "runs"),
        [
            ("table1", "table1_branching_diffusion_negative_iwae_5000", 20),
            ("table2", "table2_mnist_negative_iwae_5000", 10),
            ("table4", "table4_link_prediction_percent", 40),
        ],
    )
    def test_as_many_runs(self, name: str, key: str, runs: int) -> None:
        assert configured(EXPERIMENTS[name]).seeds == paper_tables()[key]["runs"] == runs


@pytest.mark.usefixtures("blank_pictures")
class TestReport:
    def test_mean_interval(self) -> None:
        values = [3.0, 4.5, 4.0, 7.25]
        mean, half = mean_interval(values)
        low, high = scipy.stats.t.interval(0.95, 3, mean, scipy.stats.sem(values))
        assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-4)
        assert mean_interval([2.0]) == (2.0, None)
        with pytest.raises(ValueError, match="must not be empty"):
            mean_interval([])

    def test_number(self) -> None:
        assert number((0.5432, 0.0123), 100) == "54.3 ± 1.2"
        assert number((0.5432, None), digits=2) == "0.54"

    def test_within(self) -> None:
        assert within((10.4, 0.3), [10.0, 0.4])
        assert not within((10.6, 0.3), [10.0, 0.4])
        assert within((9.0, None), [10.0, 0.1])

    def test_gains_are_those_on_the_same_split(self, tmp_path: Path) -> None:
        """Scores that differ by split far more than by model."""
        table, store = Table4(seeds=3), RunStore(tmp_path)
        for cell in table.cells():
            for seed, base in enumerate((0.2, 0.5, 0.8)):
                value = base + 0.01 * cell.curvature + 0.001 * seed * cell.curvature
                metrics = dict.fromkeys(("auc", "ap", "validation_auc", "validation_ap"), value)
                store.append(Job(table, cell, seed), metrics=metrics, seconds=1.0, machine=MACHINE)
        write_report(table, store, tmp_path)
        text = (tmp_path / "table4.md").read_text()
        half = mean_interval([1.0, 1.1, 1.2])[1]
        assert f"| hyperbolic c=1 minus euclidean | 1.1\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half:.1f} |" in text
        assert "Phylogenetic c = 2 (3);" in text

    def test_runs_that_are_not_finite_are_counted(self, tmp_path: Path) -> None:
        table, store = replace(TINY["table1"], seeds=3), RunStore(tmp_path)
        cell = table.cells()[0]
        for seed, value in enumerate((1.0, math.nan, 2.0)):
            store.append(Job(table, cell, seed), metrics={"negative_iwae": value}, seconds=1.0, machine={})
        results = Results(table, store)
        assert results.text(cell, "negative_iwae") == "2 of 3 finite"
        assert results.text(table.cells()[1], "negative_iwae") == "not run"

    @pytest.mark.parametrize("name", ["table1", "table2", "table4", "ablation", "mixed"])
    def test_a_cell_that_diverged_does_not_keep_the_report_from_being_made(self, tmp_path: Path, name: str) -> None:
        table, store = replace(TINY[name], seeds=2), RunStore(tmp_path)
        names = ("negative_iwae", "curvature", "auc", "ap", "validation_auc", "validation_ap")
        for count, cell in enumerate(table.cells()):
            value = math.nan if count % 4 == 1 else 0.5 + 0.01 * count
            for seed in range(2):
                metrics: dict[str, Any] = dict.fromkeys(names, value)
                metrics["curvatures"] = [value] * len(getattr(cell, "curvatures", ()))
                store.append(Job(table, cell, seed), metrics=metrics, seconds=1.0, machine=MACHINE)
        write_report(table, store, tmp_path)
        text = (tmp_path / f"{name}.md").read_text()
        assert "0 of 2 finite" in text
        assert "nan" not in text

    def test_best_of_table_2_and_what_curvature_gains(self, tmp_path: Path) -> None:
        table, store = replace(TINY["table2"], seeds=2), RunStore(tmp_path)
        best = {"riemannian c=0.7": 113.0, "wrapped c=0.2, diagonal": 112.0, "wrapped c=0.0001": 113.5}
        for cell in table.cells():
            for seed, shift in enumerate((-0.1, 0.1)):
                metrics = {"negative_iwae": best.get(cell.row, 115.0) + shift, "curvature": 0.7 + shift}
                store.append(Job(table, cell, seed), metrics=metrics, seconds=1.0, machine=MACHINE)
        write_report(table, store, tmp_path)
        half = mean_interval([-0.1, 0.1])[1]
        text = (tmp_path / "table2.md").read_text()
        assert (
            f"* d = 5: the paper's best is 114.1 ± 0.2; our best of the same models is 113.00 ± {half:.2f}"
            f" (riemannian c=0.7), of all models 112.00 ± {half:.2f} (wrapped c=0.2, diagonal). riemannian c=0.7 is"
            f" 0.50 ± {math.sqrt(2) * half:.2f} nats better than wrapped c=0.0001.\n" in text
        )
        both = f"{math.sqrt(2) * half:.2f}"
        layers, curvature = (
            " and ".join([", ".join([f"{value} ± {both}"] * 3), f"{value} ± {both}"]) for value in ("1.50", "0.50")
        )
        assert (
            f"For d = 2, 5, 10 and 20 the hyperbolic model with next to no curvature gains {layers} nats over the"
            " Euclidean one. The best of the paper's hyperbolic models, chosen on the test images, changes that"
            f" by {curvature} nats (positive: better).\n" in text
        )
        assert f"* Learned curvatures, from 1: 0.70 ± {half:.2f} (d = 2), " in text

    def test_curvature_of_links_is_chosen_on_the_validation_edges_of_each_split(self, tmp_path: Path) -> None:
        table, table4, store = Mixed(seeds=2), Table4(seeds=2), RunStore(tmp_path)
        # What the validation edges of the two splits say, and what the test edges say then.
        validation = {0.3: (0.9, 0.1), 1.0: (0.5, 0.5), 2.0: (0.1, 0.8)}
        test = {0.0: (0.5, 0.55), 0.3: (0.6, 0.99), 1.0: (0.99, 0.99), 2.0: (0.99, 0.7)}
        runs: list[tuple[Any, Any, float]] = [(table4, cell, cell.curvature) for cell in table4.cells()]
        links = [cell for cell in table.cells() if cell.task == "phylogenetic" and not cell.learn_curvature]
        runs += [(table, cell, cell.curvatures[0]) for cell in links if cell.space != "u5"]
        for experiment, cell, c in runs:
            for seed in range(2):
                metrics = dict.fromkeys(("auc", "ap"), test[c][seed])
                metrics["validation_auc"] = validation.get(c, (0.0, 0.0))[seed]
                store.append(Job(experiment, cell, seed), metrics=metrics, seconds=1.0, machine=MACHINE)
        write_report(table, store, tmp_path)
        text = (tmp_path / "mixed.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
        scores, gains = (number(mean_interval(values), 100) for values in ([0.6, 0.7], [0.1, 0.15]))
        for name in ("p5 c chosen", "h2,h2 c chosen", "h3,e2 c chosen"):
            assert f"| {name} | {scores} |" in text
            assert f"| {name} minus e5 | {gains} |" in text
        write_report(table4, store, tmp_path)
        text = (tmp_path / "table4.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
        assert f"| c chosen | {scores} |" in text
        assert f"| c chosen minus euclidean | {gains} |" in text
        assert f"over the Euclidean one: {gains} on Phylogenetic, " in text

    def test_curvature_of_table_1_is_chosen_on_the_other_data_sets(self, tmp_path: Path) -> None:
        """One data set on which c = 1.2 is far better than elsewhere must not choose it for itself."""
        table, store = Table1(seeds=3), RunStore(tmp_path)
        losses = {NEARLY_FLAT: (10.0, 20.0, 30.0), 0.3: (9.0, 19.0, 29.0), 1.2: (2.0, 20.0, 30.0)}
        for cell in table.cells():
            for seed, loss in enumerate(losses.get(cell.curvature, (50.0, 50.0, 50.0))):
                store.append(Job(table, cell, seed), metrics={"negative_iwae": loss}, seconds=1.0, machine=MACHINE)
        write_report(table, store, tmp_path)
        text = (tmp_path / "table1.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
        gain = number(mean_interval([1.0, 0.0, 0.0]), digits=2)  # on the other two data sets c = 1.2 is the best
        assert f"{gain} nats for σ₀ = 1 and {gain} nats for σ₀ = 1.7. The choice was c = 1.2 2 times" in text
        best = number(mean_interval([8.0, 0.0, 0.0]), digits=2)
        assert "| σ₀ = 1, gain over c = 0.0001 |" in text
        assert f"| {best} |\n" in text

    def test_learned_curvatures_of_like_factors_are_in_order(self, tmp_path: Path) -> None:
        table, store = Mixed(seeds=2), RunStore(tmp_path)
        learned = {"h2,h2,h2": [[3.0, 1.0, 2.0], [2.0, 3.0, 1.0]], "h2,s2,e2": [[5.0, 4.0], [5.0, 4.0]]}
        for cell in table.cells():
            if cell.task == "mnist" and cell.learn_curvature and cell.space in learned:
                for seed, values in enumerate(learned[cell.space]):
                    metrics = {"negative_iwae": 1.0, "curvatures": values}
                    store.append(Job(table, cell, seed), metrics=metrics, seconds=1.0, machine=MACHINE)
        write_report(table, store, tmp_path)
        text = (tmp_path / "mixed.md").read_text()
        assert "* MNIST, h2,h2,h2 c learned: 1.00 ± 0.00, 2.00 ± 0.00, 3.00 ± 0.00.\n" in text
        assert "* MNIST, h2,s2,e2 c learned: 5.00 ± 0.00, 4.00 ± 0.00.\n" in text

    def test_choice_of_initial_values(self, tmp_path: Path) -> None:
        """Gain 1 and learning rate 0.001 would be best, but for one run that diverged; curved models lead by 0.5."""
        table, store = Choices(seeds=1), RunStore(tmp_path)
        for cell in table.cells():
            loss = 100.0 + abs(math.log2(cell.gain)) + 2 * abs(math.log2(cell.learning_rate / 1e-3))
            loss += 0.5 * (cell.curvature == 0) + 0.25 * (cell.gain == 0.5)
            if cell.latent_dim == 20 and cell.gain == 1.0 and cell.learning_rate == 1e-3:
                loss = math.nan
            store.append(Job(table, cell, 0), metrics={"negative_iwae": loss}, seconds=1.0, machine=MACHINE)
        write_report(table, store, tmp_path)
        text = (tmp_path / "choices.md").read_text()
        assert "is gain 2, spread 1, learning rate 0.001. The library uses gain 2 and spread 1. On average " in text
        assert "this is 2.00 nats worse with the learning rate 0.0005.\n" in text
        assert "gain 2, gain 0.5 is 0.25 nats worse and gain 4 is 1.00 nats worse.\n" in text
        assert "| 0.002 | 0.50 | 0.50 |\n" in text
        assert "\n| **2** | **1** | **0.001** | 2.00 | 101.00 |" in text
        (diverged,) = (line for line in text.splitlines() if line.startswith("| 1 | 1 | 0.001 |"))
        assert "0 of 1 finite" in diverged

    def test_average_of_table_3_is_the_papers(self) -> None:
        for row in ("euclidean", "hyperbolic c=1.4"):
            *classes, average = paper_tables()["table3_mnist_digit_accuracy_2d_percent"][row]
            assert sum(classes) / 10 == pytest.approx(average)

    def test_command_of_a_report_is_that_of_its_settings(self, tmp_path: Path) -> None:
        table, store = replace(TINY["table1"], seeds=1), RunStore(tmp_path)
        job = Job(table, table.cells()[0], 0)
        store.append(job, metrics={"negative_iwae": 1.0}, seconds=1.0, machine=MACHINE)
        write_report(table, store, tmp_path)
        command = "`python -m experiments table1 --seeds 1 --epochs 2 --samples 3`"
        assert command in (tmp_path / "table1.md").read_text()

    def test_without_runs(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError, match=r"no runs with these settings in .* of table1; train them first, with `.* table1`"
        ):
            write_report(TINY["table1"], RunStore(tmp_path), tmp_path)


class TestCommandLine:
    def test_trains_and_reports(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        options = ["--seeds", "1", "--epochs", "1", "--samples", "2", "--device", "cpu", "--results", str(tmp_path)]
        main(["table1", "--cells", "euclidean*", *options])
        assert "finished euclidean" in capfd.readouterr().err
        runs = [json.loads(line) for line in (tmp_path / "table1.jsonl").read_text().splitlines()]
        assert [run["settings"]["epochs"] for run in runs] == [1, 1]
        (tmp_path / "table1.md").unlink()
        main(["report", *options])  # the other tables have no runs
        assert (tmp_path / "table1.md").exists()
        said = capfd.readouterr().err
        assert said.count("\n") == 1
        assert f" of {', '.join(name for name in EXPERIMENTS if name != 'table1')}; train them first" in said
        with pytest.raises(SystemExit, match=r"^2$"):
            main(["report", *options[:-1], str(tmp_path / "empty")])

    def test_ranks_come_from_the_launcher(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        options = ["--seeds", "1", "--epochs", "1", "--samples", "2", "--device", "cpu", "--results", str(tmp_path)]
        monkeypatch.setenv("WORLD_SIZE", "2")
        waited = []
        monkeypatch.setattr(sweep_module, "wait_for_others", lambda store, jobs: waited.append(len(jobs)))
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            main(["table1", "--cells", "euclidean, sigma0=1.0", "c=0.1, sigma0=1.0", *options])
        assert waited == [2, 2]
        assert len((tmp_path / "table1.jsonl").read_text().splitlines()) == 1
        assert len((tmp_path / "table1.rank1.jsonl").read_text().splitlines()) == 1

    @pytest.mark.parametrize("arguments", [["all", "--cells", "x"], ["table1", "--figures", "gyroplane"]])
    def test_options_that_do_not_belong(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(arguments)
        assert "belongs to" in capsys.readouterr().err

    def test_an_interruption_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("experiments.cli.sweep", interrupted)
        with pytest.raises(SystemExit, match=r"^130$"):
            main(["table1", "--device", "cpu", "--results", str(tmp_path)])
        assert "run the same command to go on" in capsys.readouterr().err

    def test_options_reach_the_experiment(self) -> None:
        table = configured(EXPERIMENTS["table3"], seeds=2, epochs=3, samples=4)
        assert (table.seeds, table.embedding.seeds, table.embedding.epochs, table.epochs) == (10, 2, 3, 5)
        assert configured(EXPERIMENTS["table4"], samples=7) == Table4()
        assert configured(EXPERIMENTS["distances"], chains=5).num_chains == 5
        networks = configured(EXPERIMENTS["networks"], chains=5, warmup=30)
        assert {networks.part(cell).chains for cell in networks.cells()} == {5, 16}  # guides have no chains

    def test_mixed_curvature_has_the_settings_of_the_tables(self) -> None:
        mixed = configured(EXPERIMENTS["mixed"])
        tables = {"mnist": Table2(), "branching": Table1(), "csphd": Table4()}
        for cell in mixed.cells():
            if cell.task in tables:
                ours, theirs = mixed.part(cell).settings(), tables[cell.task].settings()
                assert ours.items() - theirs.items() <= {("prior_scale", 1.0)}  # of Table 1 the cells have it
                assert theirs.items() - ours.items() <= {("latent_dim", 5)}  # of the spaces it is their own
        short = configured(EXPERIMENTS["mixed"], seeds=2, epochs=3, samples=4)
        assert {short.part(cell).epochs for cell in short.cells()} == {3}


@pytest.mark.usefixtures("bundled")
def test_a_table_of_the_whole_data_set_refuses_a_part_of_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the whole of MNIST, which is not on this machine; put its files into"):
        sweep(Table2(seeds=1, epochs=1), RunStore(tmp_path), patterns=["euclidean, d=2"])


class TestChoices:
    @pytest.mark.usefixtures("bundled")
    def test_the_test_images_play_no_part(self) -> None:
        experiment = TINY["choices"]
        train, held_out = experiment.images(torch.device("cpu"))
        images = digits(True).images[: experiment.data_limit]
        assert torch.equal(torch.cat([train, held_out]), images)
        assert len(held_out) == experiment.held_out

    def test_initial_values_are_those_of_the_cell(self) -> None:
        experiment = TINY["choices"]
        normals, offsets = {}, {}
        for gain, spread in ((1.0, 1.0), (4.0, 1.0), (1.0, 2.0)):
            pyro.set_rng_seed(0)
            layer = experiment.build(ChoiceCell(2, 1.0, 5e-4, gain, spread)).decoder
            layer = next(part for part in layer.modules() if isinstance(part, GyroplaneLinear))
            normals[gain, spread], offsets[gain, spread] = layer.normal.detach(), layer.offset.detach()
        assert_close(normals[4.0, 1.0], 4 * normals[1.0, 1.0])
        assert_close(offsets[4.0, 1.0], offsets[1.0, 1.0])
        assert_close(offsets[1.0, 2.0], 2 * offsets[1.0, 1.0])

    def test_held_out_images_are_fewer_than_all(self) -> None:
        with pytest.raises(ValueError, match="held_out must be below data_limit, 256, got 256"):
            replace(TINY["choices"], held_out=256)
