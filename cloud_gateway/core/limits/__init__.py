"""Fair turns, quotas and admission of connections: who is served next, and how much.

Public, by module:

- `admission`: `Admission`, `AdmissionLimits`, `Refused`, `share_descriptors`
- `conduct`: `Conduct`
- `probation`: `Probation`
- `quota`: `KeyLimits`, `Quotas`, `Visit`
- `settings`: `ClientBounds`, `LinkBounds`
- `turns`: `Turns`
"""
