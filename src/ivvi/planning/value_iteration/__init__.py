"""Value iteration, phase 2 of Algorithm 1: on grids, tables, categories, fitted values."""
