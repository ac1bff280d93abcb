// The picture on the page: when to draw, what is in focus, and motions that take time.

const BUDGET = 20; // milliseconds of a frame while something moves; what takes longer is thinned
const REST = 140; // milliseconds without motion after which everything is drawn
const TRAVEL = 650; // milliseconds to bring a point to the centre

class App {
  constructor(data) {
    this.data = data;
    this.scene = new Scene(data);
    this.canvas = document.getElementById("picture");
    this.top = document.getElementById("overlay");
    this.context = this.canvas.getContext("2d");
    this.focus = { selected: -1, hovered: -1, found: [] };
    this.sheet = data.images && sheetOf(data.images, () => this.request("overlay"));
    this.options = {
      names: data.names !== null && data.count <= 500,
      images: false,
      regions: data.regions !== null && data.count <= 100,
    };
    this.scene.showDraws = data.draws !== null && data.draws.count <= 20000;
    this.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    this.thinning = 1; // of the next frame in motion: every so-many-th point is drawn
    this.frames = 0;
    this.stride = 1;
    this.wanted = "";
    this.journey = null;
    this.listeners = [];
    this.setTheme(this.theme);
    new ResizeObserver(() => this.resize()).observe(this.top);
    this.resize();
  }

  get colours() {
    return THEMES[this.theme];
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  resize() {
    const box = this.top.getBoundingClientRect(), ratio = Math.min(window.devicePixelRatio || 1, 2);
    const width = Math.max(box.width, 50), height = Math.max(box.height, 50);
    for (const canvas of [this.canvas, this.top]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.scene.resize(width, height, ratio);
    this.raster = null;
    this.request("full");
  }

  setTheme(theme) {
    this.theme = theme;
    document.documentElement.dataset.theme = theme;
    this.raster = null;
    this.request("full");
  }

  setView(view) {
    this.scene.view = view;
    this.request("full");
    this.changed();
  }

  changed() {
    this.listeners.forEach((listener) => listener());
  }

  // Draw in the next frame: "fast" while something moves, "full" at rest, "overlay" if only the focus changed.
  request(kind) {
    const rank = { "": 0, overlay: 1, fast: 2, full: 3 };
    if (rank[kind] > rank[this.wanted]) {
      if (this.wanted === "") {
        requestAnimationFrame((now) => this.frame(now));
      }
      this.wanted = kind;
    }
  }

  // Something has moved: draw what there is time for now, and everything when it rests.
  moved() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.request("full"), REST);
    this.request("fast");
  }

  frame(now) {
    const kind = this.wanted;
    this.wanted = "";
    if (this.journey) {
      this.travel(now);
    }
    if (kind !== "overlay") {
      this.paint(kind === "fast");
    }
    const context = this.top.getContext("2d"), { ratio } = this.scene;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.scene.width, this.scene.height);
    drawOn(context, this.overlay(kind === "fast"));
    this.frames += 1;
    this.changed();
  }

  overlay(fast) {
    return overlay(this.scene, this.focus, { ...this.options, sheet: this.sheet }, this.colours, fast);
  }

  paint(fast) {
    this.stride = fast ? this.thinning : 1;
    this.rasterFor(this.scene, this.canvas.width, this.canvas.height);
    const start = performance.now();
    this.scene.paint(this.raster, this.stride, this.colours);
    const spent = performance.now() - start;
    this.context.putImageData(this.raster.image, 0, 0);
    // What was drawn in half of the time allows for twice as much in the next frame.
    this.thinning = Math.max(1, spent > BUDGET ? Math.ceil((this.stride * spent) / BUDGET) : spent < BUDGET / 2 ? this.stride >> 1 : this.stride);
  }

  // The buffer of pixels with the disc behind, made anew when its size, the view or the theme change.
  rasterFor(scene, width, height) {
    const key = [width, height, scene.ratio, scene.zoom, scene.view, this.theme].join();
    if (this.raster && this.raster.key === key) {
      return;
    }
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
    context.fillStyle = this.colours.page;
    context.fillRect(0, 0, width, height);
    context.scale(scene.ratio, scene.ratio);
    drawOn(context, backdrop(scene, this.colours));
    const pixels = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
    if (this.raster && this.raster.width === width && this.raster.height === height) {
      this.raster.background = pixels;
    } else {
      this.raster = new Raster(width, height, pixels);
    }
    this.raster.key = key;
  }

  // Move by the isometry h of the screen along its geodesic; `zoom` is where the enlargement ends.
  start(h, zoom) {
    const now = performance.now();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.journey = { h, g: this.scene.g, from: this.scene.zoom, to: zoom, began: now, lasts: still ? 0 : TRAVEL };
    this.request("fast");
  }

  travel(now) {
    const { h, g, from, to, began, lasts } = this.journey;
    const t = lasts > 0 ? Math.min(Math.max((now - began) / lasts, 0), 1) : 1;
    const eased = t * t * (3 - 2 * t);
    this.scene.g = composed(part(h, eased, this.scene.K), g, this.scene.K);
    this.scene.zoom = from * (to / from) ** eased;
    if (t < 1) {
      this.moved();
    } else {
      this.journey = null;
      this.request("full");
    }
  }

  stop() {
    this.journey = null;
  }

  home() {
    this.select(-1);
    this.start(composed(this.data.home, inverse(this.scene.g), this.scene.K), 1);
  }

  centre(i) {
    const w = this.scene.placeOf(i);
    this.select(i);
    this.start(translation(-w[0], -w[1], this.scene.K), this.scene.zoom);
  }

  select(i) {
    this.focus.selected = i;
    this.focus.hovered = -1;
    this.request("overlay");
  }

  hover(i) {
    if (this.focus.hovered !== i) {
      this.focus.hovered = i;
      this.request("overlay");
    }
  }

  search(text) {
    const wanted = text.trim().toLocaleLowerCase(), found = [];
    for (let i = 0; wanted && i < this.data.count; i++) {
      if (this.data.name(i).toLocaleLowerCase().includes(wanted)) {
        found.push(i);
      }
    }
    this.focus.found = found;
    this.request("overlay");
    return found;
  }

  show(shown) {
    this.scene.shown = shown;
    this.request("full");
  }

  items() {
    const { scene, colours } = this;
    scene.project(this.data.points, 1);
    return [...backdrop(scene, colours), ...vectorScene(scene, colours), ...this.overlay(false)];
  }

  svg() {
    return svgOf(this.scene, this.items(), this.data.title, this.colours);
  }

  // The picture with two pixels for one of the page, at least.
  png() {
    const { scene } = this, { ratio } = scene, kept = this.raster;
    const canvas = document.createElement("canvas");
    scene.resize(scene.width, scene.height, Math.max(2, ratio));
    canvas.width = Math.round(scene.width * scene.ratio);
    canvas.height = Math.round(scene.height * scene.ratio);
    this.raster = null;
    this.rasterFor(scene, canvas.width, canvas.height);
    scene.paint(this.raster, 1, this.colours);
    const context = canvas.getContext("2d");
    context.putImageData(this.raster.image, 0, 0);
    context.scale(scene.ratio, scene.ratio);
    drawOn(context, this.overlay(false));
    this.raster = kept;
    scene.resize(scene.width, scene.height, ratio);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }
}
