"""The site in headless Chromium, from a folder: desktop, phone and dark.

Without a browser these are skipped; IVVI_BROWSER=required makes that a failure.
"""

import os
import shutil
import subprocess
import sys

import pytest

from helpers import ROOT

pytestmark = pytest.mark.thorough

SCREENS = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}
PAGES = ("index", "instrument", "mathematics", "planning", "cheatsheet", "api", "faq", "rivals")

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const channels = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = (rgb) => {
    const part = [...rgb].slice(0, 3).map((v) => {
      v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const rgba = channels(getComputedStyle(node).backgroundColor);
      if (rgba[3] > 250) return rgba;
    }
    return channels("white");
  };
  const low = [];
  for (const node of document.querySelectorAll(".md-content :is(p, li, td)")) {
    const ground = behind(node), ink = channels(getComputedStyle(node).color);
    const alpha = ink[3] / 255;
    const mixed = [0, 1, 2].map((i) => alpha * ink[i] + (1 - alpha) * ground[i]);
    const [a, b] = [light(mixed), light(ground)].sort((p, q) => q - p);
    if ((a + 0.05) / (b + 0.05) < 4.5 && node.textContent.trim())
      low.push(node.textContent.slice(0, 40));
  }
  return low;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site once."""
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(target)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        check=True,
    )
    return target


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None and os.environ.get("IVVI_BROWSER") != "required":
        pytest.skip("no Chromium is installed")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


def open_page(browser, site, name, screen):
    """Open a page over file://; return it and what it said or asked the network for."""
    page, met = browser.new_context(**SCREENS[screen]).new_page(), []
    page.on("console", lambda m: met.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: met.append(str(error)))
    page.on("request", lambda r: met.append(r.url) if r.url.startswith("http") else None)
    page.goto((site / f"{name}.html").as_uri())
    page.wait_for_load_state("load")
    return page, met


@pytest.mark.parametrize("screen", SCREENS)
def test_pages_are_quiet_fit_the_screen_and_can_be_read(browser, site, screen):
    for name in PAGES:
        page, met = open_page(browser, site, name, screen)
        assert met == [], name
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{name} is {wide} pixels wider than the screen"
        assert page.evaluate(CONTRAST) == [], name
        page.context.close()


def test_search_works_over_file(browser, site):
    page, met = open_page(browser, site, "index", "desktop")
    page.locator("[data-md-component=search-query]").first.click()
    page.keyboard.type("Anderson-Rubin", delay=20)
    page.wait_for_selector(".md-search-result__link", timeout=20_000)
    links = page.eval_on_selector_all(".md-search-result__link", "all => all.map(a => a.href)")
    assert any("inference.html" in link for link in links)
    assert all(link.startswith("file://") for link in links)
    assert met == []
    page.context.close()


def test_formulas_are_set_in_the_font_that_comes_with_the_site(browser, site):
    """A radical or a sum from a font without mathematics would be as high as a letter."""
    page, _ = open_page(browser, site, "mathematics", "desktop")
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.fonts.check('16px \"ivvi math\"')")
    used = "getComputedStyle(document.querySelector('math')).fontFamily"
    assert "ivvi math" in page.evaluate(used)
    box = "(s) => document.querySelector(s).getBoundingClientRect().height"
    assert page.evaluate(box, "msqrt") > 1.2 * page.evaluate(box, "mi")
    page.context.close()
