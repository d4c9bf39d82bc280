"""`edgespec tune` of edgespec-lab writes no settings that a draft with a process of its own excludes."""

from __future__ import annotations

from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import schema
from edgespec.shared.settings import parse
from edgespec_lab.tune import rewritten
from edgespec_lab.tune.advice import recommend
from tests.lab.test_tune import measured


def test_what_is_recommended_fits_a_file_with_a_process_of_its_own() -> None:
    text = '[local_draft]\nmode = "async-local"\ncpu = [3]\n[daemon]\ncpu = [0, 1, 2]\n'
    arms = {"colocated": 18.0, "draft": 16.0, "merge": 15.0}
    for found in (
        measured(lookup=28.0, **arms),
        measured(lookup=10.0, **arms),
        measured(lookup=10.0, **arms, self=5.0),
    ):
        advice = recommend(found, "auto:quantised", "async-local")
        made = rewritten(text, {one.key: one.value for one in advice if one.value != "self"})
        parse(made, schema(all_parts()), "made")
