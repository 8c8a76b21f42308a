"""The causal graphs of docs/instrument.md: what wrote the log, and what a policy changes."""

from __future__ import annotations

from dataclasses import dataclass

from drawing import GREY, INK, arrow, card, disc, text

PLACES = {"z": (95, 75), "e": (365, 75), "x": (60, 190), "a": (230, 190), "y": (400, 190)}
OBSERVED = (("z", "a"), ("x", "a"), ("a", "y"), ("x", "y"), ("e", "a"), ("e", "y"))
EVALUATED = (("a", "y"), ("x", "y"), ("e", "y"))
WIDTH, HEIGHT = 460, 275


@dataclass(frozen=True)
class CausalGraph:
    """One application: its title, the symbol and the meaning of each variable."""

    title: str
    words: dict[str, str]


STORIES = {
    "paper": CausalGraph(
        "The paper's model",
        {"z": "instrument", "e": "unobserved", "x": "state", "a": "action", "y": "next state"},
    ),
    "nicu": CausalGraph(
        "Where a child is born",
        {
            "z": "extra travel time",
            "e": "what the doctor saw",
            "x": "health so far",
            "a": "high-level unit",
            "y": "health after",
        },
    ),
    "recommender": CausalGraph(
        "What a user watches",
        {
            "z": "recommendations",
            "e": "mood, fashion",
            "x": "taste",
            "a": "films watched",
            "y": "taste after",
        },
    ),
}
SYMBOLS = {"z": "z", "e": "e", "x": "x", "a": "a", "y": "x'"}


def draw_story(name: str, *, acting: bool) -> str:
    """Draw one graph: observation, or evaluation, where a policy cuts the arrows into a."""
    story = STORIES[name]
    doing = "a policy decides" if acting else "as the log was written"
    parts = [text(WIDTH / 2, 28, f"{story.title}: {doing}", size=15, bold=True)]
    for source, target in EVALUATED if acting else OBSERVED:
        bend = 95 if (source, target) == ("x", "y") else 0
        hidden = source == "e"
        parts.append(arrow(PLACES[source], PLACES[target], bend=bend, hidden=hidden))
    for key, (x, y) in PLACES.items():
        if acting and key == "z":
            continue
        parts.append(disc(x, y, SYMBOLS[key], hidden=key == "e"))
        label = f"do({story.words['a']})" if acting and key == "a" else story.words[key]
        above = key in "ze" or (acting and key == "a")
        parts.append(text(x, y - 29 if above else y + 38, label, size=12.5, colour=GREY))
    parts.append(_legend())
    return card(WIDTH, HEIGHT, parts, f"{story.title}, {doing}")


def _legend() -> str:
    label = "full: in the log; dashed: nobody recorded it"
    return text(WIDTH / 2, HEIGHT - 10, label, size=11, colour=INK)


def draw_graphs() -> dict[str, str]:
    """Return all graphs by file name."""
    return {
        f"graph-{name}-{'acting' if acting else 'observed'}.svg": draw_story(name, acting=acting)
        for name in STORIES
        for acting in (False, True)
    }
