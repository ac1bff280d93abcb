// What is seen: the isometry and the picture, and everything projected onto the screen.

const SIZES = [1, 0.85, 0.7, 0.55]; // of dots, from the centre outwards
const LEAST_ZOOM = 0.4, MOST_ZOOM = 200;
const LONGEST_TRAIL = 64; // pieces of a geodesic
// How far the centre may leave the outermost point, and at most the origin, in radii of curvature: double precision
// keeps exp(distance) * 1e-16 of a picture whose centre is that far out.
const BEYOND = 2, FARTHEST = 34;

class Scene {
  constructor(data) {
    this.data = data;
    this.K = data.K;
    this.views = VIEWS[String(this.K)];
    this.view = Object.keys(this.views)[0];
    this.g = data.home.slice();
    this.zoom = 1;
    this.shown = new Uint8Array(data.classes ? data.classes.length : 1).fill(1);
    this.trail = new Float64Array(2 * LONGEST_TRAIL + 2);
    this.reach = this.reachOfPoints();
    this.farthest = this.farthestCentre();
    this.resize(100, 100, 1);
  }

  // The distance from the centre at home that holds nearly all points.
  reachOfPoints() {
    const { points, home, count } = this.data, K = this.K;
    const step = Math.max(1, Math.floor(count / 20000)), radii = [];
    for (let i = 0; i < count; i += step) {
      const x = points.image(i, home, K);
      radii.push(radiusOf(Math.hypot(x[0], x[1]), K));
    }
    radii.sort((a, b) => a - b);
    return radii.length ? radii[Math.floor(0.995 * (radii.length - 1))] || 1 : 1;
  }

  farthestCentre() {
    const { q } = this.data.points;
    let most = Math.hypot(this.data.home[2], this.data.home[3]);
    for (let i = 0; i < q.length; i += 2) {
      most = Math.max(most, Math.abs(q[i]), Math.abs(q[i + 1]));
    }
    return this.K < 0 ? Math.min(radiusOf(Math.SQRT2 * most, this.K) + BEYOND, FARTHEST) : Infinity;
  }

  resize(width, height, ratio) {
    this.width = width;
    this.height = height;
    this.ratio = ratio;
  }

  get projection() {
    return this.views[this.view];
  }

  // Pixels of the screen per unit of the picture.
  get scale() {
    const { zoom, view, width, height } = this, key = this.scaleKey;
    if (key && key.zoom === zoom && key.view === view && key.width === width && key.height === height) {
      return key.scale;
    }
    const half = (Math.min(width, height) / 2) * 0.96;
    const { bound, stretch } = this.projection;
    const size = sizeAt(Math.min(this.reach, this.K > 0 ? 2.6 : Infinity), this.K);
    const extent = Number.isFinite(bound) ? bound : 1.05 * (view === "equidistant" ? this.reach : stretch(0) * size);
    this.scaleKey = { zoom, view, width, height, scale: (zoom * half) / extent };
    return this.scaleKey.scale;
  }

  toScreen(w) {
    const f = this.scale * this.projection.stretch(w[0] * w[0] + w[1] * w[1]);
    return [this.width / 2 + f * w[0], this.height / 2 - f * w[1]];
  }

  // The place of the disc under a place of the screen, no nearer to the rim than a hand can be exact.
  toDisc(x, y) {
    const s = this.scale;
    let px = (x - this.width / 2) / s, py = -(y - this.height / 2) / s;
    const size = Math.hypot(px, py);
    const f = this.projection.unstretch(Math.min(size, this.projection.bound));
    px *= f;
    py *= f;
    const limit = this.K < 0 ? 0.995 : this.K > 0 ? 30 : Infinity, far = Math.hypot(px, py);
    return far > limit ? [(px * limit) / far, (py * limit) / far] : [px, py];
  }

  // Move everything by an isometry of the screen; false if that would leave the points too far behind.
  move(h) {
    const g = composed(h, this.g, this.K);
    if (!(radiusOf(Math.hypot(g[2], g[3]), this.K) <= this.farthest)) {
      return false;
    }
    this.g = g;
    return true;
  }

  drag(from, to) {
    return this.move(shift(from, to, this.K));
  }

  // Enlarge the picture; what is under (x, y) stays there.
  enlarge(factor, x, y) {
    const before = this.toDisc(x, y);
    this.zoom = Math.min(Math.max(this.zoom * factor, LEAST_ZOOM), MOST_ZOOM);
    this.move(shift(before, this.toDisc(x, y), this.K));
  }

