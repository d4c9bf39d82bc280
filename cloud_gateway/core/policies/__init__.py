"""Controllers: WANSpec's Algorithm 1, the baselines and the adaptive policy.

Public, by module:

- `actions`: all
- `estimators`: `Latest`, `RttEstimator`, `StepClock`, `StepCurve`
- `memory`: `kind_of`, `Learnt`, `Memory`
- `registry`: all
- `settings`: `DEFAULTS`, `K`, `MAX_K`, `NAMES`, `PHI`, `PolicyName`, `PolicySettings`, `Prefer`,
  `SourceName`, `SOURCES`
"""
