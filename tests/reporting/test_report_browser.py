"""Reports in headless Chromium: quiet, alone, readable on a phone, and not to be tricked.

Without a browser these are skipped; IVVI_BROWSER=required makes that a failure.
"""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

import ivvi
from helpers import make_rows
from ivvi.reporting.demo_page import WORDS, demo_page
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.page import render
from ivvi_reproduction.report_page import report_page
from ivvi_reproduction.results import BandCurve, ResultFigure, Results, ResultTable
from page_checks import EVIL

pytestmark = pytest.mark.thorough

PHONE = {"width": 390, "height": 844}


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


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Write a report of each kind; names and titles everywhere try to run a script."""
    folder = tmp_path_factory.mktemp("pages")
    rows = make_rows(40, 20)
    named = {"x0": EVIL, "a0": f"a {EVIL}", "z0": f"z {EVIL} and a name that goes on" + "_on" * 40}
    columns = {named.get(name, name): values for name, values in rows.items()}
    log = ivvi.read_logs(
        columns,
        state=[EVIL, "x1"],
        action=[named["a0"], "a1"],
        instrument=[named["z0"], "z1"],
    )
    fit = ivvi.estimate(log)
    ivvi.report(fit, folder / "fit.html", value=make_worth())
    (folder / "results.html").write_text(render(report_page(make_results())), encoding="utf-8")
    (folder / "story.html").write_text(render(make_story(fit, folder)), encoding="utf-8")
    return folder


def make_worth():
    """Return the value of a policy as `ivvi value --json` writes it."""
    amount = {"estimate": -10.0, "se": 1.0, "interval": [-12.0, -8.0]}
    return {
        **{"policy": EVIL, "level": 0.95, "replanned": True, "horizon": 20, "draws": 500},
        **{"discount": 1.0, "starts": EVIL, "method": "asymptotic", "shown_by_the_log": -3.5},
        **{"warning": "WEAK INSTRUMENTS: the numbers below may be far off", "notes": [EVIL]},
        "values": {EVIL: amount, "least-squares": amount, "zero": amount},
        "gains": {"least-squares": {**amount, "probability": 0.01}},
    }


def make_results():
    """Return the results of an imagined run: wide tables, missing cells, curves with bands."""
    t = np.arange(1, 40)
    names = ("instrument", "least squares", "optimal", "setting I", "exact, I", "<b>b</b>")
    curves = tuple(
        BandCurve(
            name, t, i + 1 / t, i + 0.5 / t, i + 2 / t, "setting I" if "exact" in name else ""
        )
        for i, name in enumerate(names)
    )
    command = "ivvi reproduce linear --quick --out results"
    figures = tuple(
        ResultFigure(f"linear-{k}", f"k = {k}: Loss", "t", "loss", curves, "It falls.", "", command)
        for k in (5, 10, 20)
    )
    figures += (replace(figures[0], name="other", title=EVIL, log_x=True, log_y=True),)
    rows = tuple(
        (f"k = {k}", word, 2.0**k, None if k == 7 else -0.5 * k, 1.5**k, "12.3 to 4.5", EVIL)
        for k in (10, 5, 7, 20)
        for word in ("Baseline", "I", "II")
    )
    columns = ("variant", "setting", "paper", "as the paper", "best", "in words", EVIL)
    tables = tuple(
        ResultTable(f"{word}-regret", f"Regret, {word}", columns, rows, "A note.", command)
        for word in ("linear", "nonlinear")
    )
    return Results("The paper, reproduced", tables, figures, {"seeds": 5, EVIL: [EVIL, {"a": 1}]})


def make_story(fit, folder):
    """Tell the demo's story with made-up walks and a made-up bill."""
    rng = np.random.default_rng(0)
    truth = fit.W + 0.01
    states = {"instrument": rng.normal(size=(9, 2)), "least squares": 5 + rng.normal(size=(9, 2))}
    walks = {
        name: {
            "states": x.tolist(),
            "cost": np.arange(9.0).tolist(),
            "distance": np.abs(rng.normal(size=(3, 9))).tolist(),
        }
        for name, x in states.items()
    }
    amount = {"mean": -100.0, "se": 1.0, "interval": [-102.0, -98.0]}
    policies = {name: {"return": amount, "regret": amount} for name in WORDS}
    facts = {
        **{"simulator": EVIL, "seed": 0, "n": 780, "world": "--env linear", "W_true": truth},
        **{"error_iv": 0.1, "error_least_squares": 1.0, "wrong_signs_least_squares": 2},
        **{"evaluation": {"episodes": 8, "horizon": 9, "policies": policies}, "walks": walks},
    }
    return demo_page(FitView(fit), facts, folder)


