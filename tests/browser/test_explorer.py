"""The page of ``plotting.explore`` in a real browser, by real pointer events."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, plotting
from pyro_hyperbolic.geometry import Euclidean, Manifold, Sphere, Stereographic
from tests.browser.driver import PATIENCE, Browser, Page
from tests.browser.scene import DOUBLE, middle, seen_at, spread

pytestmark = pytest.mark.browser

SPACES: list[Manifold] = [
    PoincareBall(1.0),
    PoincareBall(0.3),
    Lorentz(2.0),
    PoincareBall(0.0),
    Euclidean(),
    Sphere(1.5),
    Stereographic(-0.5),
    Stereographic(0.5),
]
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\"'`${window.hacked = 3}<!--",
    "مرحبا 🦊 \u2028 end",
    "&lt;b&gt; & <b>bold</b>",
]


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """Points of three classes, with everything that a page can have."""
    ball = PoincareBall(0.7)
    points = spread(ball)
    distribution = hdist.WrappedNormal(points, 0.3, ball)
    images = torch.zeros(30, 8, 8)
    images[torch.arange(30), torch.arange(30) % 8] = 1
    plotting.explore(
        points,
        ball,
        tmp_path / "page.html",
        labels=[["ant", "bee", "cat"][i % 3] for i in range(30)],
        names=[f"node {i}" for i in range(30)],
        images=images,
        edges=torch.tensor([[i // 2, i] for i in range(1, 30)]),
        scales=distribution,
        draws=distribution.sample((7,)),
        title="Thirty points",
        description="Animals.",
    )
    with browser.page(tmp_path / "page.html") as found:
        yield found
        assert found.troubles() == []


def distances(page: Page) -> torch.Tensor:
    script = "Array.from({length: explorer.data.count}, (_, i) => explorer.scene.distance(i, j))"
    rows = page.run(f"Array.from({{length: explorer.data.count}}, (_, j) => {script})")
    return torch.tensor(rows, dtype=DOUBLE)


@pytest.mark.parametrize("manifold", SPACES, ids=str)
def test_drags_keep_our_distances(browser: Browser, manifold: Manifold, tmp_path: Path) -> None:
    points = spread(manifold)
    ours = manifold.pairwise_dist(points, points)
    plotting.explore(points, manifold, tmp_path / "page.html")
    with browser.page(tmp_path / "page.html") as page:
        torch.testing.assert_close(distances(page), ours, rtol=1e-12, atol=1e-12)
        views = page.run("Object.keys(explorer.scene.views)")
        for view in views:
            page.press(f"input[value={view}]") if len(views) > 1 else None
            page.run("explorer.scene.zoom = 1")
            x, y = middle(page)
            page.drag((x, y), (x + 60, y + 30), (x - 120, y + 80), (x - 30, y - 90), (x + 10, y - 10))
            page.rest()
            torch.testing.assert_close(distances(page), ours, rtol=1e-10, atol=1e-10)
        assert page.run("Math.hypot(explorer.scene.g[2], explorer.scene.g[3])") > 0.01  # it did move
        assert page.troubles() == []


@pytest.mark.parametrize("view", ["poincare", "klein", "equidistant"])
def test_the_grabbed_point_follows_the_pointer(page: Page, view: str) -> None:
    page.press(f"input[value={view}]")
    page.rest()
    start, (x, y) = seen_at(page, 3), middle(page)
    for end in ((x + 37, y - 55), (x - 150, y + 20)):
        page.drag(start, ((start[0] + end[0]) / 2, y), end)
        start = end
        assert seen_at(page, 3) == pytest.approx(end, abs=0.01)


def test_ten_thousand_drags(browser: Browser, tmp_path: Path) -> None:
    h = Lorentz(1.0)
    v = torch.randn(40, 2, dtype=DOUBLE)
    v = v / v.norm(dim=-1, keepdim=True) * torch.linspace(0.1, 10.0, 40, dtype=DOUBLE)[:, None]
    points = h.from_normal_coords(None, v)
    ours = h.pairwise_dist(points, points)
    plotting.explore(points, h, tmp_path / "page.html")
    script = """(() => {
        const top = explorer.top, box = top.getBoundingClientRect();
        let seed = 1;
        const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
        top.setPointerCapture = () => {};
        const send = (kind, x, y) =>
            top.dispatchEvent(new PointerEvent(kind, {pointerId: 1, clientX: box.left + x, clientY: box.top + y}));
        for (let k = 0; k < 10000; k++) {
            const at = () => [box.width * (0.2 + 0.6 * random()), box.height * (0.2 + 0.6 * random())];
            send("pointerdown", ...at());
            send("pointermove", ...at());
            send("pointerup", ...at());
        }
        return explorer.scene.g;
    })()"""
    with browser.page(tmp_path / "page.html") as page:
        a, b, c, d = page.run(script)
        assert a * a + b * b - c * c - d * d == pytest.approx(1, abs=1e-9)
        torch.testing.assert_close(distances(page), ours, rtol=0, atol=1e-6)


def test_a_click_centres_and_a_double_click_goes_home(page: Page) -> None:
    home = page.run("explorer.scene.g")
    far = page.run("Math.max(...Array.from({length: 30}, (_, i) => explorer.scene.distanceToCentre(i)))")
    page.click(*seen_at(page, 5))
    page.wait("explorer.journey")
    page.rest()
    assert seen_at(page, 5) == pytest.approx(middle(page), abs=0.01)
    assert page.run("explorer.focus.selected") == 5
    assert page.run("document.getElementById('card-name').textContent") == "node 5"
    x, y = middle(page)
    page.wheel(x + 40, y, -300)
    page.click(x + 3, y + 3, 2)
    page.rest()
    assert page.run("explorer.scene.g") == pytest.approx(home, abs=1e-12)
    assert page.run("explorer.scene.zoom") == pytest.approx(1)
    assert page.run("Math.max(...Array.from({length: 30}, (_, i) => explorer.scene.distanceToCentre(i)))") == (
        pytest.approx(far)
    )


def test_the_way_to_the_centre_is_the_geodesic(page: Page) -> None:
    # Half of the way: the point is at half its distance, in its direction.
    script = """(() => {
        const scene = explorer.scene, w = scene.placeOf(4);
        const r = separation(scene.data.points.image(4, scene.g, -1), [0, 0, 1, 0], -1);
        const half = moved(part(translation(-w[0], -w[1], -1), 0.5, -1), w, -1);
        return [Math.atanh(Math.hypot(...half)) * 4 / r, (half[0] * w[1] - half[1] * w[0])];
    })()"""
    # The functions of the page are its own; the object of the page is what it shows.
    assert "separation" not in page.run("Object.keys(window)")
    source = page.run("document.scripts[1].textContent")
    ratio, across = page.run(source.replace("window.explorer = app;", f"window.answer = {script};") + "\nwindow.answer")
    assert ratio == pytest.approx(1)
    assert across == pytest.approx(0, abs=1e-12)


def test_hover_shows_a_card(page: Page) -> None:
    page.hover(*seen_at(page, 7))
    page.wait("!document.getElementById('card').hidden")
    text = page.run("document.getElementById('card').innerText")
    assert "node 7" in text
    assert "bee" in text
    pixels = page.run("Array.from(document.getElementById('thumb').getContext('2d').getImageData(0, 0, 8, 8).data)")
    grey = torch.tensor(pixels).reshape(8, 8, 4)[..., 0]
    expected = torch.zeros(8, 8, dtype=grey.dtype)
    expected[7] = 255
    assert torch.equal(grey, expected)
    x, y = middle(page)
    page.hover(x - 400, y - 300)
    page.wait("document.getElementById('card').hidden")


def test_the_card_has_the_distance_to_the_chosen_point(page: Page) -> None:
    page.click(*seen_at(page, 5))
    page.rest()
    page.hover(*seen_at(page, 9))
    page.wait("explorer.focus.hovered === 9")
    expected = page.run("explorer.scene.distance(5, 9)")
    page.wait(f"document.getElementById('card-other').textContent === '{expected:.4g} from node 5'")


def test_wheel_and_buttons_zoom(page: Page) -> None:
    x, y = middle(page)[0] // 1 + 100, middle(page)[1] // 1 + 50  # a wheel turns at whole pixels
    page.drag(seen_at(page, 3), (x - 9, y), (x, y))
    page.wheel(x, y, -400)
    page.rest()
    assert page.run("explorer.scene.zoom") > 1.5
    assert seen_at(page, 3) == pytest.approx((x, y), abs=0.01)
    before = page.run("explorer.scene.zoom")
    page.press("#farther")
    assert page.run("explorer.scene.zoom") == pytest.approx(0.8 * before)
    page.press("#closer")
    assert page.run("explorer.scene.zoom") == pytest.approx(before)
    page.press("#home")
    page.rest()
    assert page.run("explorer.scene.zoom") == pytest.approx(1)


def test_search(page: Page) -> None:
    page.press("#search")
    page.type("node 2")
    page.wait("explorer.focus.found.length === 11")
    assert page.run("[...document.querySelectorAll('#results button')].map(b => b.textContent)")[0] == "node 2"
    page.press("#results li:nth-child(3) button")
    page.rest()
    assert page.run("explorer.focus.selected") == 21
    page.press("#search")
    page.key("Enter")
    page.wait("explorer.focus.selected === 2")
    page.key("Escape")
    assert page.run("explorer.focus.found.length") == 0
    page.type("nobody")
    assert page.run("document.getElementById('results').textContent") == "no such name"


def test_the_legend_filters(page: Page) -> None:
    names = page.run("[...document.querySelectorAll('#legend button span')].map(s => s.textContent)")
    assert names == ["ant", "bee", "cat"]
    page.press("#legend button:nth-child(2)")
    assert page.run("Array.from(explorer.scene.shown)") == [1, 0, 1]
    page.rest()
    assert page.run("explorer.svg()").count("#") > 0
    page.hover(*seen_at(page, 7))  # a bee
    time.sleep(0.1)
    assert page.run("explorer.focus.hovered") != 7
    page.press("#legend .all")
    assert page.run("Array.from(explorer.scene.shown)") == [1, 1, 1]
    page.press("#legend button:nth-child(3)", count=2)
    page.wait("Array.from(explorer.scene.shown).join() === '0,0,1'")


def test_keyboard(page: Page) -> None:
    def g() -> list[float]:
        return page.run("explorer.scene.g")

    page.press("#overlay")
    before = g()
    for key, axis, sign in (("ArrowLeft", 2, 1), ("ArrowDown", 3, 1), ("ArrowRight", 2, -1), ("ArrowUp", 3, -1)):
        old = g()
        page.key(key)
        assert sign * (g()[axis] - old[axis]) > 0
    page.key("+")
    assert page.run("explorer.scene.zoom") == pytest.approx(1.25)
    page.key("h")
    page.rest()
    assert g() == pytest.approx(before, abs=1e-12)
    for view in ("klein", "equidistant", "poincare"):
        page.key("v")
        assert page.run("explorer.scene.view") == view
        assert page.run("document.querySelector('#views input:checked').value") == view
    page.key("t")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    page.key("/")
    assert page.run("document.activeElement.id") == "search"


def test_toggles_change_the_picture(page: Page) -> None:
    for toggle in ("names", "images", "regions", "draws"):
        page.rest()
        before = page.run("explorer.canvas.toDataURL() + explorer.top.toDataURL()")
        page.press(f"#toggle-{toggle}")
        page.rest()
        assert page.run("explorer.canvas.toDataURL() + explorer.top.toDataURL()") != before


def test_light_and_dark(browser: Browser, page: Page, tmp_path: Path) -> None:
    def corner() -> int:
        page.rest()
        return page.run("explorer.context.getImageData(2, 2, 1, 1).data[0]")

    assert corner() > 250
    page.press("#theme")
    assert corner() < 40
    with browser.page(tmp_path / "page.html", dark=True) as other:
        assert other.run("explorer.theme") == "dark"


def test_every_view_says_what_one_sees(page: Page) -> None:
    seen = set()
    for view in ("poincare", "klein", "equidistant"):
        page.press(f"input[value={view}]")
        page.rest()
        sentence = page.run("document.getElementById('sentence').textContent")
        assert sentence.startswith("Animals. ")
        seen.add(sentence)
    assert len(seen) == 3
    assert page.run("document.title") == page.run("document.getElementById('title').textContent") == "Thirty points"


def test_files(browser: Browser, page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.press("#toggle-images")
    page.hover(*seen_at(page, 7))

    def saved(name: str) -> bytes:
        path = folder / name
        end = time.monotonic() + PATIENCE
        while not path.exists() or path.stat().st_size == 0:
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.2)
        return path.read_bytes()

    page.press("#png")
    image = np.asarray(Image.open(io.BytesIO(saved("latent.png"))).convert("RGB"))
    _, _, width, height = page.box("#overlay")
    assert image.shape[:2] == (2 * round(height), 2 * round(width))
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 20
    page.press("#svg")
    root = ElementTree.fromstring(saved("latent.svg"))
    svg = "{http://www.w3.org/2000/svg}"
    colours = [e.get("fill") for e in root.iter(f"{svg}circle")]
    dots = sum(colours.count(colour) for colour in page.run("explorer.data.classes.map(c => c.colour)"))
    assert dots >= 30
    assert len([e for e in root.iter(f"{svg}path") if e.get("fill") == "none"]) >= 29
    assert len(list(root.iter(f"{svg}image"))) > 5
    assert root.find(f"{svg}title").text == "Thirty points"


@pytest.mark.parametrize("width", [390, 1280])
def test_fits_on_the_screen(browser: Browser, page: Page, tmp_path: Path, width: int) -> None:
    with browser.page(tmp_path / "page.html", width, 844, touch=width < 600) as small:
        assert small.run("document.documentElement.scrollWidth") <= width
        for button in ("#home", "#png", "#svg", "#search", "#views", "#legend button"):
            left, _, wide, high = small.box(button)
            assert left >= 0
            assert left + wide <= width
            assert high >= 24
        _, _, wide, high = small.box("#overlay")
        assert min(wide, high) > 300


def test_touch(browser: Browser, page: Page, tmp_path: Path) -> None:
    with browser.page(tmp_path / "page.html", 390, 844, touch=True) as phone:
        x, y = middle(phone)
        at = seen_at(phone, 3)
        phone.touch("touchStart", at)
        phone.touch("touchMove", (x, y + 60))
        phone.touch("touchEnd")
        assert seen_at(phone, 3) == pytest.approx((x, y + 60), abs=0.01)
        phone.touch("touchStart", (x - 40, y), (x + 40, y))
        phone.touch("touchMove", (x - 80, y), (x + 80, y))
        phone.touch("touchEnd")
        phone.rest()
        assert phone.run("explorer.scene.zoom") == pytest.approx(2, rel=0.02)
        phone.touch("touchStart", seen_at(phone, 3))
        phone.touch("touchEnd")
        phone.rest()
        assert phone.run("document.getElementById('card-name').textContent") == "node 3"
        assert seen_at(phone, 3) == pytest.approx(middle(phone), abs=0.01)
        assert phone.troubles() == []


def test_hostile_text_is_text(browser: Browser, tmp_path: Path) -> None:
    ball = PoincareBall(1.0)
    points = spread(ball, len(HOSTILE), 0.6)
    plotting.explore(
        points, ball, tmp_path / "page.html", labels=HOSTILE, names=HOSTILE, title=HOSTILE[0], description=HOSTILE[1]
    )
    with browser.page(tmp_path / "page.html") as page:
        for i, name in enumerate(HOSTILE):
            page.run(f"explorer.hover({i})")
            page.wait(f"document.getElementById('card-name').textContent === {json.dumps(name)}")
        assert page.run("document.title") == HOSTILE[0]
        labels = page.run("[...document.querySelectorAll('#legend button span')].map(s => s.textContent)")
        assert sorted(labels) == sorted(HOSTILE)
        page.press("#search")
        page.type("img")
        assert page.run("document.querySelector('#results button').textContent") == HOSTILE[1]
        ElementTree.fromstring(page.run("explorer.svg()"))
        assert page.run("typeof window.hacked") == "undefined"
        assert page.run("document.querySelectorAll('img, b').length") == 0
        assert page.troubles() == []


@pytest.mark.parametrize(
    "distribution",
    [
        lambda x, ball: hdist.WrappedNormal(
            x, manifold=ball, scale_tril=torch.tensor([[0.5, 0.0], [0.3, 0.2]]).double()
        ),
        lambda x, ball: hdist.RiemannianNormal(x, 0.6, ball),
    ],
    ids=["wrapped", "riemannian"],
)
def test_regions_hold_their_share(browser: Browser, distribution: Any, tmp_path: Path) -> None:
    ball = PoincareBall(0.7)
    points = spread(ball, 5, 0.8)
    posterior = distribution(points, ball).expand((5,))
    plotting.explore(points, ball, tmp_path / "page.html", scales=posterior)
    with browser.page(tmp_path / "page.html") as page:
        page.run("explorer.scene.zoom = 1")
        for k, share in enumerate((0.5, 0.9)):
            script = f"explorer.scene.region(i, explorer.data.regions[{k}].tril).map(p => explorer.scene.toDisc(...p))"
            borders = page.run(f"[0, 1, 2, 3, 4].map(i => {script})")
            z = torch.tensor(borders, dtype=DOUBLE) / math.sqrt(0.7)
            noise = posterior.to_noise(z.transpose(0, 1)).norm(dim=-1)
            expected = torch.full_like(noise, math.sqrt(-2 * math.log(1 - share)))
            torch.testing.assert_close(noise, expected, rtol=1e-5, atol=0)


def test_numbers_get_a_scale(browser: Browser, tmp_path: Path) -> None:
    ball = PoincareBall(1.0)
    plotting.explore(spread(ball), ball, tmp_path / "page.html", labels=torch.linspace(-2.5, 4, 30))
    with browser.page(tmp_path / "page.html") as page:
        assert page.run("[...document.querySelectorAll('.ends span')].map(s => s.textContent)") == ["-2.5", "4"]
        assert page.run("new Set(explorer.data.colours).size") == 30
        assert page.troubles() == []


def test_center_is_home(browser: Browser, tmp_path: Path) -> None:
    h = Lorentz(0.5)
    points = spread(h, 9, 2.0)
    plotting.explore(points, h, tmp_path / "page.html", center=4)
    with browser.page(tmp_path / "page.html") as page:
        assert page.run("explorer.scene.distanceToCentre(4)") == pytest.approx(0, abs=1e-12)
        page.key("ArrowLeft")
        page.press("#home")
        page.rest()
        assert seen_at(page, 4) == pytest.approx(middle(page), abs=0.01)


def test_in_a_notebook(browser: Browser, tmp_path: Path) -> None:
    ball = PoincareBall(1.0)
    shown = plotting.explore(spread(ball), ball, None, names=[*HOSTILE, *"abcdefghijklmnopqrstuvwxy"])._repr_html_()
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><meta charset=utf-8>{shown}<script>explorer = {{frames: 1}}</script>"
    )
    with browser.page(tmp_path / "notebook.html") as page:
        end = time.monotonic() + PATIENCE
        while True:
            page.screenshot(tmp_path / "notebook.png")
            image = np.asarray(Image.open(tmp_path / "notebook.png").convert("RGB"))
            dots = np.abs(image.astype(int) - [0x32, 0x77, 0xB8]).sum(-1) < 40
            if dots.sum() > 100:
                break
            assert time.monotonic() < end, "no dots were drawn"
            time.sleep(0.2)
        assert page.troubles() == []
