"""The pages of results say what the raw runs say."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from experiments import RunStore
from experiments.cli import EXPERIMENTS, configured, parser, sizes
from experiments.report import REPORTS
from experiments.report.results import Results

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results"
NAMES = sorted(path.stem for path in PAGES.glob("*.jsonl"))
INTERVAL = re.compile(r"-?\d+\.\d+\s±\s\d+\.\d+")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_the_report_of_its_runs(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    command = re.search(r"`python -m experiments (.*)`", page)
    assert command is not None
    options = parser().parse_args(command[1].split())
    results = Results(configured(EXPERIMENTS[name], **sizes(options)), RunStore(PAGES))
    body, figure = REPORTS[name](results)
    plt.close(figure)
    assert body in page
    assert results.provenance() in page


@pytest.mark.parametrize("page", ["README.md", "docs/results/index.rst"])
def test_quoted_figures_are_those_of_the_reports(page: str) -> None:
    """But for the runs of single cells that were repeated by themselves, whose section says so."""
    text = (ROOT / page).read_text().split("\nHow firm the figures are\n")[0]
    reports = "\n".join((PAGES / f"{name}.md").read_text() for name in NAMES)
    known = {_plain(quote) for quote in INTERVAL.findall(reports)}
    # "0.20 ± 0.22 worse" is said of a gain of -0.20 ± 0.22.
    known |= {quote.removeprefix("-") for quote in known}
    quotes = [_plain(quote) for quote in INTERVAL.findall(text)]
    assert quotes
    assert [quote for quote in quotes if quote not in known] == []


def _plain(quote: str) -> str:
    return " ".join(quote.split())
