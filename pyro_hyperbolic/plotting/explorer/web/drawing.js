// What is drawn by paths: the disc, rings around chosen points, regions, names. One list of paths serves the canvas and
// the SVG file.

const THEMES = {
  light: { page: "#ffffff", disc: "#f6f7f9", rim: "#5b6472", grid: "#dde1e8", edge: 0xa39a8f, ink: "#16191f", halo: "#ffffff" },
  dark: { page: "#101318", disc: "#181d25", rim: "#8d97a8", grid: "#2b323d", edge: 0x8a7c70, ink: "#e8ebf0", halo: "#101318" },
};

function circle(x, y, r, style) {
  return { ...style, circle: [x, y, r] };
}

// The page, the disc and circles at equal distances.
function backdrop(scene, theme) {
  const cx = scene.width / 2, cy = scene.height / 2, s = scene.scale, { bound } = scene.projection, out = [];
  if (Number.isFinite(bound)) {
    out.push(circle(cx, cy, bound * s, { fill: theme.disc, stroke: theme.rim, width: 1.2 }));
  }
  const step = gridStep(scene);
  for (let k = 1; k <= 60; k++) {
    const w = sizeAt(k * step, scene.K);
    if (scene.K > 0 && k * step >= Math.PI) {
      break;
    }
    const r = s * (scene.view === "equidistant" ? k * step : w * scene.projection.stretch(w * w));
    if (r > 2 * Math.hypot(cx, cy) || (Number.isFinite(bound) && r > s * bound - 2)) {
      break;
    }
    out.push(circle(cx, cy, r, { stroke: theme.grid, width: 1 }));
  }
  return out;
}

