"""Controllers: WANSpec's Algorithm 1, the baselines and the adaptive policy.

Public, by module:

- `actions`: all
- `estimators`: `UNKNOWN_STEP_S`, `Ewma`, `Latest`, `RttEstimator`, `StepClock`, `StepCurve`
- `colocated`: `Plain`
- `memory`: `kind_of`, `Learnt`, `Memory`
- `policy`: `Policy`
- `registry`: all
- `settings`: `DEFAULTS`, `K`, `MAX_K`, `PHI`, `Phi`, `PolicySettings`, `Prefer`, `SOURCES`, `SourceName`
"""
