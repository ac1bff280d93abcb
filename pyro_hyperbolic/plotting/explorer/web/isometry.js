// Isometries of the surface of curvature K: -1 hyperbolic, 0 flat, 1 sphere. Lengths are in units of its radius.
//
// A point at distance r from the origin in direction u (a complex number of size 1) is the pair
//   q = u sinh(r/2), p = cosh(r/2)        (sin and cos on the sphere; u r/2 and 1 in the plane),
// and q/p is its place in the Poincaré disc, or in the stereographic chart. An isometry is the matrix
//   [[a, b], [-K conj(b), conj(a)]],  |a|^2 + K |b|^2 = 1,
// kept as [re a, im a, re b, im b]. Any four numbers with that norm are an isometry to the last bit, so that distances
// do not drift however many are composed. Numbers grow like exp(r/2), not like exp(r) as on the hyperboloid:
// a point at distance r keeps a precision of eps * exp(r) when it is brought to the centre, which is that of its input.

const IDENTITY = Object.freeze([1, 0, 0, 0]);

function normalised(g, K) {
  const n = g[0] * g[0] + g[1] * g[1] + K * (g[2] * g[2] + g[3] * g[3]);
  const s = 1 / Math.sqrt(n);
  return [g[0] * s, g[1] * s, g[2] * s, g[3] * s];
}

// First g, then h.
function composed(h, g, K) {
  return normalised(
    [
      h[0] * g[0] - h[1] * g[1] - K * (h[2] * g[2] + h[3] * g[3]),
      h[0] * g[1] + h[1] * g[0] - K * (h[3] * g[2] - h[2] * g[3]),
      h[0] * g[2] - h[1] * g[3] + h[2] * g[0] + h[3] * g[1],
      h[0] * g[3] + h[1] * g[2] + h[3] * g[0] - h[2] * g[1],
    ],
    K,
  );
}

function inverse(g) {
  return [g[0], -g[1], -g[2], -g[3]];
}

// The translation along a geodesic that takes the origin to the place w of the disc.
function translation(wr, wi, K) {
  const a = 1 / Math.sqrt(1 + K * (wr * wr + wi * wi));
  return [a, 0, wr * a, wi * a];
}

// The pair (q, p) of a point of the disc, or of its image, as [re q, im q, re p, im p].
function image(g, qr, qi, p, K) {
  return [
    g[0] * qr - g[1] * qi + g[2] * p,
    g[0] * qi + g[1] * qr + g[3] * p,
    -K * (g[2] * qr + g[3] * qi) + g[0] * p,
    -K * (g[2] * qi - g[3] * qr) - g[1] * p,
  ];
}

function place(x) {
  const n = x[2] * x[2] + x[3] * x[3];
  return [(x[0] * x[2] + x[1] * x[3]) / n, (x[1] * x[2] - x[0] * x[3]) / n];
}

function moved(g, w, K) {
  return place(image(g, w[0], w[1], 1, K));
}

// The translation along the geodesic from u to v, places of the disc.
function shift(u, v, K) {
  const there = translation(u[0], u[1], K);
  const t = moved(inverse(there), v, K);
  return composed(composed(there, translation(t[0], t[1], K), K), inverse(there), K);
}

// Distance of two pairs: |q1 p2 - q2 p1| is sinh(d/2), and no isometry changes it.
function separation(x, y, K) {
  const re = x[0] * y[2] - x[1] * y[3] - (y[0] * x[2] - y[1] * x[3]);
  const im = x[0] * y[3] + x[1] * y[2] - (y[0] * x[3] + y[1] * x[2]);
  return radiusOf(Math.hypot(re, im), K);
}

function radiusOf(q, K) {
  return 2 * (K < 0 ? Math.asinh(q) : K > 0 ? Math.asin(Math.min(q, 1)) : q);
}

// The size of q/p at distance r.
function sizeAt(r, K) {
  return K < 0 ? Math.tanh(r / 2) : K > 0 ? Math.tan(r / 2) : r / 2;
}

// The part s of an isometry: its translation along its geodesic, and its rotation, at an even pace.
function part(g, s, K) {
  const sign = g[0] < 0 ? -1 : 1;
  const ar = sign * g[0], ai = sign * g[1];
  const n = ar * ar + ai * ai;
  const wr = sign * (g[2] * ar - g[3] * ai) / n, wi = sign * (g[3] * ar + g[2] * ai) / n;
  const size = Math.hypot(wr, wi);
  const r = radiusOf(Math.hypot(g[2], g[3]), K);
  const f = size > 0 ? sizeAt(s * r, K) / size : 0;
  const turn = s * Math.atan2(ai, ar);
  return composed(translation(f * wr, f * wi, K), [Math.cos(turn), Math.sin(turn), 0, 0], K);
}
