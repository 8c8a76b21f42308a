"""The paper's experiments, and studies of what the documentation claims.

``ivvi reproduce`` runs the paper's: `specs` say what, `units` and `lanes` divide the work, `work`
does it, `records` keep it, `measures`, `tables` and `plots` set it beside the paper's numbers as
`results`. The modules that are run with ``python -m`` (`breakdown`, `caution`, `checks`,
`coverage`, `losses`, `rates`, `search`, `size`, `strength`, `value_coverage`) are studies, each
with what they share in `study`; `page` writes docs/reproduction.md.
"""
