"""Controllers: WANSpec's Algorithm 1, the baselines and the adaptive policy.

Public, by module:

- `baselines`: `Plain`
- `estimators`: `UNKNOWN_STEP_S`, `Ewma`, `Latest`, `RttEstimator`, `StepClock`, `StepCurve`
- `policy`: all
- `registry`: all
- `settings`: `DEFAULTS`, `K`, `MAX_K`, `PHI`, `Phi`, `PolicySettings`, `Prefer`, `SOURCES`
"""
