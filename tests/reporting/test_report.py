"""Reports as text: what they hold, what they escape, what they refuse."""

import json
import re
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pytest

import ivvi
from helpers import OPTIONS, assert_refused, make_rows, run, write_table
from ivvi.errors import IvviWarning
from ivvi.evaluation import IntervalEstimate, Valuation
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.inline_svg import INK, draw
from ivvi.reporting.page import Picture, decimals_of, format_cell, sort_value
from page_checks import EVIL, ids_of, parse


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write_table(make_rows(40, 25), tmp_path_factory.mktemp("log") / "log.parquet")


@pytest.fixture(scope="module")
def model(log, tmp_path_factory):
    out = tmp_path_factory.mktemp("fit") / "model"
    result = run("fit", log, *OPTIONS, "--out", out, "--report", out.with_name("fit.html"))
    assert result.code == 0, result
    assert f"report: {out.with_name('fit.html')}" in result.out
    return out


@pytest.fixture(scope="module")
def fit(log):
    return ivvi.estimate(ivvi.read_logs(log, state="x*", action="a*", instrument="z*"))


def test_a_report_of_a_saved_model_is_that_of_the_fit(model, log):
    made = model.with_name("again.html")
    assert run("report", model, "--out", made).code == 0
    first, second = (page.read_text() for page in (model.with_name("fit.html"), made))
    place = f"<div><dt>model</dt><dd>{model}</dd></div>\n"
    assert place in second
    assert second.replace(place, "") == first
    assert f"<span>fit</span> <span>{log}</span> <span>--state</span> <span>&#39;x*&#39;" in first
    assert f"<span>--out</span> <span>{model}</span></code>" in first


def test_a_report_of_differences_is_that_of_the_saved_model(log, tmp_path):
    """Their moments are not those of the rows at hand: no first stages are drawn from them."""
    made, out = tmp_path / "fit.html", tmp_path / "model"
    result = run("fit", log, *OPTIONS, "--difference", "--out", out, "--report", made)
    assert result.code == 0, result.err
    assert run("report", out, "--out", tmp_path / "again.html").code == 0
    place = f"<div><dt>model</dt><dd>{out}</dd></div>\n"
    assert (tmp_path / "again.html").read_text().replace(place, "") == made.read_text()


def test_a_page_stands_alone(model):
    text = model.with_name("fit.html").read_text()
    assert text.startswith("<!doctype html>")
    assert not re.search(r"(src|href)=\"(?!#)", text)
    assert "url(" not in re.sub(r"url\(#[\w.-]+\)", "", text)
    assert "@import" not in text
    assert len(text) < 400_000


def test_ids_are_unique_and_references_lead_somewhere(model):
    text = model.with_name("fit.html").read_text()
    ids = ids_of(text)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"href=\"#([^\"]+)\"", text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert used
    assert used <= set(ids)


def test_every_picture_says_what_it_shows(model):
    pictures = [tag for tag in parse(model.with_name("fit.html").read_text()) if tag[0] == "svg"]
    drawn = [attributes for _, attributes in pictures if "aria-hidden" not in attributes]
    assert len(drawn) >= 8
    for attributes in drawn:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 20


def test_the_numbers_of_the_page_are_those_of_the_fit(fit, tmp_path):
    text = ivvi.report(fit, tmp_path / "fit.html").read_text()
    for value in (*fit.W.ravel(), *fit.se.ravel(), *fit.baseline.W.ravel()):
        assert f'data-value="{float(value)}"' in text
    for stage in fit.diagnostics.first_stage:
        assert f'data-value="{stage.partial_f.value}"' in text
    assert fit.diagnostics.verdict.word.capitalize() in text


def test_first_stages_of_the_sample_are_those_of_all_rows(fit):
    """The sample holds all rows here, so that its regression is the log's."""
    seen = FitView(fit)
    batch = seen.sample
    assert len(batch) == fit.moments.n
    ones = np.ones((len(batch), 1))
    inside, psi = np.hstack([ones, batch.x]), np.hstack([ones, batch.x, batch.z])

    def project(basis, y):
        return basis @ np.linalg.lstsq(basis, y, rcond=None)[0]

    for k, (name, predicted, actual) in enumerate(seen.first_stages):
        a = batch.a[:, k]
        assert name == f"a{k}"
        np.testing.assert_allclose(actual, a - project(inside, a), atol=1e-9)
        np.testing.assert_allclose(predicted, project(psi, a) - project(inside, a), atol=1e-9)
    left = seen.residuals["iv"]
    np.testing.assert_allclose(psi.T @ left, 0, atol=1e-7)