  placeOf(i) {
    return place(this.data.points.image(i, this.g, this.K));
  }

  // Places of every `stride`-th point of a set, of the disc and of the screen.
  project(set, stride) {
    const [ar, ai, br, bi] = this.g, K = this.K, { q, p, w, x, y, count } = set;
    const cx = this.width / 2, cy = this.height / 2, scale = this.scale, { stretch } = this.projection;
    const polar = this.view === "equidistant";
    for (let i = 0; i < count; i += stride) {
      const qr = q[2 * i], qi = q[2 * i + 1], pr = p[i];
      const ur = ar * qr - ai * qi + br * pr, ui = ar * qi + ai * qr + bi * pr;
      const vr = -K * (br * qr + bi * qi) + ar * pr, vi = -K * (br * qi - bi * qr) - ai * pr;
      const n = 1 / (vr * vr + vi * vi);
      const wr = (ur * vr + ui * vi) * n, wi = (ui * vr - ur * vi) * n;
      w[2 * i] = wr;
      w[2 * i + 1] = wi;
      const ww = wr * wr + wi * wi;
      let f = scale;
      if (polar) {
        const size = Math.sqrt(ur * ur + ui * ui);
        f *= ww > 1e-12 ? (K < 0 ? radiusOf(size, K) : 2 * Math.atan2(size, Math.sqrt(1 / n))) / Math.sqrt(ww) : 2;
      } else {
        f *= stretch(ww);
      }
      x[i] = cx + f * wr;
      y[i] = cy - f * wi;
    }
  }

  isShown(i) {
    return this.shown[this.data.index[i]] === 1;
  }

  // Radius of a dot in pixels of the page.
  get dotSize() {
    const n = this.data.count;
    const base = n <= 300 ? 5 : n <= 2000 ? 3.8 : n <= 10000 ? 2.7 : n <= 50000 ? 2 : 1.1;
    return base * Math.min(Math.max(Math.sqrt(this.zoom), 0.7), 2.5);
  }

  sizeOf(ww) {
    return this.K < 0 ? SIZES[Math.min(3, Math.max(0, Math.floor(ww * ww * 4)))] : 1;
  }

  paint(raster, stride, theme) {
    const { points, draws } = this.data;
    this.project(points, this.data.edges.length && stride > 1 ? 1 : stride);
    raster.clear();
    this.paintEdges(raster, stride, theme);
    if (draws && this.showDraws) {
      this.project(draws, stride);
      this.paintSet(raster, draws, stride, 1.3, 110, this.data.perPoint);
    }
    this.paintSet(raster, points, stride, this.dotSize, this.data.count > 20000 ? 200 : 235, 1);
  }

  paintSet(raster, set, stride, size, opacity, perPoint) {
    const { colours, shapes, index } = this.data, { w, x, y, count } = set, ratio = this.ratio, shown = this.shown;
    const looks = SHAPES.map((_, shape) => SIZES.map((s) => raster.stamps(shape, s * size * ratio)));
    for (let i = 0; i < count; i += stride) {
      const k = perPoint === 1 ? i : (i / perPoint) | 0;
      if (shown[index[k]]) {
        const ww = w[2 * i] * w[2 * i] + w[2 * i + 1] * w[2 * i + 1];
        const level = this.K < 0 ? Math.min(3, (ww * ww * 4) | 0) : 0;
        raster.dot(x[i] * ratio, y[i] * ratio, looks[shapes[k]][level], colours[k], opacity);
      }
    }
  }

  paintEdges(raster, stride, theme) {
    const { edges, points, index } = this.data, { w, x, y } = points, ratio = this.ratio, shown = this.shown;
    const count = edges.length / 2, width = ratio * (count > 5000 ? 0.8 : 1.1), opacity = count > 5000 ? 110 : 190;
    for (let e = 0; e < count; e += stride) {
      const i = edges[2 * e], j = edges[2 * e + 1];
      if (!shown[index[i]] || !shown[index[j]] || this.isOutside(x[i], y[i], x[j], y[j])) {
        continue;
      }
      const n = this.trace(w[2 * i], w[2 * i + 1], w[2 * j], w[2 * j + 1], x[i], y[i], x[j], y[j]), { trail } = this;
      for (let k = 2; k < 2 * n; k += 2) {
        raster.line(
          trail[k - 2] * ratio, trail[k - 1] * ratio, trail[k] * ratio, trail[k + 1] * ratio, width, theme.edge, opacity,
        );
      }
    }
  }

