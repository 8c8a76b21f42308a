"""When the verdict recommends the jackknife for many instruments, and what that is worth."""

import json

import pytest

from ivvi_reproduction.many_instruments import INSTRUMENTS, STRENGTHS, command, measure


def test_the_table_has_a_line_for_each_design(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("ivvi_reproduction.many_instruments.ROWS", 200)
    monkeypatch.setattr("ivvi_reproduction.many_instruments.INSTRUMENTS", INSTRUMENTS[:1])
    command(logs=2, json=str(tmp_path / "m.json"))
    records = json.loads((tmp_path / "m.json").read_text())
    assert [r["strength"] for r in records] == list(STRENGTHS)
    assert "UJIVE" in capsys.readouterr().out


@pytest.mark.slow
def test_where_the_jackknife_is_recommended_its_intervals_hold():
    """Coverage within four binomial deviations of 95%; that of two stages is far below."""
    record = measure(30, 4.0, 200)
    assert record.recommended > 0.95
    assert abs(record.jackknife_coverage - 0.95) < 4 * 0.0154
    assert record.coverage < 0.8
