// Everything around the picture. Texts of the user are set as text, never as markup.

function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else {
      element.setAttribute(name, value);
    }
  }
  element.append(...children);
  return element;
}

function panel(app) {
  const { data, scene } = app, byId = (id) => document.getElementById(id);
  byId("title").textContent = data.title;
  buildViews(app, byId("views"));
  buildToggles(app, byId("toggles"));
  buildSearch(app, byId("search"), byId("results"));
  if (data.classes) {
    buildLegend(app, byId("legend"));
  } else if (data.values) {
    buildScale(data.labels, byId("legend"));
  } else {
    byId("legend").hidden = true;
  }
  const say = (text) => {
    byId("status").textContent = text;
  };
  byId("home").onclick = () => app.home();
  byId("closer").onclick = () => zoomBy(app, 1.25);
  byId("farther").onclick = () => zoomBy(app, 0.8);
  byId("theme").onclick = () => app.setTheme(app.theme === "dark" ? "light" : "dark");
  byId("png").onclick = async () => {
    download("latent.png", await app.png());
    say("saved latent.png");
  };
  byId("svg").onclick = () => {
    download("latent.svg", new Blob([app.svg()], { type: "image/svg+xml" }));
    say(data.count > MOST_IN_SVG ? `saved latent.svg with at most ${MOST_IN_SVG} of ${data.count} points` : "saved latent.svg");
  };
  const card = new Card(app);
  let last = "";
  app.onChange(() => {
    const text = `${data.description} ${scene.projection.text}`.trim();
    if (text !== last) {
      byId("sentence").textContent = last = text;
    }
    card.update();
    for (const input of byId("views").querySelectorAll("input")) {
      input.checked = input.value === scene.view;
    }
  });
  app.changed();
}

function buildViews(app, box) {
  const entries = Object.entries(app.scene.views);
  for (const [name, { title }] of entries) {
    const input = made("input", { type: "radio", name: "view", value: name, onchange: () => app.setView(name) });
    box.append(made("label", {}, input, made("span", {}, title)));
  }
  box.hidden = entries.length === 1;
}

function buildToggles(app, box) {
  const { data, scene, options } = app;
  const add = (id, text, on, change) => {
    const input = made("input", { type: "checkbox", id });
    input.checked = on;
    input.onchange = () => {
      change(input.checked);
      app.request("full");
    };
    box.append(made("label", {}, input, text));
  };
  if (data.names) {
    add("toggle-names", "names", options.names, (on) => (options.names = on));
  }
  if (data.images) {
    add("toggle-images", "images", options.images, (on) => (options.images = on));
  }
  if (data.regions) {
    const levels = data.regions.map((r) => `${Math.round(100 * r.level)}%`).join(" and ");
    add("toggle-regions", `regions of ${levels}`, options.regions, (on) => (options.regions = on));
  }
  if (data.draws) {
    add("toggle-draws", "posterior draws", scene.showDraws, (on) => (scene.showDraws = on));
  }
}

function buildSearch(app, input, results) {
  const { data } = app;
  const list = () => {
    const found = app.search(input.value);
    results.replaceChildren(
      ...found.slice(0, 8).map((i) => made("li", {}, made("button", { type: "button", onclick: () => app.centre(i) }, data.name(i)))),
    );
    if (found.length > 8) {
      results.append(made("li", { class: "more" }, `and ${found.length - 8} more`));
    } else if (input.value.trim() && !found.length) {
      results.append(made("li", { class: "more" }, "no such name"));
    }
    return found;
  };
  input.addEventListener("input", list);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      const found = list();
      if (found.length) {
        app.centre(found[0]);
      }
    } else if (event.key === "Escape") {
      input.value = "";
      list();
      app.top.focus();
    }
  });
}

// A button for each class: a click hides or shows it, a double click shows it alone.
function buildLegend(app, box) {
  const { data } = app, counts = new Uint32Array(data.classes.length);
  data.index.forEach((k) => (counts[k] += 1));
  const apply = (shown) => {
    app.show(shown);
    buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(shown[k] === 1)));
    all.hidden = shown.every((s) => s === 1);
  };
  const buttons = data.classes.map((look, k) => {
    const swatch = made("canvas", { width: 28, height: 28, "aria-hidden": "true" });
    drawOn(swatch.getContext("2d"), [marker(14, 14, look.shape, 9, { fill: look.colour })]);
    const toggle = () => {
      const shown = app.scene.shown.slice();
      shown[k] = 1 - shown[k];
      apply(shown);
    };
    const alone = () => apply(app.scene.shown.map((_, j) => (j === k ? 1 : 0)));
    return made("button", { type: "button", "aria-pressed": "true", onclick: toggle, ondblclick: alone },
      swatch, made("span", {}, look.name), made("small", {}, counts[k].toLocaleString("en")));
  });
  const all = made("button", { type: "button", class: "all", onclick: () => apply(new Uint8Array(buttons.length).fill(1)) }, "show all");
  all.hidden = true;
  box.append(...buttons, all);
}

function buildScale(labels, box) {
  const canvas = made("canvas", { width: 256, height: 1, class: "scale", "aria-hidden": "true" });
  const context = canvas.getContext("2d"), image = context.createImageData(256, 1), scale = bytes(labels.scale);
  for (let i = 0; i < 256; i++) {
    image.data.set([scale[3 * i], scale[3 * i + 1], scale[3 * i + 2], 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  const number = (v) => String(Number(v.toPrecision(4)));
  box.append(canvas, made("div", { class: "ends" }, made("span", {}, number(labels.low)), made("span", {}, number(labels.high))));
}

class Card {
  constructor(app) {
    this.app = app;
    this.box = document.getElementById("card");
    this.thumb = document.getElementById("thumb");
    const { images } = app.data;
    if (images) {
      this.thumb.width = images.width;
      this.thumb.height = images.height;
      const size = Math.max(1, Math.floor(112 / Math.max(images.width, images.height)));
      this.thumb.style.width = `${size * images.width}px`;
    }
    this.thumb.hidden = !images;
  }

  update() {
    const { app } = this, { focus, data, scene } = app, i = focus.hovered >= 0 ? focus.hovered : focus.selected;
    this.box.hidden = i < 0;
    if (i < 0) {
      return;
    }
    const set = (id, text) => {
      const element = document.getElementById(id);
      element.textContent = text ?? "";
      element.hidden = text === null;
    };
    const label = data.label(i), round = (v) => (v < 1e-9 ? "0" : Number(v.toPrecision(4)).toString());
    set("card-name", data.name(i));
    set("card-label", label);
    set("card-centre", `${round(scene.distanceToCentre(i))} from the centre`);
    const other = focus.selected;
    set("card-other", other >= 0 && other !== i ? `${round(scene.distance(i, other))} from ${data.name(other)}` : null);
    document.getElementById("card-label").style.borderColor = cssOf(data.colours[i]);
    if (app.sheet) {
      drawThumbnail(this.thumb.getContext("2d"), app.sheet, i, 0, 0, app.sheet.width, app.sheet.height);
    }
    const [x, y] = scene.toScreen(scene.placeOf(i)), box = this.box.getBoundingClientRect();
    const right = x + 18 + box.width < scene.width, left = right ? x + 18 : Math.max(x - 18 - box.width, 4);
    this.box.style.left = `${Math.min(Math.max(left, 4), Math.max(scene.width - box.width - 4, 4))}px`;
    this.box.style.top = `${Math.min(Math.max(y - box.height / 2, 4), Math.max(scene.height - box.height - 4, 4))}px`;
  }
}

function download(name, blob) {
  const url = URL.createObjectURL(blob), link = made("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
