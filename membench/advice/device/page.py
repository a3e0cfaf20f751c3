"""An advice as one self-contained HTML page: the table, the frontier, memory and streams over the step."""

from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from membench.advice.device.advice import Advice, AdvisedPlan
from membench.advice.device.text import (
    cells,
    code,
    further,
    lever_cells,
    needs,
    plain_facts,
    searched_facts,
    step_words,
    trust,
)
from membench.core.document import Table
from membench.core.units import format_bytes
from membench.pictures import frontier, picture
from membench.pictures.frontier import Frontier, FrontierPoint
from membench.pictures.observed_step import timeline
from membench.steps.simulated_step import SimulatedStep

LAYERS = 12
"""How many layers' activations are listed."""


def page(advice: Advice, figures: Mapping[str, Figure]) -> str:
    """Return the page.

    Args:
        figures: by their captions.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("membench.advice"), PackageLoader("membench.pictures")]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    header, *rows = Table(tuple(cells(advice.plans))).shown or [()]
    return environment.get_template("advice.html").render(
        title=", ".join(step_words(advice)),
        fits=advice.fits,
        facts=[*plain_facts(advice), *searched_facts(advice)],
        layers=[(name, format_bytes(size)) for name, size in list(advice.activations_bytes.items())[:LAYERS]],
        header=header,
        rows=rows,
        is_exact=all(plan.is_exact for plan in advice.plans),
        needs=list(needs(advice)),
        levers=lever_cells(advice.levers),
        further=list(further(advice)),
        best=advice.best and advice.best.name,
        code="\n".join(code(advice, advice.best)) if advice.best else "",
        trust=trust(advice),
        pictures=[(caption, _address(figure)) for caption, figure in figures.items()],
    )


def draw(advice: Advice) -> Figure:
    """Return the peak memory and the step time of plain PyTorch and of each method that fits."""
    return frontier.draw(_frontier(advice))


def pictures(advice: Advice, plan: AdvisedPlan, step: SimulatedStep) -> dict[str, Figure]:
    """Return the frontier, and the memory and the streams of one of the plans, by their captions.

    Args:
        step: the plan's simulated step.
    """
    observed = timeline(step.measure(), f"{_name(plan)}, simulated", capacity_bytes=advice.capacity_bytes)
    return {
        "Peak memory and step time of plain PyTorch and of each method that fits": draw(advice),
        f"Memory and streams over one step of {_name(plan)}": picture.draw(observed),
    }


def _frontier(advice: Advice) -> Frontier:
    plain = FrontierPoint(
        "plain PyTorch", None, advice.allocated_bytes, advice.step_time_s, advice.fits, None, None, 0.0
    )
    others = [_point(plan) for plan in advice.plans if not plan.is_idle]
    largest = max([plain, *others], key=lambda point: point.peak_bytes)
    return Frontier(
        ", ".join(step_words(advice)), eager=largest, points=(plain, *others), capacity_bytes=advice.capacity_bytes
    )


def _point(plan: AdvisedPlan) -> FrontierPoint:
    return FrontierPoint(_name(plan), plan.budget_bytes, plan.peak_bytes, plan.step_time_s, True, None, plan.gap, 0.0)


def _name(plan: AdvisedPlan) -> str:
    return plan.name if plan.micro_batch is None else f"{plan.name} in micro-batches"


def _address(figure: Figure) -> str:
    """Return a picture as the address of an image that contains it."""
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{b64encode(drawn.getvalue()).decode()}"