def test_names_of_columns_are_text_and_nothing_else(tmp_path):
    rows = make_rows(20, 20)
    columns = {EVIL if name == "x0" else name: values for name, values in rows.items()}
    columns["$a_{0}$"] = columns.pop("a0")
    log = ivvi.read_logs(columns, state=[EVIL, "x1"], action=["$a_{0}$", "a1"], instrument="z*")
    text = ivvi.report(ivvi.estimate(log), tmp_path / "evil.html").read_text()
    assert "&lt;script&gt;" in text
    assert "$a_{0}$" in text
    assert len([tag for tag in parse(text) if tag[0] == "script"]) == 1
    assert not [tag for tag in parse(text) if any(name.startswith("on") for name in tag[1])]


def test_least_squares_alone_is_reported_as_such(log, tmp_path):
    read = ivvi.read_logs(log, state="x*", action="a*", instrument="z*")
    fit = ivvi.estimate(read, method="least-squares")
    text = ivvi.report(fit, tmp_path / "ls.html").read_text()
    assert "with the instrument, 95% interval" not in text
    assert set(FitView(fit).estimates) == {"ls"}


def test_sums_and_models_without_moments_have_shorter_reports(log, tmp_path):
    done = run("fit", log, *OPTIONS, "--out", tmp_path / "model", "--without-moments")
    assert done.code == 0
    assert run("report", tmp_path / "model").code == 0
    text = (tmp_path / "model.html").read_text()
    assert "Do the instruments move the actions?" not in text
    assert "Residuals against fitted values" in text
    assert run("moments", log, *OPTIONS, "--out", tmp_path / "sums").code == 0
    done = run("fit", "--moments", tmp_path / "sums", "--out", tmp_path / "model2")
    assert done.code == 0
    assert run("report", tmp_path / "model2").code == 0
    text = (tmp_path / "model2.html").read_text()
    assert "Residuals against fitted values" not in text
    assert "Coefficients" in text


def test_a_light_fit_says_what_it_does_not_know(log, tmp_path):
    read = ivvi.read_logs(log, state="x*", action="a*", instrument="z*")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        fit = ivvi.estimate(read, method=ivvi.SGDA(memory="linear"))
    text = ivvi.report(fit, tmp_path / "light.html").read_text()
    assert "With linear memory the moments are not computed" in text


def test_categories_have_their_own_names_and_a_constant_action_is_a_sentence(tmp_path):
    rng = np.random.default_rng(0)
    day = [f"2024-01-{d:02d}" for d in range(1, 7)] * 150
    doctor, hidden = rng.integers(4, size=900), rng.normal(size=900)
    given = 0.8 * (doctor - 1.5) + hidden > 0
    pain = rng.normal(size=900)
    table = pa.table(
        {
            "patient": np.repeat(np.arange(150), 6),
            "day": day,
            "pain": pain,
            "drug": np.where(given, "yes", "no"),
            "doctor": np.array(["Ada", "Ben", "Cy", "Di"])[doctor],
            "after": 0.5 * pain - 2.0 * given + hidden,
        }
    )
    log = ivvi.read_logs(
        table, state="pain", action="drug", instrument="doctor", next_state="after",
        episode="patient", step="day",
    )  # fmt: skip
    fit = ivvi.fit(log)
    text = ivvi.report(fit, tmp_path / "page.html").read_text()
    assert "effects of drug on after, estimated with doctor as instrument" in text
    assert "doctor is independent" in text
    assert "patient, day<" in text
    assert "day_number" not in text
    assert "<code>ivvi plan</code> finds" in text

    log = ivvi.read_logs(
        table, state="pain", action="drug", instrument="doctor", episode="patient", step="day"
    )
    fit = ivvi.fit(log)
    policy = ivvi.plan(fit, "linear:state=0,action=1", horizon=2, method="mpc", compare=False)
    text = ivvi.report(fit, tmp_path / "policy.html", policy=policy).read_text()
    assert "at their medians: drug = yes." in text
    assert "What the policy does" not in text


def test_a_policy_and_its_value_have_their_places(fit, model, tmp_path):
    policy = ivvi.plan(
        fit.model, "quadratic:weight=0.05", (-1, 1), horizon=20, method="mpc", compare=False
    )
    policies = {
        name: IntervalEstimate(-10.0 - i, np.arange(40.0) - i) for i, name in enumerate("abc")
    }
    gains = {"b": IntervalEstimate(2.5, np.arange(40.0))}
    verdict = fit.diagnostics.verdict
    worth = Valuation(policies, gains, verdict, -4.5, 20, 1.0, "the log's starts", "asymptotic")
    text = ivvi.report(fit, tmp_path / "all.html", policy=policy, value=worth).read_text()
    for said in ("What the policy does", "weight 0.05", "each of 2 between -1 and 1", "20 steps"):
        assert said in text
    for amount in (*worth.values.values(), *worth.gains.values()):
        assert f'data-value="{amount.estimate}"' in text
        assert "[{:.4g}, {:.4g}]".format(*amount.interval) in text
    policy.save(tmp_path / "policy")
    (tmp_path / "worth.json").write_text(json.dumps(worth.to_json()))
    words = ("--policy", tmp_path / "policy", "--value", tmp_path / "worth.json")
    done = run("report", model, *words, "--out", tmp_path / "same.html", "--json", "-")
    assert done.code == 0
    assert json.loads(done.out)["bytes"] == (tmp_path / "same.html").stat().st_size
    assert "What the policy is worth" in (tmp_path / "same.html").read_text()
    (tmp_path / "other.json").write_text("{}")
    words = ("--value", tmp_path / "other.json", "--out", tmp_path / "other.html")
    assert_refused(run("report", model, *words), "expected the value of a policy")


