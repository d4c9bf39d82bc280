"""A request: what a client asks for, its bounds, and which worker drafts for it.

Public, by module:

- `accounting`: `Stats`, `Submission`
- `assignment`: `opening`
- `choices`: `Choices`, `CORE`
- `events`: all
- `generation`: `Bounds`, `Generation`, `MAX_RETRIES`
- `pace`: `PaceAlone`
- `request`: `added`, `DoneEvent`, `Event`, `Extension`, `GenerationRequest`, `RequestBounds`,
  `Speculation`, `TokensEvent`, `Usage`
- `router`: `choose`, `cost_s`, `LinkedWorker`, `Merit`, `Record`
"""
