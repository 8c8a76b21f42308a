"""docs/reproduction.md: made from the records, and true of them."""

import re
from itertools import pairwise

import pytest

from helpers import ROOT
from ivvi import InputError
from ivvi_reproduction.docs_page import PageNumbers, between, digits, in_words, make_page, span
from ivvi_reproduction.one_change import Change, table
from ivvi_reproduction.reproduce import read_results

FOLDER = ROOT / "reproduction/results"
TEMPLATE = ROOT / "docs/templates/reproduction.md"
METHOD = ("I", "II", "III", "IV", "V", "VI")


@pytest.fixture(scope="module")
def results():
    return read_results(FOLDER)


@pytest.fixture(scope="module")
def numbers(results):
    return PageNumbers({table.name: table for table in results.tables}, FOLDER / "printed")


def test_the_page_in_the_docs_is_that_of_the_records(results):
    """Otherwise run ``python -m ivvi_reproduction.docs_page``."""
    page = make_page(results, TEMPLATE.read_text(encoding="utf-8"), FOLDER / "printed")
    assert "Not run yet" not in page
    assert page == (ROOT / "docs/reproduction.md").read_text(encoding="utf-8")


def test_the_template_types_no_measured_number():
    """Decimals outside of code and of Jinja; those that define the experiment stand as code."""
    template = TEMPLATE.read_text(encoding="utf-8")
    prose = re.sub(r"{{.*?}}|{%.*?%}|```.*?```|`[^`]*`", "", template, flags=re.S)
    assert re.findall(r"\d\.\d+", prose) == []


def test_cells_said_to_be_off_are_off_in_the_direction_that_is_said(numbers):
    off = {name: numbers.values(f"{name}-regret", "as / paper") for name in ("linear", "movielens")}
    assert max(r for r in off["linear"] if not 0.5 <= r <= 2) < 0.5
    assert min(off["movielens"]) > 2
    near = [r for r in numbers.rows("linear-regret", METHOD) if 0.5 <= r["as / paper"] <= 2]
    assert [(row["variant"], row["setting"]) for row in near] == [("k = 20", "IV")]
    assert numbers.off("nonlinear") == []


def test_the_largest_change_by_general_covariances_is_at_k_20_iv(numbers):
    ratios = numbers.between_settings("linear-regret", "as the paper", METHOD[3:], METHOD[:3])
    assert max(ratios) == ratios[6]  # the first of the last three
    row = numbers.rows("linear-regret", ("IV",))[2]
    assert row["as ±"] > row["as the paper"] / 3  # "wide"


@pytest.mark.parametrize("name", ["linear", "nonlinear"])
def test_regret_grows_with_the_dimension_in_every_column(numbers, name):
    for column in ("paper", "as the paper", "their estimate", "best"):
        for setting in ("Baseline", *METHOD):
            regrets = numbers.values(f"{name}-regret", column, (setting,))
            assert all(small < large for small, large in pairwise(regrets)), (column, setting)


def test_regret_at_best_does_not_fall_with_strength_beyond_the_linear_experiment(numbers):
    for name in ("nonlinear", "movielens"):
        ends = [numbers.values(f"{name}-regret", "best", (setting,)) for setting in ("I", "III")]
        assert sum(ends[1]) > sum(ends[0]), name


def test_on_movielens_intervals_overlap_and_printed_deviations_exceed_differences(numbers):
    rows = numbers.rows("movielens-regret")
    poor = {row["variant"]: row for row in rows if row["setting"] == "Baseline"}
    larger = []
    for row in (row for row in rows if row["setting"] != "Baseline"):
        least = poor[row["variant"]]
        gap = abs(row["as the paper"] - least["as the paper"])
        assert gap < row["as ±"] + least["as ±"], row
        if least["paper"] - row["paper"] > min(row["paper ±"], least["paper ±"]):
            larger.append((row["variant"], row["setting"]))
    assert larger == [("original", "II"), ("original", "III")]
    lower = [
        {(r["variant"], r["setting"]) for r in rows if r[c] < poor[r["variant"]][c]}
        for c in ("as the paper", "their estimate")
    ]
    assert lower[0] != lower[1]


def test_every_descent_of_the_paper_stalls_as_the_page_says(numbers):
    for name in ("linear", "nonlinear", "movielens"):
        rows = numbers.rows(f"{name}-regret", METHOD)
        assert {row["descent"] for row in rows} == {"stalls"}


def test_single_logs_of_movielens_round_to_the_digit_that_is_printed_for_revised_i(numbers):
    cell = ("movielens-strength", "revised", "I")
    low, high, paper = (numbers.number(*cell, c) for c in ("lowest log", "highest log", "paper"))
    assert {round(low, 3), round(high, 3)} == {paper}


