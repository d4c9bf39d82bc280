"""Controllers: WANSpec's Algorithm 1, the baselines and the adaptive policy.

Public, by module:

- `actions`: all
- `estimators`: `Ewma`, `RttEstimator`, `StepClock`, `StepCurve`
- `memory`: `Memory`, `temperature_class`
- `registry`: all
- `settings`: `DEFAULTS`, `K`, `MAX_K`, `NAMES`, `PHI`, `PolicyName`, `PolicySettings`, `Prefer`,
  `SourceName`
"""
