"""The page of `membench app` without a browser: each choice is answered, and no older answer replaces a newer one."""

from typing import Any

import pytest

pytest.importorskip("panel", reason="pip install 'membench[app]': no panel")
from membench.cli import app_page
from membench.cli.app_page import View
from membench.core.errors import MembenchError


def _texts(view: View) -> str:
    panes = (pane for column in view.parts for pane in getattr(column, "objects", []))
    return "".join(str(getattr(pane, "object", "")) for pane in panes)


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> Any:
    view = View()
    for widget, value in ((view._place, "k40m"), (view._optimizer, "none"), (view._precision, "none")):
        with monkeypatch.context() as quiet:
            quiet.setattr(View, "_answer", lambda *_: None)
            widget.value = value
    view._batch_size.value, view._model.value = 32, "lenet"
    return view


def test_a_choice_is_answered(view: View) -> None:
    assert "membench predict model=lenet device=k40m batch_size=32" in _texts(view)
    assert "allocated" in _texts(view)
    assert view._state.object == ""


def test_methods_are_shown_with_what_to_write(view: View) -> None:
    view._more.value = "methods=pytorch,memonger"
    view.advise()
    assert "memonger" in _texts(view)
    assert "membench.compile(model" in _texts(view)
    source = view._frontier.objects[0].object.renderers[-1].data_source
    before = _texts(view)
    for place in range(len(source.data["name"])):
        source.selected.indices = [place]
    assert _texts(view) != before


def test_an_error_is_a_line(view: View) -> None:
    view._model.value = "lenett"
    assert "lenet" in view._state.object


def test_an_answer_to_an_older_question_is_not_shown(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(question: Any) -> Any:
        view._asked = None  # something else was asked meanwhile
        raise MembenchError("too late")

    monkeypatch.setattr(app_page, "predicted", late)
    view.predict()
    assert "too late" not in view._state.object


def test_a_field_that_is_emptied_is_asked_for(view: View) -> None:
    view._model.value = None
    assert view._state.object == "name a network, such as gpt2"


def test_a_cluster_is_searched(view: View) -> None:
    view._place.value = "rtx4090x8"
    assert "Find what fits" in view._state.object and "allocated" not in _texts(view)
    view._more.value = "parallel='{fsdp: 8}' checkpointing=none"
    view.advise()
    assert "membench advise model=lenet cluster=rtx4090x8 nodes=1" in _texts(view)
    assert view._state.object == ""
