// What Python packed: numbers as base64 of little-endian arrays, everything else as JSON.

function bytes(text) {
  const binary = atob(text), out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) {
    out[i] = binary.charCodeAt(i);
  }
  return out;
}

const KINDS = { f8: Float64Array, f4: Float32Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array };

function unpacked(packed) {
  return packed === null ? null : new KINDS[packed.kind](bytes(packed.data).buffer);
}

function colourOf(hex) {
  const n = parseInt(hex.slice(1), 16);
  return ((n & 0xff) << 16) | (n & 0xff00) | (n >> 16);
}

function cssOf(colour) {
  return "#" + [colour & 0xff, (colour >> 8) & 0xff, colour >> 16].map((v) => v.toString(16).padStart(2, "0")).join("");
}

class PointSet {
  constructor(q, K) {
    this.q = q;
    this.count = q.length / 2;
    this.p = new Float64Array(this.count);
    for (let i = 0; i < this.count; i++) {
      const size = Math.hypot(q[2 * i], q[2 * i + 1]);
      this.p[i] = K < 0 ? Math.hypot(1, size) : K > 0 ? Math.sqrt(Math.max((1 - size) * (1 + size), 0)) : 1;
    }
    // Places of the disc and of the screen, as last drawn.
    this.w = new Float32Array(2 * this.count);
    this.x = new Float32Array(this.count);
    this.y = new Float32Array(this.count);
  }

  image(i, g, K) {
    return image(g, this.q[2 * i], this.q[2 * i + 1], this.p[i], K);
  }
}

class Data {
  constructor(raw) {
    this.K = raw.sign;
    this.unit = raw.unit;
    this.title = raw.title;
    this.description = raw.description;
    this.home = raw.home;
    this.points = new PointSet(unpacked(raw.points), this.K);
    this.count = this.points.count;
    this.names = raw.names;
    this.edges = unpacked(raw.edges) || new Uint32Array(0);
    this.regions = raw.regions && raw.regions.map((r) => ({ level: r.level, tril: unpacked(r.tril) }));
    this.draws = raw.draws && new PointSet(unpacked(raw.draws), this.K);
    this.perPoint = this.draws ? this.draws.count / this.count : 0;
    this.images = raw.images;
    this.setLabels(raw.labels);
  }

  setLabels(labels) {
    this.labels = labels;
    this.classes = labels && labels.kind === "classes" ? labels.classes : null;
    this.colours = new Uint32Array(this.count);
    this.shapes = new Uint8Array(this.count);
    this.index = this.classes ? unpacked(labels.index) : new Uint16Array(this.count);
    this.values = labels && labels.kind === "numbers" ? unpacked(labels.values) : null;
    const scale = this.values && bytes(labels.scale);
    for (let i = 0; i < this.count; i++) {
      if (this.classes) {
        const look = this.classes[this.index[i]];
        this.colours[i] = colourOf(look.colour);
        this.shapes[i] = look.shape;
      } else if (this.values) {
        const share = (this.values[i] - labels.low) / (labels.high - labels.low || 1);
        const at = 3 * Math.round(255 * Math.min(Math.max(share, 0), 1));
        this.colours[i] = (scale[at + 2] << 16) | (scale[at + 1] << 8) | scale[at];
      } else {
        this.colours[i] = colourOf("#3277b8");
      }
    }
  }

  name(i) {
    return this.names ? this.names[i] : `point ${i}`;
  }

  label(i) {
    if (this.classes) {
      return this.classes[this.index[i]].name;
    }
    return this.values ? String(Number(this.values[i].toPrecision(6))) : null;
  }
}

// All thumbnails in one image, and where that of a point is.
function sheetOf({ data, width, height, columns }, loaded) {
  const image = new Image();
  image.onload = loaded;
  image.src = `data:image/png;base64,${data}`;
  return { image, width, height, at: (i) => [(i % columns) * width, Math.floor(i / columns) * height] };
}

function drawThumbnail(context, sheet, i, x, y, width, height) {
  if (sheet.image.complete) {
    context.imageSmoothingEnabled = width < sheet.width;
    context.drawImage(sheet.image, ...sheet.at(i), sheet.width, sheet.height, x, y, width, height);
  }
}
