"""Commands that are run from the checkout: `python -m tools.NAME`. None of them is installed."""
