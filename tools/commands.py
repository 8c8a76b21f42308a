"""docs/commands.md: every command and option, as the program itself describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main

from ivvi.cli.main import app
from ivvi.cli.reproduce import reproduction_app

HEAD = """\
# Commands

Generated from the program by `python tools/pages.py`. `ivvi VERB --help` prints the same.
Installation, exit codes, colours, completion and caches are [at the end](#for-all-commands).
"""
TAIL = Path(__file__).parents[1] / "docs" / "templates" / "commands.md"


def command_reference() -> str:
    """Return the page."""
    group: Any = typer.main.get_command(app)
    lines = [HEAD, "| command | what it does |", "|---|---|"]
    for name, command in group.commands.items():
        lines.append(f"| [`ivvi {name}`](#ivvi-{name}) | {_first(command.help)} |")
    lines += ["", "Before the verb: " + _root_options(group), ""]
    commands = group.commands | {"reproduce": typer.main.get_command(reproduction_app())}
    for name, command in commands.items():
        lines += _section(name, command)
    return "\n".join([*lines, TAIL.read_text()]).rstrip() + "\n"


def _section(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    wanted = [_usage(p) for p in (*arguments, *(p for p in options if p.required))]
    lines = [f"## ivvi {name}", "", *_paragraphs(command.help), ""]
    lines += ["```text", " ".join(["ivvi", name, *wanted, "[OPTIONS]"]), "```", ""]
    lines += ["| argument or option | meaning | default |", "|---|---|---|"]
    lines += [_row(p) for p in (*arguments, *options)]
    return [*lines, ""]


def _usage(parameter: Any) -> str:
    word = parameter.name.upper().replace("_", "-")
    if parameter.param_type_name == "option":
        return f"{parameter.opts[0]} {word}"
    word += "..." if parameter.nargs == -1 else ""
    return word if parameter.required else f"[{word}]"


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    name = (
        _usage(parameter).strip("[]")
        if is_argument
        else ", ".join((*parameter.opts, *parameter.secondary_opts))
    )
    text = (parameter.help or "").replace("|", "\\|").replace("*", "\\*")
    meaning, _, default = text.partition(" [default: ")
    return f"| `{name}` | {meaning} | {default.rstrip(']') or _default(parameter)} |"


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if callable(value) or value is None or value == "" or value is False:
        return ""
    return "on" if value is True else f"`{value}`"


def _root_options(group: Any) -> str:
    known = [p for p in group.params if p.param_type_name == "option"]
    return ", ".join(f"`{p.opts[0]}` ({(p.help or '').rstrip('.').lower()})" for p in known) + "."


def _first(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


def _paragraphs(text: str | None) -> list[str]:
    return [line.strip() for line in (text or "").strip().splitlines()]
