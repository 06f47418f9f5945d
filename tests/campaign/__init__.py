"""A campaign against kills, faults and hostile input. `make campaign` runs it; pytest does not collect it.

A case is drawn from (seed, kind, number), so one case can be repeated alone: `--only KIND:NUMBER`.
"""
