"""Growing a speculation tree: WANSpec's Algorithm 2, best first, ranking and calibration.

Public, by module:

- `algorithm2`: `Drafting`, `DraftRule`, `Proposal`
- `best_first`: `BestFirst`, `BestFirstRule`
- `calibration`: `Calibrator`
- `draft_curve`: `DraftCurve`
- `proposals`: `Asked`, `best_children`, `largest`, `Rank`, `TokenPath`
- `ranking`: `Ranker`, `Spread`
- `shares`: `Part`
- `settings`: `DEFAULTS`, `DraftSettings`, `MAX_REQUESTS`, `MAX_STEP_LEAVES`, `PREFILL_BATCH`
- `starts`: `Starts`
- `together`: `MAX_BATCH_S`, `Reading`, `shared`
- `translation`: `CommittedText`, `TranslatedDrafting`, `Translator`, `whole_characters`
- `tree`: `PRUNED`, `Node`, `SpeculationTree`
"""