def test_what_is_said_of_one_change_at_a_time_is_in_the_blocks(numbers):
    def change(line, row, experiment, variant):
        return numbers.change(experiment, line, row, variant)

    for variant in ("k5", "k10", "k20"):
        where = ("linear", variant)
        noise = change("noise N(0, I)", "Baseline", *where)
        log = change("baseline from the log of III", "Baseline", *where)
        first = change("closed form, exact planner", "Baseline", *where)
        soft = change("soft planner", "Baseline", *where)
        assert abs(first - noise) < 0.01 * first  # "not the noise"
        assert (log < noise / 2, soft < log / 3) == (True, True)
        for row in METHOD[:3]:
            assert 2 * change("the authors' matrices", row, *where) < change(
                "the paper", row, *where
            )
    for variant in ("original", "revised"):
        where = ("movielens", variant)
        theirs = [change("the authors' matrices", row, *where) for row in ("Baseline", *METHOD[:3])]
        assert theirs[0] == max(theirs)
        assert max(change("episodes of 5 steps", row, *where) for row in METHOD[:3]) < 2
    closed = change("closed form", "I", "movielens", "revised")
    assert closed > change("closed form", "Baseline", "movielens", "revised")


def printed_rows(name, width):
    """Return the lines of a printed block that have so many cells, split."""
    text = (FOLDER / f"printed/{name}.txt").read_text(encoding="utf-8")
    return [cells for line in text.splitlines() if len(cells := line.split()) == width]


def test_what_is_said_of_the_theory_is_in_the_blocks():
    rates = (FOLDER / "printed/convergence_rate.txt").read_text(encoding="utf-8")
    slopes = [float(slope) for slope in re.findall(r"slope (-[\d.]+)", rates)]
    assert (len(slopes), max(abs(slope + 1) for slope in slopes) < 0.05) == (3, True)
    losses = [row for row in printed_rows("planning_error", 5) if row[0].isdigit()]
    assert len(losses) == 10
    assert all(float(loss) < float(bound) / 100 for _, _, loss, _, bound in losses)
    bounds = [row for row in printed_rows("misspecification", 8) if row[0] != "setting"]
    assert all(float(row[1]) < float(row[2]) / 100 for row in bounds)


def test_with_constant_steps_the_loss_falls_with_strength_to_that_of_the_closed_form():
    rows = [row for row in printed_rows("loss_curves", 10) if row[0] == "constant"]
    assert len(rows) == 9
    for k in ("5", "10", "20"):
        alike = [[float(cell) for cell in row[3:]] for row in rows if row[1] == k]
        for weaker, stronger in pairwise(alike):  # t = 10 to 300
            assert all(s < w for w, s in zip(weaker[1:5], stronger[1:5], strict=True))
        assert max(row[-2] / row[-1] for row in alike) < 1.3


def test_a_sentence_may_name_numbers_of_tables_and_blocks(numbers, tmp_path):
    assert numbers.number("linear-regret", "k = 5", "I", "paper") == 14.84
    assert numbers.values("linear-regret", "paper", ("I",), "paper") == [1.0] * 3
    assert len(numbers.values("linear-regret", "their estimate", METHOD)) == 9  # IV to VI have none
    halves = numbers.between_settings("linear-strength", "paper", ("I",), ("III",))
    assert halves == [0.14 / 0.24, 0.14 / 0.24, 0.13 / 0.23]
    changes = [Change("k5", "soft planner", (4.0, 3.0, 2.0, 1.0))]
    (tmp_path / "one_change-linear.txt").write_text(table(changes))
    printed = PageNumbers({}, tmp_path)
    assert printed.change("linear", "soft planner", "II", "k5") == 2.0


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda n: n.rows("wages"), "no table wages"),
        (lambda n: n.number("linear-regret", "k = 9", "I", "paper"), "no number at k = 9, I"),
        (lambda n: n.change("linear", "soft planner", "I", "k9"), "no line 'soft planner' of k9"),
        (lambda n: n.change("wages", "soft planner", "I", "k5"), "one_change-wages.txt is not"),
    ],
)
def test_a_number_that_is_not_there_is_named(numbers, ask, said):
    with pytest.raises(InputError, match=said):
        ask(numbers)


def test_numbers_in_sentences_are_short():
    assert [digits(v) for v in (0.6612, 14.84, 505.6, 12345.0)] == ["0.66", "15", "510", "12,000"]
    assert (span([3.0, 1.0, 2.0]), span([0.99, 0.991])) == ("1 to 3", "0.99")
    assert (in_words(0), in_words(5), in_words(18)) == ("none", "five", "18")
    assert between([0.9, 1.0, 1.2], 0.95, 1.05) == [1.0]
