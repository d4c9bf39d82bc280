"""The live picture at `/ui`: who drafted each token, the trees of the passes, and the time axis of the links.

`view` turns what a request's machine was given and decided into JSON events, live and from a trace; `pages` keeps
those of each API key for its open pages and serves them and the files of `static`. The page draws events and nothing
else, so a played trace looks like the completion did.

Public, by module:

- `pages`: `Pages`
- `view`: `alone`, `played`
"""