@pytest.mark.parametrize(
    ("cell", "text", "sorted_by"),
    [
        (None, "\N{EN DASH}", ""),
        (float("nan"), "\N{EN DASH}", ""),
        (3, "3", "3"),
        (-1234567, "\N{MINUS SIGN}1,234,567", "-1234567"),
        (1234.5678, "1,234.568", "1234.5678"),
        (1e-9, "1.0e\N{MINUS SIGN}09", "1e-09"),
        (0.0, "0.000", "0.0"),
        (float("-inf"), "\N{MINUS SIGN}\N{INFINITY}", "-inf"),
        ("<b>", "<b>", "<b>"),
        (Picture("<svg></svg>"), "\N{EN DASH}", ""),
    ],
)
def test_cells_are_written_and_sorted_by_their_value(cell, text, sorted_by):
    assert format_cell(cell) == text
    assert sort_value(cell) == sorted_by


def test_a_column_has_as_many_decimals_as_its_large_numbers_need():
    assert decimals_of([0.1, 0.2, 0.3]) == 3
    assert decimals_of([150.0, 130.0, 220.0, 0.001]) == 0
    assert decimals_of([0.5, 1.5, 40.0, 5000.0]) is None
    assert [format_cell(v, None) for v in (0.512, 1.52, 41.2, 5000.0)] == [
        *("0.512", "1.52", "41.2", "5,000"),
    ]
    assert decimals_of(["a", None, float("nan")]) == 3


def test_a_picture_keeps_its_words_and_follows_the_page():
    def paint(ax):
        ax.plot([0, 1], [0, 1], color=INK)
        ax.set_title("$x$ & <y>")

    svg = draw("name", 'alt "quoted" <b>', paint).svg
    assert "$x$ &amp; &lt;y&gt;" in svg
    assert "currentColor" in svg
    assert INK not in svg
    assert "DejaVu" not in svg
    assert 'aria-label="alt &quot;quoted&quot; &lt;b&gt;"' in svg
    assert draw("name", "a", paint).svg == draw("name", "a", paint).svg


# refusals


def test_what_cannot_be_reported_is_refused(model, tmp_path):
    assert_refused(run("report", tmp_path / "absent"), "absent", "not an existing folder")
    assert_refused(run("report", tmp_path), "holds nothing to report")
    assert_refused(run("report", model, "--out", tmp_path / "page.pdf"), "page.pdf", "not an .html")
    (tmp_path / "there.html").write_text("mine")
    assert_refused(run("report", model, "--out", tmp_path / "there.html"), "exists already")
    assert (tmp_path / "there.html").read_text() == "mine"
    ivvi.load_model(model).save(tmp_path / "bare")
    assert_refused(run("report", tmp_path / "bare"), "saved without its fit")
    with pytest.raises(ivvi.InputError, match=r"expected a fit .* found int"):
        ivvi.report(3, tmp_path / "three.html")


def test_fit_refuses_a_report_that_cannot_be_written_before_it_reads(tmp_path):
    words = ("fit", "absent.parquet", *OPTIONS, "--out", tmp_path / "model")
    assert_refused(run(*words, "--report", tmp_path / "none" / "a.html"), "cannot be written")
    assert_refused(run(*words, "--report", tmp_path / "a.txt"), "a.txt", "not an .html file")
    assert list(tmp_path.iterdir()) == []


def test_a_demo_or_a_run_that_is_not_whole_is_refused(tmp_path, model):
    for name, text, said in (
        ("demo.json", "{", "cannot be read as JSON"),
        ("demo.json", "[]", "is not a JSON object"),
        ("demo.json", "{}", "is not a saved model"),
        ("records.parquet", "{}", "does not hold the records of a reproduction"),
    ):
        folder = tmp_path / f"folder{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / name).write_text(text)
        assert_refused(run("report", folder), said)
        assert [file.name for file in folder.iterdir()] == [name]
    shutil.copytree(model, tmp_path / "half" / "model")
    (tmp_path / "half" / "demo.json").write_text("{}")
    assert_refused(run("report", tmp_path / "half"), "half", "is not a complete demo")
    words = ("--policy", model)
    assert_refused(run("report", tmp_path / "half", *words), "are only for models", "is a demo")
