"""The tables that studies of coverage print."""

from ivvi_reproduction import value_coverage, world_coverage
from ivvi_reproduction.study import binomial_deviation, coverage_cell


def test_a_star_marks_what_is_further_off_than_three_deviations():
    assert round(binomial_deviation(400), 4) == 0.0109
    cells = [coverage_cell(share, 400, 9) for share in (0.95, 0.918, 0.917, 0.982, 0.983)]
    assert cells == ["   95.0% ", "   91.8% ", "   91.7%*", "   98.2% ", "   98.3%*"]


def test_worlds_and_designs_are_told_in_the_same_form():
    shares = {"asymptotic": 0.95, "bootstrap": 0.5}
    world = world_coverage.WorldCoverage("wear", 100, shares, {"asymptotic": 1.5, "bootstrap": 2.5})
    design = value_coverage.DESIGNS[0]
    keys = [
        f"{m} {t} {k}"
        for m in value_coverage.METHODS
        for t in value_coverage.TARGETS
        for k in value_coverage.INTERVALS
    ]
    value = value_coverage.ValueCoverage(design, 100, dict.fromkeys(keys, 0.5), {}, {"strong": 100})
    one, other = (
        world_coverage.table([world]).split("\n"),
        value_coverage.table([value]).split("\n"),
    )
    assert one[2].split() == ["wear", "95.0%", "50.0%*", "1.5", "2.5"]
    assert other[2].count("50.0%*") == len(keys) / 2
    assert other[4] == "  verdicts: strong 100"
    foot = "a 95% interval should stand at 95% +- 6.5% (three standard deviations), * does not"
    assert one[-1] == f"100 logs each of 80 episodes of 30 steps, 200 draws; {foot}"
    assert other[-1] == f"100 logs each of 80 episodes of 50 steps, 200 draws; {foot}"
