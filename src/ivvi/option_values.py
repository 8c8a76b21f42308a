"""The words that options and arguments take: one list of each, for checks, help and completion.

Nothing is imported here, so that the shell's help starts quickly.
"""

METHODS = (
    *("exact", "sgda", "least-squares", "liml", "fuller:1", "kclass:0.5", "gmm"),
    *("ujive", "ijive", "jive1", "ridge", "lasso", "adaptive-lasso", "shrunk"),
)
"""Methods of `ivvi.fit`; a number after a colon is an example of the word's setting.
`ivvi.estimators.registry` has the class of each."""
OTHER_NAMES = {
    **dict.fromkeys(("2sls", "tsls", "iv"), "exact"),
    "ols": "least-squares",
}
"""Further names of methods; results have the word of `METHODS`."""

FEATURES = (
    *("auto", "linear", "linear:cross", "poly2", "poly2:cross", "poly3"),
    *("spline:5", "spline:5:vary", "fourier:200"),
)
"""Features of `ivvi.fit`; numbers are examples."""
STANDARD_ERRORS = ("auto", "unadjusted", "robust", "clustered", "cr2", "wild", "hac", "bekker")
"""Standard errors of `ivvi.fit`."""
SET_ERRORS = ("auto", "unadjusted", "robust", "clustered", "hac")
"""Standard errors of a confidence set, for `ivvi.interval`."""
RESPONSE_ERRORS = ("auto", "robust", "clustered", "hac")
"""Standard errors that are valid where rows overlap, for `ivvi.respond`."""
LEARNERS = ("auto", "lasso", "forest")
"""Learners of controls, for `ivvi.fit`; ``module:object`` names another one."""
PLANNERS = ("auto", "mpc", "value-iteration", "spede")
"""Planners of `ivvi.plan`."""
DRAW_METHODS = ("auto", "bootstrap", "wild", "asymptotic")
"""How `ivvi.value` draws models for its intervals."""
RIVALS = ("behaviour", "zero", "least-squares", "lowest", "highest")
"""Names of policies with which `ivvi.value` compares."""


def listed(words: tuple[str, ...]) -> str:
    """Return the words in a row, as in ``"a, b or c"``."""
    return f"{', '.join(words[:-1])} or {words[-1]}"
