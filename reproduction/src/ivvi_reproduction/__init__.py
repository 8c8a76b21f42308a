"""The paper, reproduced, and studies of what the documentation claims.

``ivvi reproduce`` runs the paper's experiments: `specs` say what, `jobs` divide the work and do
it, `scheduler` spreads it over processes, `records` keep it; `cell_statistics`, `tables` and
`figures` set it beside the paper's numbers as `results`; `report_page` and `docs_page` print them.

Each other module is one study, run with ``python -m ivvi_reproduction.NAME``:
`breakdown_points`, `cautious_planning`, `convergence_rate`, `error_exponents`,
`interval_coverage`, `loss_curves`, `many_instruments`, `misspecification`, `one_change`,
`panel_coverage`, `planning_error`, `rejection_rates`, `sequence_checks`, `value_coverage`,
`weak_instrument_coverage`, `world_coverage`. `study` holds what they share.
"""