// Of the circles at equal distances, in radii of curvature: 1, or a round number that does not fill the picture.
function gridStep(scene) {
  const widest = scene.K === 0 || scene.view === "equidistant" ? Math.hypot(scene.width, scene.height) / 2 / scene.scale : 1;
  const rough = widest / 8;
  if (rough <= 1 && scene.K !== 0) {
    return 1;
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((k) => k * power >= rough);
}

function marker(x, y, shape, r, style) {
  const corners = OUTLINES[shape];
  return corners ? { ...style, path: corners.map((c) => [x + r * c[0], y + r * c[1]]), closed: true } : circle(x, y, r, style);
}

// Regions, rings, the path between two chosen points, and names.
function overlay(scene, focus, options, theme, fast) {
  const { data } = scene, { points } = data, out = [];
  const chosen = [...new Set([focus.selected, focus.hovered])].filter((i) => i >= 0);
  if (data.regions) {
    const all = options.regions && (!fast || data.count <= 300);
    const which = all ? visible(scene, 2000) : chosen;
    for (const i of which) {
      for (const { tril } of data.regions) {
        const colour = cssOf(data.colours[i]);
        out.push({ path: scene.region(i, tril), closed: true, fill: colour, fillOpacity: 0.1, stroke: colour, width: 1, opacity: 0.8 });
      }
    }
  }
  if (data.draws && !scene.showDraws) {
    for (const i of chosen) {
      for (let k = 0; k < data.perPoint; k++) {
        const [x, y] = scene.toScreen(place(data.draws.image(i * data.perPoint + k, scene.g, scene.K)));
        out.push(circle(x, y, 1.6, { fill: cssOf(data.colours[i]), fillOpacity: 0.6 }));
      }
    }
  }
  if (chosen.length === 2) {
    const [i, j] = chosen, u = scene.placeOf(i), v = scene.placeOf(j);
    out.push({ path: scene.curve(u, v, scene.toScreen(u), scene.toScreen(v)), stroke: theme.ink, width: 1.5, dash: [5, 4] });
  }
  for (const i of focus.found.slice(0, 300)) {
    if (scene.isShown(i)) {
      out.push(circle(points.x[i], points.y[i], scene.dotSize + 3, { stroke: theme.ink, width: 1.2, opacity: 0.7 }));
    }
  }
  for (const i of chosen) {
    const style = { fill: cssOf(data.colours[i]), stroke: theme.ink, width: 2 };
    out.push(marker(...scene.toScreen(scene.placeOf(i)), data.shapes[i], scene.dotSize + 2.5, style));
  }
  if (options.images) {
    out.push(...thumbnails(scene, options.sheet));
  }
  if (data.names && options.names && (!fast || data.count <= 2000)) {
    out.push(...nameTags(scene, chosen, theme));
  }
  return out;
}

function visible(scene, most) {
  const { points, count } = scene.data, out = [];
  for (let i = 0; i < count && out.length < most; i++) {
    if (scene.isShown(i) && points.x[i] > 0 && points.x[i] < scene.width && points.y[i] > 0 && points.y[i] < scene.height) {
      out.push(i);
    }
  }
  return out;
}

const LONGEST_NAME = 40; // characters beside a point; the card has all

const MOST_TAGS = 80, MOST_THUMBNAILS = 250, THUMBNAIL = 26;

function byCentre(scene) {
  const { points } = scene.data, cx = scene.width / 2, cy = scene.height / 2;
  const far = (i) => (points.x[i] - cx) ** 2 + (points.y[i] - cy) ** 2;
  return visible(scene, 20000).sort((i, j) => far(i) - far(j));
}

// Images in the place of points, nearest to the centre first; one that would cover another is left out.
function thumbnails(scene, sheet) {
  const { points, colours } = scene.data, taken = new Map(), out = [];
  const width = THUMBNAIL, height = (THUMBNAIL * sheet.height) / sheet.width;
  for (const i of byCentre(scene)) {
    const x = points.x[i] - width / 2, y = points.y[i] - height / 2;
    const cx = Math.floor(x / width), cy = Math.floor(y / height);
    const near = [-1, 0, 1].flatMap((dx) => [-1, 0, 1].map((dy) => taken.get(`${cx + dx},${cy + dy}`)));
    if (near.every((at) => !at || Math.abs(at[0] - x) >= width || Math.abs(at[1] - y) >= height)) {
      taken.set(`${cx},${cy}`, [x, y]);
      out.push({ thumbnail: i, sheet, box: [x, y, width, height], stroke: cssOf(colours[i]) });
    }
    if (out.length >= MOST_THUMBNAILS) {
      break;
    }
  }
  return out;
}

// Names beside the points, nearest to the centre first; a name that would cover another is left out.
function nameTags(scene, chosen, theme) {
  const { data, width } = scene, { points } = data, cell = [46, 15], taken = new Set(), out = [];
  const order = [...chosen, ...byCentre(scene)];
  for (const i of order) {
    const text = data.name(i), room = 6.5 * Math.min(text.length, LONGEST_NAME), gap = scene.dotSize + 3;
    const right = points.x[i] + gap + room <= width, x = right ? points.x[i] + gap : points.x[i] - gap - room;
    const y = points.y[i] + 4;
    const cells = [];
    for (let cx = Math.floor(x / cell[0]); cx <= Math.floor((x + room) / cell[0]); cx++) {
      for (let cy = Math.floor((y - 11) / cell[1]); cy <= Math.floor((y + 2) / cell[1]); cy++) {
        cells.push(`${cx},${cy}`);
      }
    }
    if (!cells.some((c) => taken.has(c))) {
      cells.forEach((c) => taken.add(c));
      out.push({ text: text.length > LONGEST_NAME ? text.slice(0, LONGEST_NAME - 1) + "…" : text, at: [x, y], ink: theme.ink, halo: theme.halo });
    }
    if (out.length >= MOST_TAGS) {
      break;
    }
  }
  return out;
}

function drawOn(context, items) {
  for (const item of items) {
    context.globalAlpha = 1;
    if (item.text !== undefined) {
      context.font = "12px system-ui, sans-serif";
      context.lineWidth = 3;
      context.lineJoin = "round";
      context.strokeStyle = item.halo;
      context.strokeText(item.text, ...item.at);
      context.fillStyle = item.ink;
      context.fillText(item.text, ...item.at);
      continue;
    }
    if (item.thumbnail !== undefined) {
      drawThumbnail(context, item.sheet, item.thumbnail, ...item.box);
      context.setLineDash([]);
      context.lineWidth = 2;
      context.strokeStyle = item.stroke;
      context.strokeRect(...item.box);
      continue;
    }
    context.beginPath();
    if (item.circle) {
      context.arc(...item.circle, 0, 2 * Math.PI);
    } else {
      item.path.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
      if (item.closed) {
        context.closePath();
      }
    }
    if (item.fill) {
      context.globalAlpha = item.fillOpacity ?? 1;
      context.fillStyle = item.fill;
      context.fill();
    }
    if (item.stroke) {
      context.globalAlpha = item.opacity ?? 1;
      context.strokeStyle = item.stroke;
      context.lineWidth = item.width;
      context.setLineDash(item.dash ?? []);
      context.stroke();
    }
  }
  context.globalAlpha = 1;
}

const MOST_IN_SVG = 100000;

function escaped(text) {
  return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

function svgOf(scene, items, title, theme) {
  const n = (v) => (Math.round(v * 100) / 100).toString();
  const pathOf = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${n(x)} ${n(y)}`).join("");
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${n(scene.width)}" height="${n(scene.height)}"` +
      ` viewBox="0 0 ${n(scene.width)} ${n(scene.height)}">`,
    `<title>${escaped(title)}</title>`,
    `<rect width="100%" height="100%" fill="${theme.page}"/>`,
  ];
  for (const item of items) {
    if (item.text !== undefined) {
      parts.push(
        `<text x="${n(item.at[0])}" y="${n(item.at[1])}" font-family="sans-serif" font-size="12" fill="${item.ink}"` +
          ` stroke="${item.halo}" stroke-width="3" paint-order="stroke">${escaped(item.text)}</text>`,
      );
      continue;
    }
    if (item.thumbnail !== undefined) {
      const [x, y, width, height] = item.box.map(n), canvas = document.createElement("canvas");
      canvas.width = item.sheet.width;
      canvas.height = item.sheet.height;
      drawThumbnail(canvas.getContext("2d"), item.sheet, item.thumbnail, 0, 0, canvas.width, canvas.height);
      const place = `x="${x}" y="${y}" width="${width}" height="${height}"`;
      parts.push(
        `<image ${place} href="${canvas.toDataURL()}"/>`,
        `<rect ${place} fill="none" stroke="${item.stroke}" stroke-width="2"/>`,
      );
      continue;
    }
    const style =
      ` fill="${item.fill ?? "none"}" fill-opacity="${item.fillOpacity ?? 1}"` +
      (item.stroke ? ` stroke="${item.stroke}" stroke-width="${item.width}" stroke-opacity="${item.opacity ?? 1}"` : "") +
      (item.dash ? ` stroke-dasharray="${item.dash.join(" ")}"` : "");
    parts.push(
      item.circle
        ? `<circle cx="${n(item.circle[0])}" cy="${n(item.circle[1])}" r="${n(item.circle[2])}"${style}/>`
        : `<path d="${pathOf(item.path)}${item.closed ? "Z" : ""}"${style}/>`,
    );
  }
  parts.push("</svg>");
  return parts.join("\n");
}

// Edges and dots as paths, for the file. Dots of more than MOST_IN_SVG points are thinned.
function vectorScene(scene, theme) {
  const { data } = scene, { points, edges } = data, out = [];
  for (let e = 0; e < edges.length / 2; e++) {
    const i = edges[2 * e], j = edges[2 * e + 1];
    if (scene.isShown(i) && scene.isShown(j)) {
      const path = scene.curve(
        [points.w[2 * i], points.w[2 * i + 1]], [points.w[2 * j], points.w[2 * j + 1]],
        [points.x[i], points.y[i]], [points.x[j], points.y[j]],
      );
      out.push({ path, stroke: cssOf(theme.edge), width: 1, opacity: 0.7 });
    }
  }
  const dots = visible(scene, Infinity), stride = Math.ceil(dots.length / MOST_IN_SVG);
  for (let k = 0; k < dots.length; k += stride) {
    const i = dots[k], ww = points.w[2 * i] ** 2 + points.w[2 * i + 1] ** 2;
    const style = { fill: cssOf(data.colours[i]), fillOpacity: 0.92 };
    out.push(marker(points.x[i], points.y[i], data.shapes[i], scene.dotSize * scene.sizeOf(ww), style));
  }
  return out;
}
