"""Growing a speculation tree: WANSpec's Algorithm 2, best first, ranking and calibration.

Public, by module:

- `algorithm2`: `Drafting`, `DraftRule`, `Proposal`
- `best_first`: `BestFirst`, `BestFirstRule`, `MakeDrafting`, `MakeRanker`, `rank_by_target`, `Starts`
- `calibration`: `Calibrator`
- `ranking`: `Asked`, `best_children`, `largest`, `Rank`, `Ranker`, `Spread`, `TokenPath`, `Tokens`
- `settings`: `DEFAULTS`, `DraftSettings`, `MAX_REQUESTS`, `MAX_STEP_LEAVES`, `PREFILL_BATCH`
- `together`: `DraftCurve`, `MAX_BATCH_S`, `Reading`, `shared`
- `tree`: `Node`, `BranchShare`, `SpeculationTree`
"""
