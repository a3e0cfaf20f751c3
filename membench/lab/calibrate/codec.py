"""The rate of EPMC's serial baseline, fitted on that baseline's rows alone.

The paper states the ratio of a training step's time with and without cuSPARSE's conversions between the layers. Their
time is inversely proportional to the rate, so one least-squares step over the relative errors of these rows gives it.
"""

from membench.core.configuration import ROOT
from membench.core.record import Configuration
from membench.lab.papers.judging.standing import texts
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.experiment import Paper, PaperCell, Row
from membench.lab.papers.reading.loader import load_paper
from membench.sweep.cells.run import run_cell

_SERIAL, _BASELINE = "CSR-cuSPARSE in series", "Pytorch"


def fit_codec() -> str:
    """Return the fitted rate, a fraction of the peak memory bandwidth, and a line with the residual of each row."""
    paper = load_paper(ROOT / "experiments" / "epmc")
    ratios = {row.model: row.value for row in _fitted_rows(paper) if row.value is not None}
    shares = _shares_at_full_rate(paper, list(ratios))
    rate = fit_rate([(shares[model], ratio) for model, ratio in ratios.items()])
    lines = [f"codec: {rate:.4g}  # of the peak memory bandwidth"]
    for model, ratio in ratios.items():
        fitted = 1 + shares[model] / rate
        lines.append(f"{model:10s} paper {ratio:.2f}  fitted {fitted:.2f}  error {fitted / ratio - 1:+.1%}")
    return "\n".join(lines)


def fit_rate(rows: list[tuple[float, float]]) -> float:
    """Return the rate r that makes 1 + share / r closest to each row's ratio, by relative errors.

    Args:
        rows: (time of all conversions at rate 1 over the step's time without them, the ratio of times with and
            without).
    """
    factors = [(share / ratio, 1 - 1 / ratio) for share, ratio in rows]
    return sum(a * a for a, _ in factors) / sum(a * b for a, b in factors)


def _fitted_rows(paper: Paper) -> list[Row]:
    rows = [row for experiment in paper.experiments for row, _ in experiment.rows]
    return [row for row in rows if row.metric == "ETR" and texts(paper.fitted, row)]


def _shares_at_full_rate(paper: Paper, models: list[str]) -> dict[str, float]:
    shares = {}
    for model in models:
        batch_size = paper.models[model]["batch_sizes"]["normal"]
        cells = [PaperCell(model, system, paper.device, batch_size) for system in (_SERIAL, _BASELINE)]
        serial, baseline = compose_cells(paper, cells).values()
        conversions_s = run_cell(_at_full_rate(serial)).metrics["codec_time_s"]
        shares[model] = conversions_s / run_cell(baseline).metrics["step_time_s"]
    return shares


def _at_full_rate(configuration: Configuration) -> Configuration:
    """Let conversions move bytes at the peak memory bandwidth, and launch in no time."""
    framework = configuration["framework"]
    efficiency = framework["efficiency"] | {"codec": 1.0, "launch_s": 0.0}
    return configuration | {"framework": framework | {"efficiency": efficiency}}
