"""The paper, reproduced, and studies of what the documentation claims.

``ivvi reproduce`` runs the paper's experiments. `specs` define them, `jobs` divide the work and do
it, `scheduler` distributes it over processes, and `records` store the results. `cell_statistics`,
`tables` and `figures` compare them with the paper's numbers, as `results`; `report_page` and
`docs_page` print these.

Each other module is one study, run with ``python -m ivvi_reproduction.NAME``:
`breakdown_points`, `cautious_planning`, `convergence_rate`, `error_exponents`,
`interval_coverage`, `loss_curves`, `many_instruments`, `misspecification`, `one_change`,
`panel_coverage`, `planning_error`, `rejection_rates`, `sequence_checks`, `value_coverage`,
`weak_instrument_coverage`, `world_coverage`. `study` holds their shared parts.
"""
