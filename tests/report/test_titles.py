from __future__ import annotations

from qurate.report.published import scenario_title, scenario_titles


def test_scenarios_are_shortened_where_that_is_clear() -> None:
    assert scenario_title("webcam:amazon") == "W to A"
    assert scenario_title("typeset to handwritten") == "typeset to handwritten"
    assert scenario_titles(["a:b", "a:c"]) == {"a:b": "A to B", "a:c": "A to C"}
    assert scenario_titles(["camera:cloud"]) == {"camera:cloud": "camera to cloud"}
    assert scenario_titles(["left:"]) == {"left:": "left:"}
