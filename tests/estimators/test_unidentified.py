"""What the instruments do not identify: refused, or accepted on request and said."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from bad_cases import COLUMNS, IDENTIFICATION_CASES
from helpers import OPTIONS, ROLES, fit_json, run, write_table
from ivvi import estimate, read_logs
from ivvi.errors import IdentificationError, IvviWarning


@pytest.mark.parametrize("name", IDENTIFICATION_CASES)
def test_what_is_not_identified_is_accepted_on_request(name, tmp_path):
    case = IDENTIFICATION_CASES[name]
    source = case.make(tmp_path)
    facts, said = fit_json(source, *case.options(), "--allow-unidentified", folder=tmp_path)
    diagnostics = facts["diagnostics"]
    assert (diagnostics["identified"], diagnostics["rank"]) == (False, 4)
    assert len(diagnostics["unidentified"]) == 1
    assert any(None in row for row in facts["se"])
    assert "ivvi: warning: not identified" in said
    assert facts["warnings"][0].startswith("not identified")


@pytest.mark.parametrize("name", IDENTIFICATION_CASES)
def test_diagnose_reports_what_is_not_identified(name, tmp_path):
    case = IDENTIFICATION_CASES[name]
    source = case.make(tmp_path)
    result = run("diagnose", source, *case.options())
    assert result.code == 0
    assert re.search(r"identified +NO: rank of A is 4 of 5", result.out)
    assert "free direction" in result.out
    assert result.err.startswith("ivvi: warning: not identified")


@pytest.mark.parametrize("name", IDENTIFICATION_CASES)
def test_python_warns_of_what_is_not_identified(name, tmp_path):
    case = replace(IDENTIFICATION_CASES[name], settings={"allow_unidentified": True})
    with pytest.warns(IvviWarning, match="not identified"):
        fit = case.fit(tmp_path)
    assert fit.model.unidentified == fit.diagnostics.strength.unidentified != ()


def test_many_free_directions_are_counted_not_listed(log_of, confounded):
    rows = log_of(*confounded(0, 400, 1, 8, 1))  # one instrument for eight actions
    with pytest.raises(IdentificationError, match=r"\] and 4 more is not identified") as caught:
        estimate(rows)
    assert str(caught.value).count("[") == 3


def test_the_command_needs_no_instrument_for_least_squares(tmp_path):
    case = IDENTIFICATION_CASES["too few instruments"]
    options = (*case.options(), "--method", "least-squares")
    facts, _ = fit_json(case.make(tmp_path), *options, folder=tmp_path)
    assert facts["W"] == facts["least_squares"]["W"]


def test_collinear_but_sufficient_instruments_only_warn(tmp_path):
    columns = COLUMNS | {"z2": COLUMNS["z0"] + 2 * COLUMNS["z1"]}
    source = write_table(columns, tmp_path / "log.parquet")
    facts, said = fit_json(source, *OPTIONS, folder=tmp_path)
    assert facts["diagnostics"]["identified"] is True
    assert "ivvi: warning: collinear instrument features: 6 columns of rank 5" in said
    fewer = run("fit", source, *OPTIONS[:-1], "z0,z1", "--out", tmp_path / "m", "--json", "-")
    assert np.allclose(facts["W"], json.loads(fewer.out)["W"], rtol=1e-9)
    with pytest.warns(IvviWarning, match="collinear"):
        estimate(read_logs(columns, **ROLES))
