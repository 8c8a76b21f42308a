"""The site: pages made from the code are current, it builds without a warning, asks nobody."""

import html.parser
import inspect
import os
import re
import subprocess
import sys

import pytest

import ivvi
from helpers import ROOT

pytestmark = pytest.mark.thorough

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site once, warnings being errors."""
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(target)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


def test_pages_made_from_the_code_are_current():
    """Otherwise run ``python tools/pages.py``."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "pages.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


class Requests(html.parser.HTMLParser):
    """Collect what a browser would fetch for a page."""

    def __init__(self):
        super().__init__()
        self.targets, self.ids, self.anchors = [], set(), []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and found.get("href", "").startswith("#"):
            self.anchors.append(found["href"][1:])
        fetched = tag != "link" or found.get("rel") not in ("canonical", "next", "prev")
        if tag in LOADED and LOADED[tag] in found and fetched:
            self.targets.append(found[LOADED[tag]])


def test_a_page_loads_nothing_from_elsewhere_and_its_anchors_exist(site):
    pages = sorted(site.glob("*.html"))
    assert len(pages) > 25
    for page in pages:
        seen = Requests()
        seen.feed(page.read_text())
        assert [t for t in seen.targets if re.match(r"(https?:)?//", t)] == [], page.name
        for target in seen.targets:
            if not target.startswith(("data:", "/")):
                assert (site / target).exists(), f"{page.name} -> {target}"
        assert [a for a in seen.anchors if a and a not in seen.ids] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import", style.read_text()), style.name


def test_formulas_are_mathml_with_numbers(site):
    page = (site / "mathematics.html").read_text()
    numbers = re.findall(r"<span class='number'>\((\d+)\)", page)
    assert numbers == [str(i + 1) for i in range(len(numbers))]
    assert len(numbers) > 15
    assert page.count("<math") > 40
    assert "formula-" not in page
    assert "$" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S)


def test_every_public_name_is_in_the_reference(site):
    page = (site / "api.html").read_text()
    things = [getattr(ivvi, name) for name in ivvi.__all__]
    names = [f"{one.__module__}.{one.__name__}" for one in things if not inspect.ismodule(one)]
    missing = [name for name in names if f'id="{name}"' not in page]
    assert missing == []


def test_every_page_of_the_folder_is_in_the_navigation():
    """A page that is in no menu is found by nobody."""
    listed = re.findall(r"([a-z_]+\.md)", (ROOT / "mkdocs.yml").read_text())
    assert len(listed) <= 26  # a page more needs one less
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
