// Pointers, wheel and keyboard.

const STILL = 5; // pixels that a click may wander
const TWICE = 350; // milliseconds between the two clicks of a double click
const ARROWS = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };

function control(app) {
  const { scene, top } = app, pointers = new Map();
  let grip = null, travelled = 0, pinch = null, lastTap = { time: -Infinity, x: 0, y: 0 }, waiting = null;

  const at = (event) => {
    const box = top.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const reach = (event) => (event.pointerType === "touch" ? 22 : 12);

  top.addEventListener("pointerdown", (event) => {
    top.setPointerCapture(event.pointerId);
    top.focus({ preventScroll: true });
    app.stop();
    const here = at(event);
    pointers.set(event.pointerId, here);
    if (pointers.size === 1) {
      travelled = 0;
      grip = scene.toDisc(here.x, here.y);
    } else {
      travelled = Infinity;
      pinch = spread();
    }
    event.preventDefault();
  });

  top.addEventListener("pointermove", (event) => {
    const here = at(event);
    if (!pointers.has(event.pointerId)) {
      point(here, event);
      return;
    }
    const before = pointers.get(event.pointerId);
    pointers.set(event.pointerId, here);
    travelled += Math.hypot(here.x - before.x, here.y - before.y);
    if (pointers.size === 2) {
      const now = spread();
      scene.drag(scene.toDisc(pinch.x, pinch.y), scene.toDisc(now.x, now.y));
      scene.enlarge(now.length / pinch.length, now.x, now.y);
      pinch = now;
      app.moved();
    } else if (pointers.size === 1 && travelled > STILL) {
      const to = scene.toDisc(here.x, here.y);
      if (scene.drag(grip, to)) {
        grip = to;
      }
      top.classList.add("held");
      app.hover(-1);
      app.moved();
    }
  });

  function spread() {
    const [a, b] = [...pointers.values()];
    return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, length: Math.max(Math.hypot(a.x - b.x, a.y - b.y), 1) };
  }

  const release = (event) => {
    if (!pointers.delete(event.pointerId)) {
      return;
    }
    top.classList.remove("held");
    if (event.type === "pointerup" && travelled <= STILL && pointers.size === 0) {
      tap(at(event), event);
    }
    for (const left of pointers.values()) {
      grip = scene.toDisc(left.x, left.y);
    }
  };
  top.addEventListener("pointerup", release);
  top.addEventListener("pointercancel", release);
  top.addEventListener("pointerleave", () => pointers.size || app.hover(-1));

  // One look per frame, at the last place of the pointer.
  function point(here, event) {
    if (waiting === null) {
      requestAnimationFrame(() => {
        const { x, y, within } = waiting;
        waiting = null;
        app.hover(scene.nearest(x, y, within));
      });
    }
    waiting = { ...here, within: reach(event) };
  }

  function tap(here, event) {
    const twice = event.timeStamp - lastTap.time < TWICE && Math.hypot(here.x - lastTap.x, here.y - lastTap.y) < 30;
    lastTap = { time: twice ? -Infinity : event.timeStamp, ...here };
    if (twice) {
      app.home();
      return;
    }
    const i = scene.nearest(here.x, here.y, reach(event));
    if (i >= 0) {
      app.centre(i);
    } else {
      app.select(-1);
    }
  }

  top.addEventListener(
    "wheel",
    (event) => {
      // Inside of another page the wheel scrolls that page until the picture has been clicked.
      if (window !== window.parent && document.activeElement !== top && !event.ctrlKey) {
        return;
      }
      event.preventDefault();
      app.stop();
      const lines = event.deltaMode === 1 ? 20 : 1, here = at(event);
      scene.enlarge(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0016)), here.x, here.y);
      app.moved();
    },
    { passive: false },
  );

  const keys = {
    "+": () => zoomBy(app, 1.25),
    "=": () => zoomBy(app, 1.25),
    "-": () => zoomBy(app, 0.8),
    Home: () => app.home(),
    h: () => app.home(),
    v: () => {
      const names = Object.keys(scene.views);
      app.setView(names[(names.indexOf(scene.view) + 1) % names.length]);
    },
    t: () => app.setTheme(app.theme === "dark" ? "light" : "dark"),
    "/": () => document.getElementById("search").focus(),
    Escape: () => app.select(-1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if (event.key in ARROWS) {
      const [x, y] = ARROWS[event.key], size = scene.K === 0 ? scene.reach / 2 : 1;
      app.stop();
      scene.move(translation((x * size) / scene.zoom, (y * size) / scene.zoom, scene.K));
      app.moved();
    } else if (Object.hasOwn(keys, event.key)) {
      keys[event.key]();
    } else {
      return;
    }
    event.preventDefault();
  });
}

function zoomBy(app, factor) {
  app.stop();
  app.scene.enlarge(factor, app.scene.width / 2, app.scene.height / 2);
  app.moved();
}
