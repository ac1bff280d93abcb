"""Makes spheres.json: log-densities on spheres in 30 digits, with mpmath.

python tests/oracle/make_spheres.py
"""

from __future__ import annotations

import json
from pathlib import Path

from mpmath import cos, exp, gamma, inf, log, mp, mpf, nstr, pi, quad, sin

mp.dps = 30

DIMS = (1, 2, 3, 10, 50)
TAUS = ("0.1", "0.7", "1.5", "4")  # scale in units of the radius
ANGLES = ("0.01", "0.5", "1.7", "3.1")
RADIUS = mpf("1.25")


def area(d: int) -> mpf:
    """Of the unit sphere of directions in d dimensions."""
    return 2 * pi ** (mpf(d) / 2) / gamma(mpf(d) / 2)


def wrapped(d: int, tau: mpf, angle: mpf) -> mpf:
    def term(m: int) -> mpf:
        s = angle + 2 * pi * m
        return exp(-s * s / (2 * tau * tau)) * abs(s / sin(angle)) ** (d - 1)

    total = sum(term(m) for m in range(-60, 61))
    return log(total) - mpf(d) / 2 * log(2 * pi) - d * log(tau * RADIUS)


def polar(d: int, energy, angle: mpf) -> mpf:
    # The kernel is narrow or smooth; pieces make the quadrature see it either way.
    points = [pi * k / 40 for k in range(41)]
    z = quad(lambda t: exp(-energy(t)) * sin(t) ** (d - 1), points)
    return -energy(angle) - log(z) - log(area(d)) - d * log(RADIUS)


def rows() -> list[dict[str, float]]:
    out = []
    for d in DIMS:
        for tau in map(mpf, TAUS):
            kappa = 1 / tau**2
            for angle in map(mpf, ANGLES):
                row = {
                    "dim": d,
                    "radius": RADIUS,
                    "scale": tau * RADIUS,
                    "angle": angle,
                    "wrapped": wrapped(d, tau, angle),
                    "riemannian": polar(d, lambda t, k=kappa: t * t * k / 2, angle),
                    "fisher": polar(d, lambda t, k=kappa: k * (1 - cos(t)), angle),
                    "power": polar(d, lambda t, k=kappa: -k * log((1 + cos(t)) / 2) if t < pi else inf, angle),
                }
                out.append(
                    {key: value if isinstance(value, int) else float(nstr(value, 20)) for key, value in row.items()}
                )
    return out


if __name__ == "__main__":
    Path(__file__).with_name("spheres.json").write_text(json.dumps(rows(), indent=0) + "\n")
