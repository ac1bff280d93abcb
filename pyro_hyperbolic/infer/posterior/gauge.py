r"""Rotations that a posterior does not see.

If the energy does not change when all points are rotated or mirrored together, chains turn against each other for ever,
and a metric that is learned from all of them is blurred. Nothing of interest is lost by a term that prefers one
orientation, as long as it is a function of the orientation alone. With reference points :math:`r_i` let

.. math:: M(v) = \sum_i v_i r_i^T = Q(v)\,T(v), \qquad U_0(v) = -\kappa \operatorname{tr} Q(v)

with ``Q`` orthogonal and ``T`` triangular. :math:`Q(Rv) = R\,Q(v)`, so the integral of :math:`e^{-U_0}` over the
rotations of ``v`` is the same number for every ``v``: every function that rotations leave alone has its distribution
without the term.

These are all orthogonal matrices, or in two and three dimensions those of determinant 1 alone, where the energy tells
mirror images apart. The last axis of ``Q`` is then the one that makes its determinant 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import mul
from typing import Any

import torch
from torch import Tensor, square

# The standard deviation of an angle is about 1 / sqrt(2 kappa).
KAPPA = 50.0
# A part of the length of an axis, and the share of draws in which an axis may be shorter: where axes come near to 0,
# orientations turn with any small change, and a term that holds them asks for tiny steps.
_SHORT, _MOST_SHORT = 0.2, 0.05
# The shortest axis over the longest one, and that over the size of draws of the prior, below which there is none to
# hold points by.
_FLAT, _SMALL = 0.02, 1e-6
_LEAST = 0.25  # share of draws of the prior at which what is free can be turned
_VISIBLE, _SHAKEN = 0.01, 4  # nats; how often rounding is measured, and how many times as much may be seen
_FEW = 5  # axes, beyond which they are too many numbers to be compiled one by one
_MOST_PROPER = 3  # dimensions in which mirror images may be told apart


@dataclass
class Block:
    """All sites whose numbers are vectors of one dimension, and the terms that hold the orientation of some of them.

    There are as many terms as sites, since each may turn by itself. A term that is not needed has the weight 0.

    :ivar names: of the sites.
    :ivar columns: where their numbers are in a vector, ``(N, d)``.
    :ivar rows: of ``columns``, by site.
    :ivar reference: ``(G, N, d)``, where ``G`` is the number of sites. It changes in place, for captured functions.
    :ivar weight: ``(G,)``, likewise.
    :ivar proper: 1 where mirror images are told apart, ``(G,)``, likewise.
    :ivar free: the groups of sites that turn together.
    """

    names: tuple[str, ...]
    columns: Tensor
    rows: tuple[slice, ...]
    reference: Tensor
    weight: Tensor
    proper: Tensor
    free: list[tuple[str, ...]]

    def term(self, vector: Tensor, reference: Tensor, weight: Tensor, proper: Tensor) -> Tensor:
        r""":math:`U_0` of one vector ``(D,)``."""
        m = torch.einsum("na,gnb->gba", vector[self.columns], reference)
        trace, last = (_trace_of_few if m.shape[-1] <= _FEW else _trace_of_axes)(m)
        if m.shape[-1] <= _MOST_PROPER:
            trace = trace - proper * (1 - _hand(m)) * last
        return -(weight * trace).sum()

    def hold(self, energy: Callable[[Tensor], Tensor], vectors: Tensor, prior: Tensor, best: Tensor) -> None:
        """Find what turns freely at fits and at draws of the prior ``(P, D)``, and hold it as in ``best`` ``(D,)``.

        Fits alone do not tell: a rotation leaves numbers that are all 0 as they are.
        """
        self.weight.zero_()
        self.proper.zero_()
        self.free = []
        candidates = [(0, slice(0, len(self.columns)), self.names)]
        if len(self.names) > 1:
            candidates += [(i, self.rows[i], (name,)) for i, name in enumerate(self.names)]
        for number, rows, names in candidates:
            for proper in (False, True):
                if self._is_free(energy, vectors, prior, rows, proper):
                    self._hold(number, rows, names, prior, best, proper)
                    break
            if len(self.free) == 1 and self.free[0] == self.names:
                return  # all together

    def _hold(
        self, number: int, rows: slice, names: tuple[str, ...], prior: Tensor, best: Tensor, proper: bool
    ) -> None:
        self.free.append(names)
        points = best[self.columns[rows]]
        _, lengths, axes = torch.linalg.svd(points, full_matrices=False)
        size = prior[:, self.columns[rows]].square().sum((-2, -1)).mean().sqrt()
        if lengths[-1] < _FLAT * lengths[0] or lengths[0] < _SMALL * size:
            return  # no axes to hold them by
        # The longest axis first: the first one decides how much noise the orientation has.
        reference = points @ axes.mT
        self.reference[number] = 0.0
        self.reference[number, rows] = reference / reference.square().mean().sqrt()
        self.weight[number], self.proper[number] = KAPPA, float(proper)

    def _is_free(
        self, energy: Callable[[Tensor], Tensor], vectors: Tensor, prior: Tensor, rows: slice, proper: bool
    ) -> bool:
        columns = self.columns[rows]
        if len(columns) < columns.shape[-1] or (proper and columns.shape[-1] > _MOST_PROPER):
            return False  # fewer points than dimensions have no orientation
        mixed = vectors.clone()
        mixed[:, columns] = prior[:, columns]
        # Some draws of a wide prior are so far out that energies have few digits left.
        return (
            self._turns(energy, vectors, columns, proper) == 1.0
            and self._turns(energy, mixed, columns, proper) > _LEAST
        )

    def _turns(self, energy: Callable[[Tensor], Tensor], vectors: Tensor, columns: Tensor, proper: bool) -> float:
        """The share of vectors of which these columns can be turned, and the energy does not change."""
        before, after = energy(vectors), energy(_randomly_turned(vectors, columns, proper))
        known = before.isfinite()
        # What a large energy has lost to rounding is seen from numbers that differ in their last digits.
        eps = torch.finfo(vectors.dtype).eps
        shaken = [energy(vectors * (1 + eps * torch.randn_like(vectors))) for _ in range(_SHAKEN)]
        noise = (torch.stack(shaken) - before).abs().amax(0).nan_to_num(torch.inf)
        tolerance = (eps**0.4 * (1 + before.abs())).clamp(max=_VISIBLE) + _SHAKEN * noise
        return ((before - after).abs() <= tolerance)[known].double().mean().nan_to_num(0.0).item()

    def disoriented(self, vectors: Tensor) -> Tensor:
        """The vectors ``(P, D)``, with all that is held in an orientation at random."""
        for number in self.weight.nonzero().flatten().tolist():
            columns = self.columns[self.reference[number].any(-1)]
            vectors = _randomly_turned(vectors, columns, bool(self.proper[number]))
        return vectors

    def hands(self, vectors: Tensor) -> dict[tuple[str, ...], Tensor]:
        """Which mirror images vectors ``(..., D)`` are, 1 or -1, by the sites of which these are told apart."""
        return {
            names: _hand(torch.einsum("...na,nb->...ba", vectors[..., self.columns], self.reference[number]))
            for names in self.free
            for number in [0 if names == self.names else self.names.index(names[0])]
            if bool(self.proper[number]) and bool(self.weight[number])
        }

    def loosen(self, vectors: Tensor) -> bool:
        """Let go of sites whose draws ``(P, D)`` have no shape to hold, and tell whether there are any."""
        held = self.weight.nonzero().flatten().tolist()
        for number in held:
            m = torch.einsum("pna,nb->pab", vectors[:, self.columns], self.reference[number])
            lengths = torch.linalg.qr(m).R.diagonal(dim1=-2, dim2=-1).abs()
            short = (lengths < _SHORT * lengths.mean(0)).any(-1).double().mean()
            if short > _MOST_SHORT:
                self.weight[number] = 0.0
        return len(held) > len(self.weight.nonzero())

    def turned(self, vectors: Tensor) -> Tensor:
        """The vectors ``(P, D)``, with all that is free in the orientation that is preferred."""
        out = vectors.clone()
        for number in self.weight.nonzero().flatten().tolist():
            m = torch.einsum("pna,nb->pab", vectors[:, self.columns], self.reference[number])
            q, t = torch.linalg.qr(m)
            q = q * torch.where(t.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype).unsqueeze(-2)
            if bool(self.proper[number]):
                q[..., -1] *= _hand(q).unsqueeze(-1)
            columns = self.columns[self.reference[number].any(-1)]
            out[:, columns] = torch.einsum("pba,pnb->pna", q, vectors[:, columns])
        return out


def _randomly_turned(vectors: Tensor, columns: Tensor, proper: bool) -> Tensor:
    """The vectors ``(P, D)``, with the numbers in these columns ``(N, d)`` of each turned by a matrix of its own.

    They are mirrored too, if not only proper rotations are asked for: two reflections are a rotation.
    """
    dim = columns.shape[-1]
    q, _ = torch.linalg.qr(torch.randn(len(vectors), dim, dim, dtype=vectors.dtype, device=vectors.device))
    q[..., 0] *= (q.det().sign() if proper else -q.det().sign()).unsqueeze(-1)
    turned = vectors.clone()
    turned[:, columns] = torch.einsum("pab,pnb->pna", q, vectors[:, columns])
    return turned


def _hand(m: Tensor) -> Tensor:
    """The sign of the determinant of matrices ``(..., d, d)`` of two or three dimensions, 1 or -1."""
    rows = m.unbind(-2)
    if len(rows) == 2:
        (a, b), (c, d) = (row.unbind(-1) for row in rows)
        det = a * d - b * c
    else:
        det = (torch.linalg.cross(rows[0], rows[1]) * rows[2]).sum(-1)
    return torch.where(det < 0, -1.0, 1.0).to(m.dtype)


def _trace_of_axes(m: Tensor) -> tuple[Tensor, Tensor]:
    """The trace of the axes of rows ``(..., d, d)`` by Gram and Schmidt, ``(...)``, and what the last one has of it."""
    axes: list[Tensor] = []
    for row in m.unbind(-2):
        for axis in axes:
            row = row - (row * axis).sum(-1, keepdim=True) * axis
        axes.append(row / (row.square().sum(-1, keepdim=True) + torch.finfo(row.dtype).tiny).sqrt())
    parts = [axis[..., k] for k, axis in enumerate(axes)]
    return torch.stack(parts).sum(0), parts[-1]


def _trace_of_few(m: Tensor) -> tuple[Tensor, Tensor]:
    """The same of few rows, number by number: one kernel, where every vector of the other way is one of its own.

    An axis is a sum of rows, with weights that follow from the products of rows alone. Of a row that is parallel
    to those before it rounding leaves nothing, and its axis might have any length.
    """
    limits = torch.finfo(m.dtype)
    all_products = (m.unsqueeze(-2) * m.unsqueeze(-3)).sum(-1)
    rows, products = ([row.unbind(-1) for row in x.unbind(-2)] for x in (m, all_products))
    trace: Any = 0.0
    last: Any = 0.0
    weights: list[Any] = []
    for k, own in enumerate(products):
        along = [sum(map(mul, axis, own)) for axis in weights]
        length = torch.maximum(own[k] - sum(map(square, along)), limits.eps * own[k] + limits.tiny).rsqrt()
        axis = [-sum(map(mul, along[b:], (w[b] for w in weights[b:]))) * length for b in range(k)] + [length]
        last = sum(map(mul, axis, (row[k] for row in rows))).clamp(-1.0, 1.0)
        trace = trace + last
        weights.append(axis)
    return trace, last


def blocks(shapes: Mapping[str, torch.Size], like: Tensor, may_turn: Collection[str] | None = None) -> list[Block]:
    """The sites whose numbers may be vectors, by dimension; all that have more than one, if none are named."""
    found: dict[int, list[tuple[str, Tensor]]] = {}
    start = 0
    for name, shape in shapes.items():
        if len(shape) >= 1 and shape[-1] >= 2 and (may_turn is None or name in may_turn):
            columns = torch.arange(start, start + shape.numel(), device=like.device).reshape(-1, shape[-1])
            found.setdefault(shape[-1], []).append((name, columns))
        start += shape.numel()
    out = []
    for dim, sites in found.items():
        columns = torch.cat([c for _, c in sites])
        if len(columns) < dim:
            continue
        ends = torch.tensor([len(c) for _, c in sites]).cumsum(0).tolist()
        rows = tuple(slice(end - len(c), end) for end, (_, c) in zip(ends, sites, strict=True))
        reference = torch.randn(len(sites), len(columns), dim, dtype=like.dtype, device=like.device)
        names = tuple(name for name, _ in sites)
        weight, proper = torch.zeros_like(reference[:, 0, 0]), torch.zeros_like(reference[:, 0, 0])
        out.append(Block(names, columns, rows, reference, weight, proper, []))
    return out
