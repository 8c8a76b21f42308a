"""Tables of fits: numbers, formats and what is refused."""

import csv
import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import ivvi
from helpers import run
from ivvi import InputError

FORMATS = ("markdown", "latex", "html", "csv")


@pytest.fixture(scope="module")
def log():
    return ivvi.make_env("linear", dim=2).collect(episodes=40, horizon=30, seed=3)


@pytest.fixture(scope="module")
def fits(log):
    robust = ivvi.estimate(log, method="liml", se="robust")
    return {"2SLS": ivvi.estimate(log), "50% & more_x": robust}


def rows_of(table, kind="csv"):
    return list(csv.reader(io.StringIO(table.to(kind))))


def test_cells_are_the_numbers_of_the_fits(fits):
    table = ivvi.table(fits, beside="least-squares,reduced-form", digits=6)
    rows = rows_of(table)
    heads = list(zip(rows[0][2:], rows[1][2:], strict=True))
    fit = fits["2SLS"]
    i, j = fit.roles.outputs.index("next_x1"), fit.estimate.design.phi_names.index("a0")
    at = next(k for k, row in enumerate(rows) if row[:2] == ["next_x1", "a0"])
    iv, ls = 2 + heads.index(("2SLS", "IV (2SLS)")), 2 + heads.index(("2SLS", "LS"))
    assert float(rows[at][iv]) == pytest.approx(fit.W[i, j], abs=1e-6)
    assert float(rows[at + 1][iv].strip("()")) == pytest.approx(fit.se[i, j], abs=1e-6)
    assert float(rows[at][ls]) == pytest.approx(fit.baseline.W[i, j], abs=1e-6)
    assert rows[at][2 + heads.index(("2SLS", "reduced form"))] == ""


