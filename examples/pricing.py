r"""From a chain's weekly sales table to prices and what they are worth.

Stores set their price when they see a busy week coming, in a way that nobody wrote down, and what
they pay for the product moves the price too: the same cost in all stores. In one row stand the
price of a week and the sales of that week (`--seen after`), the season in words, promotions as
yes and no; some weeks are missing. One week is planned, so that the truth is known exactly; with
--horizon 8 a plan also reckons with sales that last. The same in a shell:

    ivvi fit sales.csv --state sales --context season,promotion \
        --action 'price:Price paid' --instrument cost --episode store --step week --every 7d \
        --seen after --features linear:cross --out model
    ivvi plan model --reward pricing:profit --action-low 4 --action-high 14 --horizon 1 --out policy
    ivvi act policy --state sales=25,season=winter,promotion=no
    ivvi value policy --model model
"""

from __future__ import annotations

import csv
import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

import ivvi

SEASONS = ("winter", "spring", "summer", "autumn")
SLOPE = {"winter": -1.2, "spring": -1.6, "summer": -2.4, "autumn": -1.6}
LASTS, USUAL_COST = 0.3, 5.0
LOW, HIGH = 4.0, 14.0


def write_sales(path: Path, stores: int = 80, weeks: int = 104) -> None:
    """Write the table; `busy` is what the store saw and nobody recorded."""
    rng = np.random.default_rng(5)
    cost = USUAL_COST + 2 * np.sin(np.arange(weeks) / 4) + rng.normal(0, 0.5, weeks)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["store", "week", "season", "promotion", "Price paid", "cost", "sales"])
        for store in range(stores):
            sales = 25.0
            for week in range(weeks):
                day = date(2022, 1, 3) + timedelta(weeks=week)
                season, busy = SEASONS[day.month % 12 // 3], rng.normal()
                promotion = rng.random() < 0.2
                price = np.clip(1.4 * cost[week] + 1.2 * busy + 0.5 * rng.normal(), LOW, HIGH)
                sales = expected_sales(sales, price, season, promotion) + 3 * busy + rng.normal()
                if rng.random() > 0.02:
                    facts = f"Store {store}", day, season, "yes" if promotion else "no"
                    rows.writerow([*facts, f"{price:.2f}", f"{cost[week]:.2f}", f"{sales:.1f}"])


def expected_sales(before: float, price: float, season: str, promotion: bool) -> float:
    """Return the true expected sales at a price."""
    return 27.5 + LASTS * before + SLOPE[season] * price + 3 * promotion


def profit(x: Any, a: Any, x_next: Any, *, instrument: Any) -> Any:
    """Return the margin times the sales of the week; the cost is what moves prices in the log."""
    return (a[:, 0] - instrument["cost"]) * x_next[:, 0]


def truly_earned(prices: Any, sales: float) -> float:
    """Return the true profit of a week after these sales, averaged over seasons."""
    earned = [
        (price - USUAL_COST) * expected_sales(sales, price, season, promotion=False)
        for price, season in zip(prices, SEASONS, strict=True)
    ]
    return float(np.mean(earned))


def best_prices(sales: float) -> list[float]:
    """Return the price of each season with the highest true profit in a week."""
    base = expected_sales(sales, 0.0, "winter", promotion=False)
    return [min(max((USUAL_COST - base / SLOPE[s]) / 2, LOW), HIGH) for s in SEASONS]


def main() -> None:
    """Read, fit, plan, value; then look at the truth."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sales.csv"
        write_sales(path)
        log = ivvi.read_logs(
            path,
            state="sales",
            context="season,promotion",
            action="price:Price paid",
            instrument="cost",
            episode="store",
            step="week",
            every="7d",
            seen="after",
        )
        fit = ivvi.fit(log, "linear:cross")
    print(fit.summary())
    asked = {"sales": [25.0] * 4, "season": list(SEASONS), "promotion": ["no"] * 4}
    policy = ivvi.plan(fit, profit, (LOW, HIGH), horizon=1, method="mpc", compare=False)
    misled = ivvi.fit(log, "linear:cross", method="least-squares")
    regression = ivvi.plan(misled, profit, (LOW, HIGH), horizon=1, method="mpc", compare=False)
    print(ivvi.value(policy, fit, against=("behaviour",), draws=20).summary())
    print(f"\nprices after sales of 25: {', '.join(SEASONS)}; profit of a week in truth")
    prices = {"with the instrument": policy(asked)["price"], "best in truth": best_prices(25.0)}
    prices["by regression"] = regression(asked)["price"]
    for name, by_season in prices.items():
        shown = " ".join(f"{price:6.2f}" for price in by_season)
        print(f"  {name:20} {shown}   {truly_earned(by_season, 25.0):6.1f}")


if __name__ == "__main__":
    main()
