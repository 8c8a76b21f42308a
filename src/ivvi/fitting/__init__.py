"""`estimate`: from a log to weights, their standard errors, diagnostics and a model.

One pass over the rows gives the moments, and with them W and everything that assumes
homoskedastic errors; a second pass gives the rest.
"""

from ivvi.fitting.fit import Fit
from ivvi.fitting.fit_and_diagnose import estimate
from ivvi.fitting.saved_fit import load_fit, load_moments

__all__ = ["Fit", "estimate", "load_fit", "load_moments"]
