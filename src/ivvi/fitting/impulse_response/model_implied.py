"""The response to an action that fitted linear dynamics imply: powers of W.

With outputs y = M x + N a + const + noise and the next state x' = S y + R [x, a] (predicted
columns, and those that are carried along), a unit of one action at step t moves

    dx_1 = S N u + R_a u,   dx_j+1 = (S M + R_x) dx_j + (S N + R_a) da_j,   dy_h = M dx_h + N da_h.

Later actions are held (da_j = 0), or follow the log's own reaction to the state, da_j = G dx_j with
G the regression of actions on states. All of it is a polynomial of W and G; its derivatives come
from the adjoint recursion, and with them the influence of each row of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.dynamics.state_update import StateUpdate
from ivvi.estimators import Estimate
from ivvi.estimators.whitening import whiten
from ivvi.features.design import Design
from ivvi.logs import Batch, Roles
from ivvi.moments import Moments


@dataclass(frozen=True, slots=True, repr=False)
class Reaction(Compact):
    """The regression of actions on a constant and states: G, and what moves it.

    Attributes
    ----------
    G
        Slopes, (d_a, d_x).
    constant
        (d_a,).
    mean, inverse
        Mean of the state (d_x,), and the inverse of its scatter (d_x, d_x).
    """

    G: Floats
    constant: Floats
    mean: Floats
    inverse: Floats

    @classmethod
    def of(cls, moments: Moments, d_x: int, d_a: int) -> Reaction:
        """Regress on the states of linear features [1, x, a]."""
        x, a = slice(1, 1 + d_x), slice(1 + d_x, 1 + d_x + d_a)
        inverse: Floats = np.linalg.pinv(moments.scatter[x, x], hermitian=True).astype(np.float64)
        G = moments.scatter[a, x] @ inverse
        return cls(G, moments.mean[a] - G @ moments.mean[x], moments.mean[x], inverse)

    def influence(self, batch: Batch, gradient: Floats) -> Floats:
        """Return how far each row moves gradient . G, (H, n), for gradients (H, d_a, d_x)."""
        left = batch.a - batch.x @ self.G.T - self.constant
        pull = (batch.x - self.mean) @ self.inverse
        moved: Floats = np.einsum("na,hax,nx->hn", left, gradient, pull, optimize=True)
        return moved


@dataclass(frozen=True, slots=True, repr=False)
class ImpliedResponse(Compact):
    """Responses at horizons 0, ..., H - 1, and their derivatives.

    Attributes
    ----------
    value
        (H,).
    by_W, by_G
        Derivatives, (H, d_y, d_phi) and (H, d_a, d_x).
    estimate, moments
        What W was estimated from.
    reaction
        None where later actions are held.
    """

    value: Floats
    by_W: Floats
    by_G: Floats
    estimate: Estimate
    moments: Moments
    reaction: Reaction | None

    @classmethod
    def of(
        cls,
        estimate: Estimate,
        moments: Moments,
        roles: Roles,
        push: tuple[int, int],
        horizon: int,
        *,
        held: bool,
    ) -> ImpliedResponse:
        """Compute the response of an output to an action, `push` = (output, action)."""
        d_x, d_a = len(roles.state), len(roles.action)
        reaction = None if held else Reaction.of(moments, d_x, d_a)
        G = np.zeros((d_a, d_x)) if reaction is None else reaction.G
        system = _System.of(estimate.W, roles, G)
        parts = [system.response(*push, h) for h in range(horizon)]
        value, by_W, by_G = (np.array(part) for part in zip(*parts, strict=True))
        return cls(value, by_W, by_G, estimate, moments, reaction)

    def influence(self, batch: Batch) -> Floats:
        """Return how far each row of the log moves each response, (H, n)."""
        space, weight = whiten(self.moments), self.moments.weight
        v = whole_rows(self.moments.design, batch)
        residual = v @ self.estimate.residual_map.T
        white = (v - space.shift) @ space.to_white
        pull = self.by_W @ self.estimate.influence  # (H, d_y, r)
        moved: Floats = np.einsum("ny,hyr,nr->hn", residual, pull, white, optimize=True) / weight
        if self.reaction is not None:
            moved += self.reaction.influence(batch, self.by_G)
        return moved if batch.weight is None else moved * batch.weight


@dataclass(frozen=True, slots=True, repr=False)
class _System(Compact):
    """The linear dynamics: outputs from [x, a], states from outputs, actions from states."""

    M: Floats
    N: Floats
    S: Floats
    of_x: Floats
    of_a: Floats
    G: Floats

    @classmethod
    def of(cls, W: Floats, roles: Roles, G: Floats) -> _System:
        """Cut W of the features [1, x, a] into its parts."""
        d_x, d_a = len(roles.state), len(roles.action)
        update = StateUpdate.of(roles.state, roles.action, dict(roles.carried), np.zeros((1, d_x)))
        n = update.predicted
        nothing = np.zeros(n), np.zeros((n, d_x)), np.zeros((n, d_a))
        _, of_x, of_a = update.affine(*nothing)
        S = np.zeros((d_x, len(W)))
        S[:n, :n] = np.eye(n)
        return cls(W[:, 1 : 1 + d_x], W[:, 1 + d_x :], S, of_x, of_a, G)

    def response(self, output: int, action: int, h: int) -> tuple[float, Floats, Floats]:
        """Return the response h steps on, and its derivatives by W and by G."""
        on = self.S @ self.M + self.of_x + (self.S @ self.N + self.of_a) @ self.G
        into = self.S @ self.N + self.of_a
        d_x, d_a = len(on), self.N.shape[1]
        u = np.eye(d_a)[action]
        states = [np.zeros(d_x), into @ u]
        while len(states) <= h:
            states.append(on @ states[-1])
        actions = [u, *(self.G @ x for x in states[1:])]
        value = float(self.M[output] @ states[h] + self.N[output] @ actions[h])
        by_W = np.zeros((len(self.M), 1 + d_x + d_a))
        by_G = np.zeros_like(self.G)
        by_W[output, 1:] = np.concatenate([states[h], actions[h]])
        by_G += np.outer(self.N[output], states[h])
        adjoint = self.M[output] + self.N[output] @ self.G
        for j in range(h - 1, -1, -1):
            row = np.concatenate([states[j], actions[j]])
            by_W[:, 1:] += np.outer(self.S.T @ adjoint, row)
            by_G += np.outer(into.T @ adjoint, states[j])
            adjoint = on.T @ adjoint
        return value, by_W, by_G


def whole_rows(design: Design, batch: Batch) -> Floats:
    """Evaluate v with its constants for each transition, (n, p)."""
    v = np.ones((len(batch), design.width))
    v[:, design.varying] = design.rows(batch)
    return v


def why_not_closed(roles: Roles) -> str:
    """Return why a model of these columns implies no later response, or '' if it does."""
    if roles.terminal:
        return "episodes end, so the model's responses at later steps are not powers of W"
    if roles.next_state and len(roles.next_state) != len(roles.predicted):
        return (
            f"{len(roles.next_state)} next-state columns do not give the next value of all "
            f"{len(roles.predicted)} states, so W has no powers"
        )
    return ""