def test_columns_beside_a_fit_do_not_depend_on_their_order(names_of):
    """With more instruments than actions the reduced form has more coefficients than W."""
    rng = np.random.default_rng(0)
    z, e = rng.normal(size=(300, 3)), rng.normal(size=300)
    a = z.sum(axis=1) + e
    rows = {"x0": rng.normal(size=300), "a0": a, "next_x0": a + e, "g": np.arange(300) // 10}
    rows |= dict(zip(names_of("z", 3), z.T, strict=True))
    fit = ivvi.estimate(rows, se=ivvi.StandardErrors("clustered", "g"))
    one, other = (
        {column.title: column for column in ivvi.table([fit], beside=beside).columns}
        for beside in ("least-squares,reduced-form", "reduced-form,least-squares")
    )
    for title, column in one.items():
        np.testing.assert_array_equal(other[title].p, column.p)


def test_the_reduced_form_is_the_regression_on_the_instruments(log):
    linearmodels = pytest.importorskip("linearmodels.iv")
    batch = log.to_batch(episodes=True)
    psi = np.column_stack([np.ones(len(batch)), batch.x, batch.z])
    for kind in ("unadjusted", "robust", "clustered"):
        fit = ivvi.estimate(log, se=ivvi.StandardErrors(kind, debiased=False))
        options = {"clusters": batch.episode} if kind == "clustered" else {}
        peer = linearmodels.IV2SLS(batch.y[:, 1], psi, None, None).fit(cov_type=kind, **options)
        reduced_form = fit.inference.reduced_form
        assert reduced_form.names == ("1", "x0", "x1", "z0", "z1")
        assert reduced_form.excluded == ("z0", "z1")
        np.testing.assert_allclose(reduced_form.W[1], peer.params, rtol=1e-10)
        np.testing.assert_allclose(reduced_form.se[1], peer.std_errors, rtol=1e-10)
        assert "reduced form" in fit.summary()
        assert fit.to_json()["reduced_form"]["se"][1] == reduced_form.se[1].tolist()


@pytest.mark.filterwarnings("ignore:collinear")
def test_the_reduced_form_of_collinear_instruments_has_no_standard_error(log):
    rows = {name: log.to_arrow().column(name).to_numpy() for name in log.roles.columns}
    rows["z2"] = rows["z0"] + rows["z1"]
    reduced_form = ivvi.estimate(ivvi.read_logs(rows), se="robust").inference.reduced_form
    told = dict(zip(reduced_form.names, reduced_form.se[0], strict=True))
    assert np.isnan([told["z0"], told["z1"], told["z2"]]).all()
    assert np.isfinite([told["1"], told["x0"], told["x1"]]).all()


def test_a_saved_fit_gives_the_same_table(fits, tmp_path):
    fits["2SLS"].save(tmp_path / "model")
    beside = ("least-squares", "reduced-form")
    again = ivvi.table([tmp_path / "model"], beside=beside)
    assert again.to_csv() == ivvi.table([fits["2SLS"]], beside=beside).to_csv()


def test_stars_are_given_only_when_asked_for(fits):
    assert "*" not in ivvi.table(fits).to_csv()
    starred = ivvi.table(fits, stars=True)
    rows = rows_of(starred)
    heads = list(zip(rows[0], rows[1], strict=True))
    places = {tuple(row[:2]): row for row in rows}
    for row in starred.records():
        stars = sum(row["p_value"] < level for level in (0.01, 0.05, 0.1))
        feature = "Constant" if row["feature"] == "1" else row["feature"]
        cell = places[row["output"], feature][heads.index((row["fit"], row["estimator"]))]
        assert cell == cell.rstrip("*") + "*" * stars
    assert "*** p < 0.01" in starred.to_markdown()


def test_markdown_has_the_same_number_of_cells_in_every_row(fits):
    lines = ivvi.table({"a|b": fits["2SLS"]}, stars=True).to_markdown().splitlines()
    cells = {len(re.split(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")}
    assert cells == {4}


def columns_of(line):
    """Count the cells of a LaTeX row."""
    spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
    return len(re.split(r"(?<!\\)&", line)) + sum(n - 1 for n in spans)


def hostile_table():
    """Names of columns that mean something to LaTeX; one output."""
    rng = np.random.default_rng(0)
    state, instrument, hidden = rng.normal(size=(3, 300))
    action = instrument + hidden
    outcome = 0.3 * action + state + hidden
    names = ["[x] {50%}", "\u03b1 price_[\u20ac] & $2", "#z~^1\\", "R\u00b2 < 5 \u03a3\u0391"]
    columns = dict(zip(names, (state, action, instrument, outcome), strict=True))
    roles = dict(zip(("state", "action", "instrument", "next_state"), names, strict=True))
    log = ivvi.read_logs(columns, **{role: (name,) for role, name in roles.items()})
    return ivvi.table([ivvi.estimate(log), ivvi.estimate(log, se="unadjusted")], stars=True)


def test_latex_is_well_formed(fits):
    for table in (ivvi.table(fits, beside="reduced-form", stars=True), hostile_table()):
        text = table.to_latex()
        columns = len(re.search(r"\{tabular\}\{(lc*)\}", text)[1])
        for line in text.splitlines():
            if line.endswith(r"\\"):
                assert columns_of(line) == columns
                assert not line.startswith("[")
        bare = re.sub(r"\\[\\{}$]", "", text)
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
    text = ivvi.table(fits, beside="reduced-form").to_latex()
    assert r"\multicolumn{2}{c}{50\% \& more\_x}" in text
    assert r"\cmidrule(lr){4-5}" in text
    text = hostile_table().to_latex()
    assert r"{}[x] \{50\%\}" in text
    assert r"$\alpha$ price\_[\texteuro{}] \& \$2" in text
    assert "R\u00b2 $<$ 5 $\\Sigma$A" in text


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_a_latex_table_compiles(fits, tmp_path):
    """Every table stands on a page without an error, and one of four columns fits its width."""
    one = ivvi.table(fits, beside="least-squares", stars=True).to_latex()
    tables = [one, hostile_table().to_latex()]
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    body = "\n\n\\clearpage\n".join(f"\\noindent\n{table}" for table in tables)
    (tmp_path / "table.tex").write_text(f"{head}{body}\n\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert "2 pages" in done.stdout


def test_html_shows_in_a_notebook_and_escapes_names(fits):
    text = ivvi.table(fits)._repr_html_()
    assert "50% &amp; more_x" in text
    rows = re.findall(r"<tr.*?</tr>", text)
    assert len({len(re.findall(r"<t[dh]>", row)) for row in rows if "colspan" not in row}) == 1


def test_only_chosen_outputs_features_and_statistics_are_shown(fits):
    table = ivvi.table(fits, outputs="next_x1", features=["a*"], statistics="n,verdict")
    assert [row[1] for row in rows_of(table)[2:]] == ["a0", "", "a1", "", "n", "instruments"]
    assert set(table.to_frame().output) == {"next_x1"}


def test_small_numbers_keep_digits(log):
    rows = {name: log.to_arrow().column(name).to_numpy() for name in log.roles.columns}
    rows["a0"] = rows["a0"] * 1e5
    fit = ivvi.estimate(ivvi.read_logs(rows))
    cells = [row[2] for row in rows_of(ivvi.table(fit, features="a0"))]
    assert not any(re.fullmatch(r"-?0\.0+", cell.strip("()")) for cell in cells)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"statistics": "nn"}, "unknown statistic 'nn'"),
        ({"beside": "ols"}, "unknown column beside a fit 'ols'"),
        ({"names": ["one"]}, "1 names are given for 2 fits"),
        ({"outputs": "next_x9"}, "next_x9"),
        ({"features": "q"}, "'q'"),
        ({"outputs": ","}, "output is ',', which names no column"),
        ({"digits": -1}, "digits is -1"),
    ],
)
def test_bad_options_are_refused(fits, options, words):
    with pytest.raises(InputError, match=re.escape(words)):
        ivvi.table(list(fits.values()), **options)


def test_a_table_of_nothing_and_of_other_things_is_refused(fits):
    with pytest.raises(InputError, match="at least one fit"):
        ivvi.table([])
    with pytest.raises(InputError, match="found int"):
        ivvi.table([3])
    with pytest.raises(InputError, match="unknown table format 'latx'"):
        ivvi.table(fits).to("latx")


def test_the_shell_prints_and_writes_tables(log, fits, tmp_path):
    other = ivvi.make_env("linear", dim=1).collect(episodes=20, horizon=20, seed=1)
    for name, fit in (("one", fits["2SLS"]), ("two", fits["50% & more_x"])):
        fit.save(tmp_path / name)
    ivvi.estimate(other).save(tmp_path / "other")
    both = (tmp_path / "one", tmp_path / "two")
    done = run("table", *both, "--beside", "least-squares", "--json", tmp_path / "t.json")
    assert done.code == 0, done
    assert done.out.splitlines()[0].split("|")[2].strip() == "one"
    assert json.loads((tmp_path / "t.json").read_text())["statistics"][0]["fit"] == "one"
    done = run("table", *both, "--format", "latex", "--out", tmp_path / "t.tex")
    assert done.code == 0, done
    assert (tmp_path / "t.tex").read_text().count("tabular") == 2
    done = run("table", tmp_path / "one", tmp_path / "other", "--out", tmp_path / "u.tex")
    assert done.code == 2
    assert "the fits of a table have different outputs" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "u.tex").exists()


def test_a_column_of_regression_has_no_test_of_instruments_that_it_does_not_use():
    rng = np.random.default_rng(0)
    z, w, e = rng.normal(size=(3, 300))
    a = z + w + e
    log = ivvi.read_logs(
        {"a": a, "z": z, "w": w, "y": a + e},
        state=(),
        action="a",
        instrument=("z", "w"),
        next_state="y",
    )
    fits = [ivvi.fit(log), ivvi.fit(log, method="least-squares")]
    shown = rows_of(ivvi.table(fits, statistics=("f", "j", "endogeneity", "verdict")))
    cells = {name: row[-2:] for row in shown for name in row[:2]}
    for name in ("first-stage F", "overidentification p", "instruments"):
        assert cells[name][0] != ""
        assert cells[name][1] == ""
    assert cells["Wu-Hausman p"][0] == cells["Wu-Hausman p"][1] == "0.000"
