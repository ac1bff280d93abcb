"""A posterior as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch

from pyro_hyperbolic.infer.posterior.diagnostics import FEWEST_DRAWS, Diagnosis
from pyro_hyperbolic.infer.posterior.record import Record
from pyro_hyperbolic.infer.posterior.verdict import numbered

_QUANTILES = 0.05, 0.5, 0.95
_HEAD = "mean", "sd", "5%", "50%", "95%", "R-hat", "bulk ESS", "tail ESS"
_WIDTH = 11
_MOST_ROWS = 8  # of one site
_LOW_BFMI = 0.3

Row = tuple[str, str]
"""A label and what stands beside it."""


def table(record: Record, diagnostics: Mapping[str, Diagnosis]) -> list[str]:
    """Lines with the values and the figures of every site."""
    rows = [("", _joined(_HEAD))]
    for name in record.samples:
        if record.space_of(name) is None:
            rows += _rows_of_values(record, name, diagnostics[name])
        else:
            rows += _rows_of_points(record, name, diagnostics)
    rows += [_row_of_group(group, d) for group, d in diagnostics.items() if group.startswith("inner products")]
    width = max(len(label) for label, cells in rows if cells)
    return [f"{label:<{width}}{cells}".rstrip() for label, cells in rows]


def facts(record: Record) -> Iterator[str]:
    """Lines about the run."""
    settings = record.settings
    yield f"{record.num_chains} chains of {record.num_draws} draws" + "".join(
        f", {word} {settings[key]:{form}}"
        for key, word, form in (
            ("warmup", "warm-up", ""),
            ("seed", "seed", ""),
            ("step_size", "step size", ".3g"),
            ("steps", "steps of a trajectory", ".1f"),
        )
        if key in settings
    )
    if "hottest" in settings:
        yield (
            f"temperatures: {settings['temperatures']} from 1 to {settings['hottest']:g}, at least"
            f" {settings['exchanges']:.0%} of their exchanges accepted, {settings['trips']} trips from the hottest to 1"
        )
    diverged = int(record.divergences.sum())
    yield f"divergences: {diverged} of {record.divergences.numel()} ({diverged / record.divergences.numel():.2%})"
    moves = f", of moves of scales {settings['scale_moves']:.2f}" if "scale_moves" in settings else ""
    yield f"mean acceptance: {record.acceptance.double().mean().item():.2f}{moves}"
    if record.num_draws >= FEWEST_DRAWS:
        bfmi = record.bfmi()
        low = (~(bfmi >= _LOW_BFMI)).nonzero().squeeze(-1).tolist()
        yield f"E-BFMI: {bfmi.nan_to_num().min().item():.2f} or more" + (
            f", below {_LOW_BFMI} in {numbered(low)}: the tails are explored slowly" if low else ""
        )
    times = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in record.seconds.items())
    yield f"time: {sum(record.seconds.values()):.1f} s ({times})"
    for chain, reason in sorted(record.failed.items()):
        yield f"chain {chain} failed: {reason}"
    if record.modes is not None and len(record.modes) > 1:
        yield f"{len(record.modes)} modes:"
        for mode in record.modes:
            yield f"  weight {mode['weight']:.3g}, energy {mode['energy']:.2f}, chains {mode['chains']:.0f}"


def _rows_of_values(record: Record, name: str, diagnosis: Diagnosis) -> list[Row]:
    draws = record.samples[name]
    shape = draws.shape[2:]
    note = ", deterministic" if name in record.deterministic else ""
    note += ", in a chosen orientation" if name in record.settings.get("oriented", ()) else ""
    if shape.numel() > _MOST_ROWS:
        return [_row_of_group(f"{name}{note}", diagnosis)]
    rows = []
    for place, values in enumerate(draws.reshape(-1, shape.numel()).double().unbind(-1)):
        index = ",".join(map(str, _index(place, shape)))
        label = f"{name}[{index}]{note}" if shape else f"{name}{note}"
        if bool(diagnosis.constant[place]):
            rows.append((label, _joined([f"{values[0].item():.4g}", "constant"])))
            continue
        quantiles = torch.quantile(values, torch.tensor(_QUANTILES, dtype=values.dtype, device=values.device))
        numbers = torch.stack([values.mean(), values.std(), *quantiles])
        figures = [each[place].item() for each in (diagnosis.r_hats, diagnosis.bulks, diagnosis.tails)]
        rows.append((label, _joined(f"{number:.4g}" for number in numbers.tolist()) + _figures(figures)))
    return rows


def _rows_of_points(record: Record, name: str, diagnostics: Mapping[str, Diagnosis]) -> list[Row]:
    space, draws = record.space_of(name), record.samples[name]
    assert space is not None
    count = draws.shape[2:-1].numel()
    words = f"{name}: {count} point{'s' * (count != 1)} of {space.kind}"
    words += ", deterministic" if name in record.deterministic else ""
    words += ", in a chosen orientation" if name in record.settings.get("oriented", ()) else ""
    words += ", orientation free" if record.gauge_of(name) else ""
    groups = {f"  {kind}": diagnostics.get(f"{kind} of {name}") for kind in ("distances", "radii", "coordinates")}
    return [(words, "")] + [_row_of_group(label, d) for label, d in groups.items() if d is not None]


def _row_of_group(label: str, diagnosis: Diagnosis) -> Row:
    count = f"{diagnosis.count}" if diagnosis.count == diagnosis.total else f"{diagnosis.count} of {diagnosis.total}"
    means = f"means {diagnosis.means.min().item():.4g} to {diagnosis.means.max().item():.4g}"
    if diagnosis.is_constant:
        means += ", constant"
    figures = [diagnosis.r_hat, diagnosis.ess_bulk, diagnosis.ess_tail]
    return f"{label} ({count})", f"{means:>{5 * _WIDTH}}" + ("" if diagnosis.is_constant else _figures(figures))


def _figures(of: list[float]) -> str:
    r_hat, bulk, tail = of
    return _joined([f"{r_hat:.3f}", f"{bulk:.0f}", f"{tail:.0f}"])


def _joined(cells: Iterable[str]) -> str:
    return "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def _index(place: int, shape: torch.Size) -> list[int]:
    sizes = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    return [place // size % own for size, own in zip(sizes, shape, strict=True)]
