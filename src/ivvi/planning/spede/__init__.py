"""SPEDE: planning in spectral features of the Gaussian transition (Ren et al. 2022)."""
