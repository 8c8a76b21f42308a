"""All that the estimators need from the data (A, B, C, D and more), in one pass.

Every row gives one vector v = [phi(x, a), what psi(x, z) adds, y]; the moments are the
count, the mean and the scatter of v. They add over any split of the rows (Chan, Golub
and LeVeque's update), so shards, files and machines merge with ``+``, and the centred
form keeps its digits when a column's mean is large relative to its spread. The paper's
uncentred matrices (eq. 3.4) are blocks of E[v v^T]:

    A = E[psi phi^T]   B = E[psi psi^T]   C = E[y psi^T]   D = E[phi phi^T]
"""

from ivvi.moments.accumulate import compute_moments, few_threads
from ivvi.moments.compression import compress, is_constant, remembered
from ivvi.moments.fixed_effects import Absorbed
from ivvi.moments.group_sums import GroupSums, GroupTally, group_codes
from ivvi.moments.moments import EpisodeMoments, Moments, merge_episodes

__all__ = [
    "Absorbed",
    "EpisodeMoments",
    "GroupSums",
    "GroupTally",
    "Moments",
    "compress",
    "compute_moments",
    "few_threads",
    "group_codes",
    "is_constant",
    "merge_episodes",
    "remembered",
]
