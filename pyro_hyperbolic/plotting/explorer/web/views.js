// Pictures of the surface. Each view moves a place w of the disc along its radius: `stretch` is the factor, as a
// function of |w|^2, and `unstretch` the factor back, as a function of the size in the picture.

const VIEWS = {
  "-1": {
    poincare: {
      title: "Poincaré",
      stretch: () => 1,
      unstretch: () => 1,
      bound: 1,
      text: "The disc is the whole hyperbolic plane: its rim is infinitely far away, and what looks small near the rim" +
        " is as large as what is in the middle. Drag to bring it there.",
    },
    klein: {
      title: "Klein",
      stretch: (ww) => 2 / (1 + ww),
      unstretch: (s) => 1 / (1 + Math.sqrt(Math.max(1 - s * s, 0))),
      bound: 1,
      text: "The disc is the whole hyperbolic plane, drawn so that shortest paths are straight; its rim is infinitely" +
        " far away. Drag to bring to the middle what looks small near the rim.",
    },
    equidistant: {
      title: "Equidistant",
      stretch: (ww) => (ww > 1e-12 ? (2 * Math.atanh(Math.min(Math.sqrt(ww), 1 - 1e-16))) / Math.sqrt(ww) : 2),
      unstretch: (s) => (s > 1e-6 ? Math.tanh(s / 2) / s : 0.5),
      bound: Infinity,
      text: "How far a point is from the centre is true to scale, and so is its direction; circles across are drawn too" +
        " short, the more so the farther out. Drag to put another point in the centre.",
    },
  },
  "0": {
    plane: {
      title: "Plane",
      stretch: () => 2,
      unstretch: () => 0.5,
      bound: Infinity,
      text: "The plane as it is. Drag to move it.",
    },
  },
  "1": {
    stereographic: {
      title: "Stereographic",
      stretch: () => 1,
      unstretch: () => 1,
      bound: Infinity,
      text: "A sphere, projected from the point opposite to the centre: angles are true, and the far side is drawn large." +
        " Drag to turn it.",
    },
    equidistant: {
      title: "Equidistant",
      stretch: (ww) => (ww > 1e-12 ? (2 * Math.atan(Math.sqrt(ww))) / Math.sqrt(ww) : 2),
      unstretch: (s) => (s > 1e-6 ? Math.tan(Math.min(s, 3.1) / 2) / s : 0.5),
      bound: Math.PI,
      text: "A sphere; how far a point is from the centre is true to scale. The rim is the point opposite. Drag to turn it.",
    },
  },
};
