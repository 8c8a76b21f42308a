"""What a program that JAX traces looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def arguments_used(function: Callable[..., Any], *given: Any) -> tuple[int, ...]:
    """Return the places of the arguments (arrays or their shapes) on which the result depends.

    The traced program is followed back from its result: what is merely accepted is not used.
    """
    import jax

    program = jax.make_jaxpr(function)(*given).jaxpr
    needed = {id(v) for v in program.outvars}
    for equation in reversed(program.eqns):
        if any(id(v) in needed for v in equation.outvars):
            needed |= {id(v) for v in equation.invars}
    return tuple(i for i, variable in enumerate(program.invars) if id(variable) in needed)
