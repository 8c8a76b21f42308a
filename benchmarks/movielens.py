"""The recommender with the closed form, shrunk effects and least squares, log by log.

    python benchmarks/movielens.py --ratings ml-1m [--logs 10]

For each model and setting: the distance of the effects of the movies from the truth, against
least squares', and the regret of the default planner in the same evaluation noise, with the
standard error over logs. Without --ratings a synthetic stand-in takes MovieLens' place.
"""

import argparse
import warnings

import numpy as np

import ivvi
from ivvi.actions import Actions
from ivvi.simulators.catalogue import load_factors
from ivvi.simulators.evaluate import optimal_policy

METHODS = ("least-squares", "exact", "shrunk")
CELLS = [(name, s) for name in ("recommender", "recommender-revised") for s in ("I", "II", "III")]
EPISODES, EVALUATION_SEED = 64, 1_000_003


def measure(env: ivvi.ConfoundedEnv, logs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return errors and regrets, (methods, logs) each."""
    actions = Actions.of_space(env.world.actions)
    effects = slice(-env.world.d_a, None)
    truth = env.world.W_star[:, effects]

    def returns(policy) -> np.ndarray:
        return env.rollout(policy, episodes=EPISODES, seed=EVALUATION_SEED).returns

    best = returns(optimal_policy(env))
    errors, regrets = np.zeros((2, len(METHODS), logs))
    for seed in range(logs):
        log = env.collect(seed=seed)
        for i, method in enumerate(METHODS):
            fit = ivvi.estimate(log, method=method, se="unadjusted", allow_unidentified=True)
            policy = ivvi.plan(fit.model, env.reward, actions, horizon=env.world.horizon)
            errors[i, seed] = np.linalg.norm(fit.W[:, effects] - truth)
            regrets[i, seed] = (best - returns(policy)).mean()
    return errors, regrets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", help="MovieLens 1M")
    parser.add_argument("--logs", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the sum of the movies is not identified, as always here
    factors = load_factors(options.ratings)
    print(f"{factors.label}, {options.logs} logs")
    print(f"{'model':<20} {'setting':<8}{'method':<14} {'error':>6} {'times closer':>12}   regret")
    for name, setting in CELLS:
        env = ivvi.make_env(name, setting=setting, ratings=factors)
        errors, regrets = measure(env, options.logs)
        for i, method in enumerate(METHODS):
            closer = errors[0].mean() / errors[i].mean()
            se = regrets[i].std(ddof=1) / np.sqrt(options.logs)
            print(
                f"{name:<20} {setting:<8}{method:<14} {errors[i].mean():>6.3f} {closer:>12.2f}   "
                f"{regrets[i].mean():.1f} +- {se:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
