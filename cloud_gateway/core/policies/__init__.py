"""Controllers: plain decoding, WANSpec's Algorithm 1 and the adaptive policy.

Public, by module:

- `alone`: `Plain`, `LocalChain`
- `estimators`: `UNKNOWN_STEP_S`, `Ewma`, `Latest`, `RttEstimator`, `StepClock`, `StepCurve`
- `guard`: `Reference`
- `policy`: all
- `registry`: all
- `settings`: `DEFAULTS`, `K`, `MAX_K`, `PHI`, `Phi`, `PolicySettings`, `Prefer`, `SOURCES`
- `tuning`: `TUNING`
- `wanspec`: `WanSpec`
"""
