"""Each kind of result prints itself, and becomes values, a table and a picture."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import membench
from membench.advice.cluster import picture as cluster_picture
from membench.advice.cluster import text as cluster_text
from membench.advice.device import page
from membench.advice.device import text as advice_text
from membench.core.result import Output, Result, as_plain, print_answer
from membench.pictures import frontier, frontier_text, measurement, picture, prediction, timeline_text
from membench.pictures.frontier import Frontier, FrontierPoint
from membench.steps import measurement_text
from membench.steps.predicted import text as predicted_text

POINT = FrontierPoint("eager", None, 2**30, 0.1, True, None, None, 0.0)


def _step() -> tuple[nn.Module, Any, Any]:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        return module, nn.CrossEntropyLoss(), (torch.empty(16, 64), torch.empty(16, dtype=torch.int64))


def _measured() -> membench.StepMeasurement:
    step = membench.compile(*_step(), strategy="vdnn_all", backend="simulated", device="rtx3090")
    return step.measure()


RESULTS: dict[str, Callable[[], Result]] = {
    "prediction": lambda: membench.predict(*_step(), device="rtx3090", optimizer="AdamW"),
    "advice": lambda: membench.advise(
        *_step(), device="rtx3090", methods="joint", largest="none", levers=False, processes=1
    ),
    "measurement": _measured,
    "timeline": lambda: membench.timeline(_measured(), "two layers"),
    "frontier": lambda: Frontier("a network", POINT, (POINT,), 2**34),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_goes_anywhere(name: str) -> None:
    found = RESULTS[name]()
    text = str(found)
    assert len(text.splitlines()) > 1 and "object at" not in text and text[0] != "("
    assert json.loads(found.to_json()) == found.to_dict()
    frame = found.to_dataframe()
    assert len(frame) >= 1 and any(column.endswith(("_s", "_bytes")) for column in frame.columns)
    assert "<table>" in found._repr_html_() and text.splitlines()[0] in found.to_markdown()
    figure = found.figure()
    assert isinstance(figure, Figure) and figure.axes


PRESENTED_BY = {
    membench.Prediction: (predicted_text, prediction),
    membench.Advice: (advice_text, page),
    membench.ClusterAdvice: (cluster_text, cluster_picture),
    membench.StepMeasurement: (measurement_text, measurement),
    membench.ObservedStep: (timeline_text, picture),
    Frontier: (frontier_text, frontier),
}
"""The modules with each kind's text and picture."""


def test_each_kind_names_the_modules_that_present_it() -> None:
    assert set(Result.__subclasses__()) == set(PRESENTED_BY)
    for kind, (text, drawn) in PRESENTED_BY.items():
        assert (kind.text_module, kind.picture_module) == (text.__name__, drawn.__name__)
        assert all(callable(getattr(text, name)) for name in ("elements", "values", "rows"))
        assert callable(drawn.draw)


def test_a_prediction_has_its_step_in_words_and_numbers() -> None:
    found = RESULTS["prediction"]()
    assert str(found).startswith("Sequential, batch 16, adamw, predicted for rtx3090\n  fits                 yes")
    assert found.to_dict()["optimizer"] == "adamw"
    assert found.to_dataframe()["optimizer_state_bytes"].item() > 0


def test_values_are_those_of_json() -> None:
    values = as_plain({1: (float("inf"), torch.tensor(2.0).numpy().dtype, Output.CSV, None, True)})
    assert values == {"1": [None, "float32", "csv", None, True]}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Output.TEXT, "a text\n"),
        (Output.JSON, '[\n  {\n    "a": 1\n  }\n]\n'),
        (Output.CSV, "a\n1\n"),
        (Output.MARKDOWN, "a text\n"),
    ],
)
def test_an_answer_has_four_forms(output: Output, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_answer(output, ["a text"], rows=[{"a": 1}])
    assert capsys.readouterr().out == expected
