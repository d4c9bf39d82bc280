"""Whether what README and the manual show works from the wheel: `python -m tools.check.wheel`.

The wheel is built and installed with `[worker]` and with `[gateway]` in two environments outside the checkout, with the
newest packages, the locked ones or the lowest that pyproject.toml allows. Then gateway and workers are started, paired
and stopped there, and every command that a page shows is run. A page's command that is neither run nor excused fails.
"""
