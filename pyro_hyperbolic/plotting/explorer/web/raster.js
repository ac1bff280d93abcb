// Dots and lines written into a buffer of pixels: on two cores of any machine this is many times faster than paths of
// a canvas. Colours are 0xBBGGRR, as the buffer has them; coverage and opacity are 0 to 255.

class Raster {
  constructor(width, height, background) {
    this.width = width;
    this.height = height;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.background = background;
    this.sprites = new Map();
  }

  clear() {
    this.pixels.set(this.background);
  }

  blend(at, colour, alpha) {
    const d = this.pixels[at], s = 256 - alpha - (alpha >> 7), a = 256 - s;
    const rb = (Math.imul(d & 0xff00ff, s) + Math.imul(colour & 0xff00ff, a)) >>> 8;
    const g = (Math.imul(d & 0x00ff00, s) + Math.imul(colour & 0x00ff00, a)) >>> 8;
    this.pixels[at] = 0xff000000 | (rb & 0xff00ff) | (g & 0x00ff00);
  }

  // A marker of this radius at 4 x 4 places within a pixel.
  stamps(shape, radius) {
    const key = shape * 1024 + Math.round(radius * 8);
    let found = this.sprites.get(key);
    if (found === undefined) {
      found = [];
      for (let k = 0; k < 16; k++) {
        found.push(this.stamp(SHAPES[shape], radius, k >> 2, k & 3));
      }
      this.sprites.set(key, found);
    }
    return found;
  }

  // Offsets and coverages of the pixels of a marker.
  stamp(inside, radius, fx, fy) {
    const reach = Math.ceil(radius * 1.3) + 1, offsets = [], alphas = [];
    for (let y = -reach; y <= reach; y++) {
      for (let x = -reach; x <= reach; x++) {
        let hits = 0;
        for (let k = 0; k < 64; k++) {
          const px = x + ((k & 7) + 0.5) / 8 - (fx + 0.5) / 4, py = y + ((k >> 3) + 0.5) / 8 - (fy + 0.5) / 4;
          hits += inside(px / radius, py / radius) ? 1 : 0;
        }
        if (hits > 0) {
          offsets.push(y * this.width + x);
          alphas.push(Math.round((hits * 255) / 64));
        }
      }
    }
    return { offsets: Int32Array.from(offsets), alphas: Uint8Array.from(alphas), reach };
  }

  dot(x, y, stamps, colour, opacity) {
    const ix = Math.floor(x), iy = Math.floor(y), r = stamps[0].reach;
    if (!(ix >= r && iy >= r && ix < this.width - r && iy < this.height - r)) {
      return; // also where x or y is no number
    }
    const { offsets, alphas } = stamps[(((x - ix) * 4) << 2) | ((y - iy) * 4)];
    const base = iy * this.width + ix, opaque = 0xff000000 | colour;
    for (let k = 0; k < offsets.length; k++) {
      const alpha = (alphas[k] * opacity) >> 8;
      if (alpha >= 254) {
        this.pixels[base + offsets[k]] = opaque;
      } else {
        this.blend(base + offsets[k], colour, alpha);
      }
    }
  }

  line(x0, y0, x1, y1, width, colour, opacity) {
    const steep = Math.abs(y1 - y0) > Math.abs(x1 - x0);
    let u0 = steep ? y0 : x0, v0 = steep ? x0 : y0, u1 = steep ? y1 : x1, v1 = steep ? x1 : y1;
    if (u0 > u1) {
      [u0, u1, v0, v1] = [u1, u0, v1, v0];
    }
    const most = steep ? this.height : this.width, across = steep ? this.width : this.height;
    if (u1 < 0 || u0 >= most) {
      return;
    }
    const slope = u1 > u0 ? (v1 - v0) / (u1 - u0) : 0;
    const along = steep ? this.width : 1, side = steep ? 1 : this.width;
    const half = (width * Math.sqrt(1 + slope * slope)) / 2;
    const first = Math.max(Math.round(u0), 0), last = Math.min(Math.round(u1), most);
    const { pixels } = this, red = colour & 0xff00ff, green = colour & 0x00ff00;
    for (let u = first; u < last; u++) {
      const v = v0 + slope * (u + 0.5 - u0), low = v - half, high = v + half;
      const from = Math.max(Math.floor(low), 0), to = Math.min(Math.floor(high), across - 1);
      for (let k = from; k <= to; k++) {
        // As `blend`, which is too slow to call for every pixel of a line.
        const cover = (k + 1 < high ? k + 1 : high) - (k > low ? k : low);
        const at = u * along + k * side, d = pixels[at], a = (cover * opacity) | 0, s = 256 - a;
        const rb = (Math.imul(d & 0xff00ff, s) + Math.imul(red, a)) >>> 8;
        const g = (Math.imul(d & 0x00ff00, s) + Math.imul(green, a)) >>> 8;
        pixels[at] = 0xff000000 | (rb & 0xff00ff) | (g & 0x00ff00);
      }
    }
  }
}

// Markers of radius 1 and about the same area, in the order of the Python table.
const SHAPES = [
  (x, y) => x * x + y * y <= 1,
  (x, y) => y <= 0.85 && y >= 2 * Math.abs(x) * 0.85 - 1.05,
  (x, y) => Math.max(Math.abs(x), Math.abs(y)) <= 0.88,
  (x, y) => Math.abs(x) + Math.abs(y) <= 1.25,
  (x, y) => y >= -0.85 && y <= 1.05 - 2 * Math.abs(x) * 0.85,
  (x, y) => Math.min(Math.abs(x), Math.abs(y)) <= 0.38 && Math.max(Math.abs(x), Math.abs(y)) <= 1.15,
];

// The same outlines as corners, for drawings by paths; none for the circle.
const OUTLINES = [
  null,
  [[0, -1.05], [1.118, 0.85], [-1.118, 0.85]],
  [[-0.88, -0.88], [0.88, -0.88], [0.88, 0.88], [-0.88, 0.88]],
  [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  [[0, 1.05], [-1.118, -0.85], [1.118, -0.85]],
  [[-0.38, -1.15], [0.38, -1.15], [0.38, -0.38], [1.15, -0.38], [1.15, 0.38], [0.38, 0.38],
    [0.38, 1.15], [-0.38, 1.15], [-0.38, 0.38], [-1.15, 0.38], [-1.15, -0.38], [-0.38, -0.38]],
];
