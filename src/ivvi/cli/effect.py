"""`ivvi effect`: the effect of an action along a state, and for whom it helps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ivvi.cli.options import Force, Json, Seed, TrustOption, trusted
from ivvi.cli.terminal import check_json_target, emit_json, say
from ivvi.errors import InputError


def effect(  # noqa: PLR0913
    model: Annotated[Path, typer.Argument(help="Folder that `ivvi fit` wrote.")],
    action: Annotated[str, typer.Option(help="The action whose effect is shown.")],
    *,
    over: Annotated[
        str | None,
        typer.Option(help="State along which the effect may change. [default: the first]"),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Output. [default: the reward, or the next value of --over]")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Values of other states, age=60,ward=ICU. [default: medians]")
    ] = None,
    between: Annotated[
        str | None, typer.Option(help="Two values of the action to compare, such as 0,1.")
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the bands.")] = 0.95,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the effect into this file (svg, png or pdf).")
    ] = None,
    seed: Seed = 0,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Show how the effect of an action changes with a state, with bands, and for whom it helps."""
    from ivvi._io.plotting import check_figure
    from ivvi.fitting import load_fit
    from ivvi.fitting.effects.effect import effect as find_effect

    check_json_target(json, force=force)
    check_figure(plot, force=force)
    result = find_effect(
        load_fit(model, trust=trusted(trust)),
        action,
        over,
        output=output,
        at=_values(at),
        between=_pair(between),
        level=level,
        seed=seed,
    )
    say(result.summary(), quiet=json == "-")
    if plot is not None:
        result.plot(plot, force=force)
        say(f"figure: {plot}", quiet=json == "-")
    emit_json(result, json, force=force)


def _values(text: str | None) -> dict[str, str]:
    """Return the values of ``age=60,ward=ICU`` by name."""
    values: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        if not (name.strip() and value.strip()):
            raise InputError(
                f"--at {text!r} has no value in {part!r}; expected the form age=60,ward=ICU"
            )
        values[name.strip()] = value.strip()
    return values


def _pair(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--between is {text!r}; expected two numbers, as in 0,1") from None
    return low, high