@pytest.fixture(params=["fit", "story", "results"])
def opened(request, browser, pages):
    """Open a page on a phone; nothing may be said, asked for or thrown."""
    context = browser.new_context(viewport=PHONE)
    page, met = context.new_page(), []
    page.on("console", lambda message: met.append(message.text))
    page.on("pageerror", lambda error: met.append(str(error)))
    page.on("dialog", lambda dialog: (met.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda asked: met.append(asked.url))
    address = (pages / f"{request.param}.html").as_uri()
    page.goto(address)
    yield page
    assert met == [address]
    context.close()


def test_nothing_is_wider_than_a_phone(opened):
    width = "[document.documentElement.scrollWidth, window.innerWidth]"
    assert opened.evaluate(width) == [PHONE["width"]] * 2
    opened.set_viewport_size({"width": 320, "height": 600})
    assert opened.evaluate(width) == [320] * 2


def test_every_picture_has_height_and_words(opened):
    boxes = opened.eval_on_selector_all(
        "svg[role=img]",
        "all => all.map(s => [s.getBoundingClientRect().height, s.getAttribute('aria-label')])",
    )
    assert boxes
    for height, words in boxes:
        assert height > 100
        assert words
    inside = "all => all.filter(t => t.getBBox().width > 0).length"
    assert opened.eval_on_selector_all("svg[role=img] text", inside) > 10


def test_text_is_large_enough_on_a_phone(opened):
    sizes = opened.eval_on_selector_all(
        "svg[role=img]",
        "all => all.map(s => 11 * s.getBoundingClientRect().width / s.viewBox.baseVal.width)",
    )
    assert min(sizes) > 9.5


def test_tables_sort_by_click_and_by_key(opened):
    for table in opened.query_selector_all("table"):
        for column, button in enumerate(table.query_selector_all("th button")):
            button.scroll_into_view_if_needed()
            button.click()
            assert button.evaluate("b => b.parentElement.ariaSort") == "ascending"
            check_sorted(values(table, column), down=False)
            button.focus()
            opened.keyboard.press("Enter")
            assert button.evaluate("b => b.parentElement.ariaSort") == "descending"
            check_sorted(values(table, column), down=True)


def values(table, column):
    script = f"t => [...t.tBodies[0].rows].map(r => r.cells[{column}].dataset.value)"
    return table.evaluate(script)


def check_sorted(found, *, down):
    known = [value for value in found if value]
    assert found == known + [""] * (len(found) - len(known))  # what is missing stands last
    try:
        known = [float(value) for value in known]
    except ValueError:
        return  # text is sorted as the reader's language wants it
    assert known == sorted(known, reverse=down)


def test_names_of_columns_cannot_run_as_code(opened):
    """Even markup that got past the template could not run: the policy knows one script."""
    assert EVIL in opened.evaluate("document.body.textContent")
    assert opened.evaluate("document.scripts.length") == 1


def test_an_injected_script_does_not_run(browser, pages):
    page = browser.new_page()
    text = (pages / "fit.html").read_text()
    page.set_content(text.replace("</main>", "<script>window.hit = 1</script></main>"))
    assert page.evaluate("window.hit") is None
    page.close()


def test_the_page_follows_the_system_until_the_reader_chooses(browser, pages):
    for scheme, other in (("light", "dark"), ("dark", "light")):
        page = browser.new_page(color_scheme=scheme)
        page.goto((pages / "fit.html").as_uri())
        before = darkness(page)
        assert (before < 100) == (scheme == "dark")
        page.get_by_role("button", name=other.capitalize(), exact=True).click()
        assert (darkness(page) < 100) == (other == "dark")
        page.emulate_media(media="print")
        assert darkness(page) == 255  # paper is white
        page.close()


def darkness(page):
    """Return the red part of the background, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return int(colour.split("(")[1].split(",")[0])


def test_a_page_prints_in_full(browser, pages, tmp_path):
    page = browser.new_page()
    page.goto((pages / "story.html").as_uri())
    assert page.pdf(path=tmp_path / "page.pdf", format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.is_hidden("#theme")
    assert page.is_hidden(".controls")
    page.close()


def test_policies_walk_unless_motion_is_unwanted(browser, pages):
    said = {}
    for motion in ("no-preference", "reduce"):
        context = browser.new_context(reduced_motion=motion)
        page = context.new_page()
        page.goto((pages / "story.html").as_uri())
        page.locator("figure[data-walk] .picture").first.scroll_into_view_if_needed()
        page.wait_for_timeout(250)
        said[motion] = page.inner_text(".controls span")
        page.locator(".controls input").fill("3")
        assert page.inner_text(".controls span").startswith(
            "step 3 of 8, cost so far: instrument 3"
        )
        drawn = page.eval_on_selector(".walk-iv path", "p => p.getAttribute('d').split('L').length")
        assert drawn == 4
        context.close()
    assert said["reduce"].startswith("step 8 of 8")
    assert not said["no-preference"].startswith("step 8 of 8")
