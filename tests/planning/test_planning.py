"""Model predictive control and the policies that it makes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

import ivvi
from helpers import user_reward
from ivvi import MPC, Actions, InputError, load_policy, plan
from ivvi.dynamics.rollout import Decision
from ivvi.planning import Problem
from ivvi.planning.mpc.beam_search import best_choice
from ivvi.planning.mpc.box_qp import BoxQP
from ivvi.planning.mpc.lookahead import Lookahead, quadratic_form
from ivvi.planning.newton import maximise
from ivvi.planning.riccati import value_tail
from ivvi.rewards import Quadratic


@pytest.fixture(scope="module")
def bent_model(names_of):
    x = names_of("x", 1)
    phi = ivvi.custom(bend, ["mean"])
    return ivvi.Dynamics(
        phi, np.eye(1), np.eye(1), np.eye(1), x, ("a0",), x, states=np.linspace(-2, 2, 9)[:, None]
    )


def bend(x, a):
    xp = a.__array_namespace__()
    return 0.8 * xp.sin(2 * x) + 0.6 * xp.tanh(a) + 0.1 * x


def is_far(x):
    return abs(x[..., 0]) > 3.0


# quadratic programs


@settings(max_examples=6)  # each is compiled
@given(
    seed=st.integers(0, 2**32 - 1),
    D=st.integers(1, 8),
    rank=st.integers(0, 8),
    spread=st.floats(0, 6),
)
def test_box_programs_are_solved(seed, D, rank, spread):
    """Against SciPy's bounded least squares, with condition numbers to 1e6 and singular H.

    H = M^T M and g = M^T b: the value, and the conditions of optimality, decide; where H is
    singular the point itself is not unique.
    """
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(min(rank, D), D)) * 10 ** -rng.uniform(0, spread / 2, size=D)
    b = rng.normal(size=len(M)) * 3
    low, high = -rng.uniform(0.1, 2, D), rng.uniform(0.1, 2, D)
    H, g = M.T @ M, M.T @ b
    with jax.enable_x64(True):
        u = np.asarray(BoxQP.of(H, low, high)(jnp.asarray(g[None]), jnp.zeros((1, D))))[0]
    cost = lambda u: 0.5 * u @ H @ u + g @ u  # noqa: E731
    assert ((u >= low) & (u <= high)).all()
    if len(M):
        peer = lsq_linear(M, -b, (low, high), method="bvls", tol=1e-15).x
        assert cost(u) <= cost(peer) + 1e-8 * (1 + abs(cost(peer)))
    slope = H @ u + g
    most = max(np.linalg.eigvalsh(H)[-1], 1e-300)
    violated = np.abs(u - np.clip(u - slope / most, low, high))
    assert violated.max() <= 1e-8


def test_well_conditioned_programs_have_scipys_solution():
    rng = np.random.default_rng(3)
    for D in (1, 4, 11):
        M = np.linalg.qr(rng.normal(size=(D, D)))[0] * rng.uniform(0.3, 3, D)
        b = 4 * rng.normal(size=(5, D))
        low, high = -rng.uniform(0.1, 1, D), rng.uniform(0.1, 1, D)
        with jax.enable_x64(True):
            found = np.asarray(BoxQP.of(M.T @ M, low, high)(jnp.asarray(b @ M), jnp.zeros((5, D))))
        for u, row in zip(found, b, strict=True):
            peer = lsq_linear(M, -row, (low, high), method="bvls", tol=1e-15).x
            np.testing.assert_allclose(u, peer, atol=1e-8)


@pytest.mark.parametrize("step", [0, 93, 98])
def test_the_quadratic_form_is_the_lookahead(linear_model, step):
    """Far from the horizon, near it, and where the plan reaches beyond it."""
    model = linear_model(3, 2, seed=4)
    reward = Quadratic((1.0, 2.0, 0.5), (0.3, -0.2, 0.0), (0.1, 0.4))
    problem = Problem.of(model, reward, (-1, 1), horizon=100, discount=0.9)
    tail, left = value_tail(problem, 97), 100 - step
    H, F, f = quadratic_form(problem, 3, left, tuple(part[max(0, left - 3)] for part in tail))
    rng = np.random.default_rng(0)
    x, plans = rng.normal(size=(6, 3)), rng.normal(size=(6, 3, 2))
    with jax.enable_x64(True):
        ahead = Lookahead(problem, 3, tail)
        found, still = (
            np.asarray(ahead(jnp.asarray(x), jnp.asarray(u), step)) for u in (plans, 0 * plans)
        )
    u = plans.reshape(6, -1)
    wanted = 0.5 * np.einsum("ni,ij,nj->n", u, H, u) + np.sum((x @ F.T + f) * u, axis=1)
    np.testing.assert_allclose(still - found, wanted, rtol=1e-10)


@pytest.mark.parametrize("reward", ["quadratic:weight=1", "linear:state=1;-2,action=0.1;0"])
def test_plans_over_a_box_are_the_best_of_a_dense_grid(linear_model, reward):
    """The first action of the exact program against 11^4 plans; the value, not the plan."""
    problem = Problem.of(linear_model(2, 2, seed=1), reward, (-1, 1))
    rule = MPC(lookahead=2).solve(problem)
    x = jnp.asarray(problem.support[:3])
    plans = np.array(list(itertools.product(np.linspace(-1, 1, 11), repeat=4))).reshape(-1, 2, 2)
    with jax.enable_x64(True):
        ahead = Lookahead(problem, 2, value_tail(problem, 24))
        memory = rule.begin(3)
        program, _, F, f = jax.tree_util.tree_map(lambda part: jnp.asarray(part)[-1], rule.numbers)
        found = program(x @ F.T + f, memory.reshape(3, -1)).reshape(memory.shape)
        reached = np.asarray(ahead(x, found, 0))
        for i in range(3):
            states = jnp.broadcast_to(x[i], (len(plans), 2))
            best = float(jnp.max(ahead(states, jnp.asarray(plans), 0)))
            assert best <= reached[i] + 1e-9
            assert reached[i] <= best + 0.2


@pytest.mark.thorough
@pytest.mark.parametrize("actions", [(-1, 1), [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
@pytest.mark.parametrize("reward", ["quadratic:weight=1,action_weight=0.1", user_reward])
def test_policies_of_one_shape_share_a_program(linear_model, actions, reward):
    """Compiled for one model, right for another: the same actions as a rule run uncompiled."""
    models = [linear_model(2, 2, seed=seed) for seed in (1, 2)]
    policies = [plan(model, reward, actions, method=MPC(2), compare=False) for model in models]
    first, second = (Decision.of(policy) for policy in policies)
    assert first == second
    x = models[0].states[:20]
    compiled = policies[0](x)
    with jax.enable_x64(True), jax.disable_jit():
        bare = policies[1].rule.act(jnp.asarray(x), 0, policies[1].begin(20))[0]
    np.testing.assert_allclose(policies[1](x), bare, atol=1e-9)
    assert not np.allclose(compiled, bare)
    other = plan(models[0], reward, actions, discount=0.9, method=MPC(2), compare=False)
    assert first != Decision.of(other)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:weak instruments", "ignore:the instruments are")
def test_splines_with_other_knots_share_a_program():
    env = ivvi.make_env("nonlinear", dim=1)
    models = [
        ivvi.estimate(env.collect(episodes=10, horizon=50, seed=seed), "spline:4").model
        for seed in (1, 2)
    ]
    policies = [plan(model, env.reward, (-1, 1), method=MPC(2), compare=False) for model in models]
    assert Decision.of(policies[0]) == Decision.of(policies[1])
    x = np.linspace(-3, 3, 7)[:, None]
    compiled = policies[0](x)
    with jax.enable_x64(True), jax.disable_jit():
        bare = policies[1].rule.act(jnp.asarray(x), 0, policies[1].begin(7))[0]
    np.testing.assert_allclose(policies[1](x), bare, atol=1e-9)
    assert not np.allclose(compiled, bare, atol=1e-6)


# Newton, finite sets


def test_newton_finds_the_maxima_of_dense_grids():
    """Bent and kinked, with maxima inside and at the bounds, from four starts each."""
    x = np.linspace(-3, 3, 13)

    def value(u, x):
        xp = u.__array_namespace__()
        return xp.sin(2 * u[..., 0] + x) - 0.3 * (u[..., 1] - 0.2 * x) ** 2 * (1 + u[..., 0] ** 2)

    low, high = np.array([-1.0, -0.4]), np.array([1.5, 0.3])
    starts = np.random.default_rng(0).uniform(low, high, (4, 13, 1, 2))
    with jax.enable_x64(True):
        rows = jnp.asarray(starts.reshape(52, 1, 2))
        states = jnp.tile(jnp.asarray(x), 4)
        found, reached = maximise(lambda u: value(u[:, 0], states), rows, low, high)
        found, reached = np.asarray(found), np.asarray(reached).reshape(4, 13).max(axis=0)
    grid = np.stack(np.meshgrid(*map(np.linspace, low, high, [801, 401])), axis=-1)
    dense = np.array([value(grid, s).max() for s in x])
    assert ((found >= low) & (found <= high)).all()
    assert (reached >= dense - 1e-9).all()
    np.testing.assert_allclose(reached, dense, atol=1e-5)


def test_one_choice_ahead_is_the_best_of_all(linear_model):
    model = linear_model(2, 3, seed=2)
    actions = Actions.binary(3)
    policy = plan(
        model, "quadratic:weight=1", actions, horizon=2, method=MPC(lookahead=1), compare=False
    )
    for x in model.states[:8]:
        scores = []
        for a in actions.choices:
            after = model.mean(x, a)
            scores.append(-(x @ x) - after @ after)
        np.testing.assert_array_equal(policy(x), actions.choices[np.argmax(scores)])


def test_a_box_beside_a_choice_is_the_best_of_both(linear_model):
    model = linear_model(2, 2, seed=3)
    actions = Actions.product(Actions.binary(1), Actions.box(-1.0, 1.0))
    policy = plan(
        model, "quadratic:weight=1", actions, horizon=2, method=MPC(lookahead=1), compare=False
    )
    tried = np.array(list(itertools.product((0.0, 1.0), np.linspace(-1, 1, 2001))))
    found = policy(model.states)
    for x, a in zip(model.states, found, strict=True):
        after = model.mean(np.tile(x, (len(tried), 1)), tried)
        own = model.mean(x, a)
        assert own @ own <= np.sum(after**2, axis=1).min() + 1e-9
    assert set(found[:, 0]) == {0.0, 1.0}


def test_a_box_beside_choices_is_a_program_for_each(linear_model):
    """The best plan of three steps, its choices held, among programs with a box for each choice."""
    model = linear_model(2, 3, seed=3)
    actions = Actions.product(
        Actions.finite([[0.0], [1.0], [-1.0]]), Actions.box(-0.4, 0.4), Actions.binary(1)
    )
    reward = "quadratic:weight=1;2,target=1;0,action_weight=0.3;0.1;0.2"
    problem = Problem.of(model, reward, actions, horizon=4)
    x, plans, costs = model.states, [], []
    with jax.enable_x64(True):
        H, F, f = quadratic_form(problem, 3, 4, tuple(part[1] for part in value_tail(problem, 1)))
        for first, last in actions.choices:
            low, high = (np.array([first, side, last] * 3) for side in (-0.4, 0.4))
            u = BoxQP.of(H, low, high)(x @ F.T + f, jnp.zeros((len(x), 9)))
            plans.append(np.asarray(u)[:, :3])
            costs.append(np.asarray(jnp.sum((u @ H / 2 + x @ F.T + f) * u, axis=1)))
    best = np.argmin(costs, axis=0)
    policy = plan(model, reward, actions, horizon=4, method=MPC(lookahead=3), compare=False)
    wanted = np.array(plans)[best, np.arange(len(x))]
    np.testing.assert_allclose(policy(model.states), wanted, atol=1e-9)
    assert isinstance(policy.rule.numbers[0], BoxQP)
    assert len(set(best)) > 1


def scores_of(ahead, state, plans):
    """Value plans (m, L, d_a) from one state, (m,)."""
    many = jnp.broadcast_to(jnp.asarray(state), (len(plans), len(state)))
    return np.asarray(ahead(many, jnp.asarray(plans), 0))


@pytest.mark.thorough
def test_a_product_of_many_sets_is_searched_until_no_pair_of_changes_gains(linear_model):
    """Of {0, 1}^7, held for two steps; what is found is the best of all in most states."""
    model = linear_model(3, 7, seed=1)
    problem = Problem.of(model, "quadratic:weight=1", Actions.binary(7))
    choices, x = problem.actions.choices, problem.support[:20]
    held = np.repeat(choices[:, None], 2, axis=1)
    best = 0
    with jax.enable_x64(True):
        ahead = Lookahead(problem, 2)
        found = np.asarray(best_choice(ahead, jnp.asarray(x), 0))
        for state, a in zip(x, found, strict=True):
            scores = scores_of(ahead, state, held)
            changed = np.abs(choices - a).sum(axis=1)
            assert scores[changed == 0] >= scores[changed <= 2].max() - 1e-9
            best += bool(scores[changed == 0] >= scores.max() - 1e-9)
    assert best >= 16


def test_sequences_of_few_choices_are_all_listed(linear_model):
    """The first choice of the best of all 4^3 plans, with the value without bounds after them."""
    model = linear_model(2, 2, seed=6)
    problem = Problem.of(model, "quadratic:weight=1", Actions.binary(2))
    choices, x = problem.actions.choices, problem.support[:4]
    plans = np.array(list(itertools.product(choices, repeat=3)))
    with jax.enable_x64(True):
        ahead = Lookahead(problem, 3, value_tail(problem, 24))
        first = np.asarray(best_choice(ahead, jnp.asarray(x), 0))
        for state, a in zip(x, first, strict=True):
            scores = scores_of(ahead, state, plans)
            begun = (plans[:, 0] == a).all(axis=1)
            assert scores[begun].max() >= scores.max() - 1e-9


def test_nonlinear_plans_are_the_best_of_a_dense_grid(bent_model):
    policy = plan(
        bent_model, "quadratic:weight=1,target=0.3", (-1, 1), method=MPC(lookahead=1), compare=False
    )
    dense = np.linspace(-1, 1, 20_001)[:, None]
    for x in np.linspace(-1.9, 1.9, 7):
        after = bend(np.full_like(dense, x), dense)
        scores = -((after - 0.3) ** 2)
        assert policy([x])[0] == pytest.approx(dense[scores.argmax(), 0], abs=2e-4)


# policies


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:the plan loses")  # ending early pays, and mpc is short
@pytest.mark.parametrize(
    ("reward", "actions"),
    [
        ("quadratic:weight=1", (-1, 1)),
        (user_reward, (-1, 1)),
        (user_reward, Actions.binary(2)),
        (user_reward, Actions.product(Actions.binary(1), Actions.box(-1, 1))),
    ],
)
def test_policies_are_deterministic_and_survive_saving(linear_model, reward, actions, tmp_path):
    model = linear_model(seed=3)
    policy = plan(model, reward, actions, terminal=is_far, seed=5, method="mpc", compare=False)
    again = load_policy(policy.save(tmp_path / "policy"), trust=("helpers", __name__))
    x = model.states[:7]
    first = policy(x)
    assert first.shape == (7, 2)
    np.testing.assert_array_equal(policy(x), first)
    np.testing.assert_array_equal(again(x), first)
    np.testing.assert_allclose(policy(x[2]), first[2], atol=1e-6)
    assert again.problem.terminal.function is is_far


@pytest.mark.filterwarnings("ignore:the plan loses")
@pytest.mark.parametrize("end", [lambda x: x[..., 0] > 1, functools.partial(is_far)])
def test_an_end_that_cannot_be_imported_cannot_be_saved(linear_model, end, tmp_path):
    policy = plan(linear_model(), "quadratic", (-1, 1), terminal=end, method="mpc", compare=False)
    with pytest.raises(InputError, match="the policy cannot be saved"):
        policy.save(tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


@pytest.mark.parametrize(
    "x", [[1.0], [[1.0, 2.0, 3.0]], [[1.0, np.nan]], 3.0, "one", [["a", "b"]], [[1.0], [1.0, 2.0]]]
)
def test_states_of_the_wrong_shape_are_refused(linear_model, x):
    with pytest.raises(InputError, match="state"):
        plan(linear_model(), "quadratic", (-1, 1), method="mpc", compare=False)(x)


@pytest.mark.parametrize("step", [-1, 1.5, "0", None, 10**30])
def test_steps_that_are_none_are_refused(linear_model, step):
    policy = plan(linear_model(), "quadratic", (-1, 1), method="mpc", compare=False)
    with pytest.raises(InputError, match="the plan has the steps 0 to 99"):
        policy([1.0, 2.0], step)


def test_no_states_take_no_actions(linear_model):
    policy = plan(linear_model(), "quadratic", (-1, 1), method="mpc", compare=False)
    assert policy(np.zeros((0, 2))).shape == (0, 2)


def test_bad_settings_of_mpc_are_refused():
    with pytest.raises(InputError, match="lookahead is 0"):
        MPC(lookahead=0)
    with pytest.raises(InputError, match="starts is 0"):
        MPC(starts=0)
