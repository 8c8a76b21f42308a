"""`ivvi table`: fits side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ivvi.cli.options import Force, Json, TrustOption, completing, folder_names, trusted
from ivvi.cli.terminal import check_json_target, emit_json, say


def table(  # noqa: PLR0913
    models: Annotated[list[Path], typer.Argument(help="Folders of models that `ivvi fit` saved.")],
    format: Annotated[
        str,
        typer.Option(
            help="markdown, latex, html or csv.",
            autocompletion=completing("markdown", "latex", "html", "csv"),
        ),
    ] = "markdown",
    names: Annotated[
        str | None,
        typer.Option(help="Names of the models, comma-separated. [default: the folders']"),
    ] = None,
    output: Annotated[str, typer.Option(help="Outputs to show. [default: all]")] = "",
    feature: Annotated[str, typer.Option(help="Features to show. [default: all]")] = "",
    beside: Annotated[
        str, typer.Option(help="Columns beside each fit: least-squares, reduced-form.")
    ] = "",
    statistics: Annotated[
        str,
        typer.Option(
            help="Statistics below: n, episodes, clusters, f, j, endogeneity, r2, verdict, errors."
        ),
    ] = "n,episodes,f,j,errors",
    stars: Annotated[bool, typer.Option("--stars", help="Star coefficients by p-value.")] = False,
    digits: Annotated[int, typer.Option(help="Digits after the point.")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Write the table to this file. [default: print it]")
    ] = None,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Print models side by side, as a paper does."""
    from ivvi._io.files import atomic_file, checked_output
    from ivvi.fitting import load_fit
    from ivvi.fitting.regression_table.table import table as make_table

    if out is not None:
        checked_output(out, force=force)
    check_json_target(json, force=force, out=out)
    paths = [str(model) for model in models]
    named = names.split(",") if names is not None else folder_names(paths, ())
    fits_table = make_table(
        [load_fit(model, trust=trusted(trust)) for model in models],
        names=[name.strip() for name in named],
        outputs=output,
        features=feature,
        beside=beside,
        statistics=statistics,
        stars=stars,
        digits=digits,
    )
    text = fits_table.to(format)
    if out is None:
        say(text, quiet=json == "-")
    else:
        with atomic_file(out, force=force) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
        say(f"table: {out}", quiet=json == "-")
    emit_json(fits_table, json, force=force)
