"""The page of `membench app`: what is asked, and the answers as they come."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import panel as pn
import panel_material_ui as pmui

from membench.cli.app_pictures import frontier, memory
from membench.cli.app_question import NONE, Question, advised, predicted
from membench.core import configuration
from membench.core.document import Code, Element, Table, as_html
from membench.core.errors import MembenchError
from membench.core.files import complaint
from membench.core.graph.precision import Precision

if TYPE_CHECKING:
    from membench.advice.device.advice import Advice, AdvisedPlan

_STYLES = [
    """
    :host { overflow-x: auto; }
    table { border-collapse: collapse; font-size: 14px; }
    th, td { text-align: left; vertical-align: top; padding: 2px 12px 2px 0; font-weight: normal; }
    th { opacity: .75; white-space: nowrap; }
    td { overflow-wrap: anywhere; }
    thead ~ tbody td { white-space: nowrap; }
    pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; margin: 4px 0; }
    """
]


def page() -> pmui.Page:
    """Return the page of one reader."""
    pn.config.nthreads = 2  # an answer takes seconds, in which the page stays responsive
    view = View()
    pn.state.onload(view.predict)
    return pmui.Page(title="membench", main=[pmui.Container(*view.parts, width_option="lg")])


class View:
    """The choices of one reader, and what is shown of their answers."""

    def __init__(self) -> None:
        places = [*configuration.names("device"), *configuration.names("cluster")]
        width = {"width": 280, "margin": (8, 8)}
        self._model = pmui.AutocompleteInput(
            label="Network, or config.json", value="gpt2",
            options=configuration.names("model"), restrict=False, case_sensitive=False, min_characters=1, **width,
        )  # fmt: skip
        self._place = pmui.Select(label="Card or cluster", value="rtx3060", options=places, searchable=True, **width)
        self._nodes = pmui.IntInput(label="Hosts of the cluster", value=1, start=1, **width)
        self._batch_size = pmui.IntInput(label="Samples of a step", value=10, start=1, **width)
        self._precision = pmui.Select(
            label="Precision", value=str(Precision.AMP_BF16), options=[NONE, *map(str, Precision)], **width
        )
        self._optimizer = pmui.Select(
            label="Optimizer", value="adamw", options=[NONE, *configuration.names("optimizer")], **width
        )
        self._checkpointing = pmui.Switch(label="Checkpointing", value=False, margin=(20, 8))
        self._more = pmui.TextInput(label="More options", value="", **width)
        self._chosen = [
            self._model, self._place, self._nodes, self._batch_size, self._precision, self._optimizer,
            self._checkpointing, self._more,
        ]  # fmt: skip
        for widget in self._chosen:
            widget.param.watch(self.predict, "value")
        self._start = pmui.Button(label="Find what fits", on_click=self.advise, margin=(8, 8))
        self._state = pmui.Typography("", margin=(8, 8))
        parts = [pn.Column(sizing_mode="stretch_width") for _ in range(5)]
        self._memory, self._facts, self._frontier, self._methods, self._use = parts
        self._asked: Question | None = None

    @property
    def parts(self) -> Sequence[Any]:
        """What the page consists of, in its order."""
        return (
            pn.FlexBox(*self._chosen), pn.Row(self._start, self._state),
            self._memory, self._facts, self._frontier, self._methods, self._use,
        )  # fmt: skip

    def predict(self, *_: object) -> None:
        """Show the memory and the time of the step that is chosen."""
        question = self._question()
        for shown in (self._frontier, self._methods, self._use):
            shown.clear()
        if question.is_of_cluster:
            for shown in (self._memory, self._facts):
                shown.clear()
            self._state.object = "Find what fits searches for the fastest way to divide the step over the cluster."
            return
        found = self._answer(question, lambda: predicted(question))
        if found is not None:
            self._show(self._memory, pn.pane.Bokeh(memory(found.prediction), sizing_mode="stretch_width"))
            self._show(self._facts, _html([*found.elements, "", Code((question.command(),), is_shell=True)]))

    def advise(self, *_: object) -> None:
        """Show the methods that fit as they are found, and their frontier."""
        question = self._question()
        known: list[Advice] = []
        plans: list[AdvisedPlan] = []

        def show(plan: "AdvisedPlan") -> None:
            plans.append(plan)
            if question == self._asked:
                self._show_plans(question, known[-1], plans)

        found = self._answer(question, lambda: advised(question, known.append, show))
        if found is None:
            return
        if question.is_of_cluster:
            from membench.advice.cluster.text import elements

            self._show(self._methods, _html(list(elements(found))))
            self._show(self._use, _html([Code((question.command(),), is_shell=True)]))
            return
        known.append(found)
        self._show_plans(question, found, found.plans)
        if found.shown:
            self._show_use(question, found, found.shown)

    def _question(self) -> Question:
        self._asked = Question(
            self._model.value or "",  # None while something else is typed in place of what was there
            self._place.value, self._nodes.value, self._batch_size.value, self._precision.value,
            self._optimizer.value, self._checkpointing.value, self._more.value,
        )  # fmt: skip
        return self._asked

    def _answer(self, question: Question, ask: Callable[[], Any]) -> Any:
        """Return the answer; None: it is an error, which is shown, or something else is asked by now."""
        self._state.object = "..."
        try:
            found = ask()
        except (MembenchError, OSError, ValueError) as error:
            found = None
            problem = complaint(error)
        if question != self._asked:
            return None
        self._state.object = problem if found is None else ""
        return found

    def _show_plans(self, question: Question, advice: "Advice", plans: "Sequence[AdvisedPlan]") -> None:
        from membench.advice.advise import ranked
        from membench.advice.device.text import cells

        ordered = ranked(plans)
        picture = frontier(advice, ordered, lambda plan: self._show_use(question, advice, plan))
        self._show(self._frontier, pn.pane.Bokeh(picture, sizing_mode="stretch_width"))
        self._show(self._methods, _html(["Methods that fit, the fastest first:", Table(tuple(cells(ordered)))]))

    def _show_use(self, question: Question, advice: "Advice", plan: "AdvisedPlan") -> None:
        from membench.advice.device.text import code

        command = Code((question.command(plan.name),), is_shell=True)
        title = f"{plan.name}, in a program and as a command:"
        self._show(self._use, _html([title, Code(tuple(code(advice, plan))), command]))

    @staticmethod
    def _show(place: pn.Column, shown: Any) -> None:
        place[:] = [shown]


def _html(elements: Sequence[Element]) -> pn.pane.HTML:
    return pn.pane.HTML(as_html(elements), stylesheets=_STYLES, sizing_mode="stretch_width")