  isOutside(x0, y0, x1, y1) {
    // Both ends far on one side: an arc of the disc bulges towards its middle only.
    const m = 2 * Math.max(this.width, this.height);
    return (x0 < -m && x1 < -m) || (y0 < -m && y1 < -m) || (x0 > 2 * m && x1 > 2 * m) || (y0 > 2 * m && y1 > 2 * m);
  }

  // The geodesic from u to v, drawn at f and t, on the screen: its corners go to `trail`, in as many pieces as its bend
  // needs, and their number is returned. Chords of the hyperboloid or of the sphere are projected back; steps are even in
  // the angle of an arc that ends at the rim.
  trace(ur, ui, vr, vi, fx, fy, tx, ty) {
    const { trail, K } = this;
    trail[0] = fx;
    trail[1] = fy;
    let steps = 1;
    if (this.view !== "klein" && this.view !== "plane") {
      const uu = ur * ur + ui * ui, vv = vr * vr + vi * vi, hu = 1 / (1 + uu), hv = 1 / (1 + vv);
      const tu = (1 - K * uu) * hu, tv = (1 - K * vv) * hv;
      const scale = this.scale, { stretch } = this.projection, cx = this.width / 2, cy = this.height / 2;
      const put = (share, at) => {
        const a = 2 * (1 - share) * hu, b = 2 * share * hv, x = a * ur + b * vr, y = a * ui + b * vi;
        const h = (1 - share) * tu + share * tv, n = 1 / (h + Math.sqrt(Math.max(h * h + K * (x * x + y * y), 0)));
        const wr = x * n, wi = y * n, f = scale * stretch(wr * wr + wi * wi);
        trail[at] = cx + f * wr;
        trail[at + 1] = cy - f * wi;
      };
      put(0.5, 2);
      const bend = Math.hypot(trail[2] - (fx + tx) / 2, trail[3] - (fy + ty) / 2);
      const polar = this.view === "equidistant" && Math.hypot(fx - tx, fy - ty) > 30;
      if (bend >= 0.4 || polar) {
        steps = Math.min(Math.max(Math.ceil(1.6 * Math.sqrt(bend)), polar ? 12 : 2), LONGEST_TRAIL);
        for (let j = 1; j < steps; j++) {
          put((1 - Math.cos((Math.PI * j) / steps)) / 2, 2 * j);
        }
      }
    }
    trail[2 * steps] = tx;
    trail[2 * steps + 1] = ty;
    return steps + 1;
  }

  // The same as a list of corners.
  curve(u, v, from, to) {
    const n = this.trace(...u, ...v, ...from, ...to), out = [];
    for (let k = 0; k < n; k++) {
      out.push([this.trail[2 * k], this.trail[2 * k + 1]]);
    }
    return out;
  }

  // The border of the region of a point: the image, under the exponential map, of an ellipse around it.
  region(i, tril) {
    const { points } = this.data, K = this.K, at = [points.p[i], 0, points.q[2 * i], points.q[2 * i + 1]];
    const whole = composed(this.g, at, K), out = [];
    for (let k = 0; k < 72; k++) {
      const phi = (2 * Math.PI * k) / 72, c = Math.cos(phi), s = Math.sin(phi);
      const vx = tril[3 * i] * c, vy = tril[3 * i + 1] * c + tril[3 * i + 2] * s;
      const r = Math.hypot(vx, vy), f = r > 0 ? 1 / r : 0;
      const q = K < 0 ? Math.sinh(r / 2) : K > 0 ? Math.sin(r / 2) : r / 2;
      const p = K < 0 ? Math.cosh(r / 2) : K > 0 ? Math.cos(r / 2) : 1;
      out.push(this.toScreen(place(image(whole, q * f * vx, q * f * vy, p, K))));
    }
    return out;
  }

  nearest(x, y, within) {
    const { points, count } = this.data;
    let best = -1, least = within * within;
    for (let i = 0; i < count; i++) {
      const dx = points.x[i] - x, dy = points.y[i] - y, d = dx * dx + dy * dy;
      if (d < least && this.isShown(i)) {
        best = i;
        least = d;
      }
    }
    return best;
  }

  distance(i, j) {
    const { points } = this.data;
    return this.data.unit * separation(points.image(i, this.g, this.K), points.image(j, this.g, this.K), this.K);
  }

  distanceToCentre(i) {
    const x = this.data.points.image(i, this.g, this.K);
    return this.data.unit * separation(x, [0, 0, 1, 0], this.K);
  }
}
