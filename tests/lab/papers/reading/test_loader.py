"""Reading experiment files; errors name the place."""

from pathlib import Path

import pytest

from membench.core.errors import MembenchError
from membench.core.units import MIB
from membench.lab.papers.pages.results import needed_cells
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.experiment import TrainedQuantity
from membench.lab.papers.reading.loader import load_paper

HEAD = "item,model,dataset,batch_size,device,system,metric,unit,value,oom,note,claim_id"
VOCABULARY = """
title: A paper
device: card
models: {net: {configuration: lenet, dataset: data}}
systems: {ours: {strategy: eager, framework: caffe}}
devices: {card: k40m}
sets: {nets: [net]}
"""


def _write(directory: Path, experiment: str) -> Path:
    (directory / "paper.yaml").write_text(VOCABULARY)
    (directory / "reference.csv").write_text(
        f"{HEAD}\nTable 1,net,data,,card,ours,memory,MB,3.5,false,,\nTable 1,net,data,8,card,ours,time,s,,true,,\n"
    )
    (directory / "table1.yaml").write_text("title: One\n" + experiment)
    return directory


def test_loads_rows_answers_and_shown_rows(tmp_path: Path) -> None:
    text = """
answers:
  - {where: {metric: memory}, value: {metric: peak_memory_bytes, mean: {model: nets}}, better: higher}
  - {where: {metric: [time, "speed*"]}, not_run: nobody tried}
shows:
  - {item: Figure 1, metric: memory, unit: MB, models: nets, systems: [ours], value: {metric: map_memory_bytes}}
"""
    experiment = load_paper(_write(tmp_path, text)).experiments[0]
    (memory, answer), (time, missing), (shown, _) = experiment.rows
    assert (memory.value, memory.batch_size, memory.oom, memory.line) == (3.5, None, False, 2)
    assert answer.higher_is_better
    assert answer.value is not None
    assert answer.value.over == {"model": ("net",)}
    assert (time.value, time.batch_size, time.oom, time.line) == (None, 8, True, 3)
    assert missing.not_run == "nobody tried"
    assert (shown.item, shown.dataset, shown.device, shown.line) == ("Figure 1", "data", "card", None)


def test_shown_rows_may_run_over_budgets_or_layers(tmp_path: Path) -> None:
    text = """
answers: [{where: {}, input: given}]
shows:
  - &time
    {item: Figure 1, metric: time, unit: s, models: nets, systems: [ours], budgets: [6 GB, 3 GB],
     value: {metric: time_s}}
  - {item: Figure 1, metric: maps, unit: MB, models: nets, systems: [ours], layers: [fc], value: {metric: map_bytes}}
"""
    shown = load_paper(_write(tmp_path, text)).experiments[0].rows[2:]
    assert [row.metric for row, _ in shown] == ["time:6 GB", "time:3 GB", "maps:fc"]
    values = [answer.value for _, answer in shown if answer.value]
    assert [(value.metric, dict(value.cell)) for value in values] == [
        ("time_s", {"budget": "6 GB"}),
        ("time_s", {"budget": "3 GB"}),
        ("map_bytes:fc", {}),
    ]


def test_reads_trainings_and_rows_that_they_answer_or_show(tmp_path: Path) -> None:
    text = """
answers:
  - where: {}
    trained: {training: fast, metric: epochs_to_accuracy, ratio_to: slow}
    direction_only: smaller
shows:
  - {item: Figure 1, metric: epochs_to_accuracy, unit: epochs, trainings: [fast, slow]}
  - {item: Figure 1, metric: accuracy, unit: "%", trainings: [fast], budgets: [6 GB, 3 GB]}
"""
    (tmp_path / "trainings.yaml").write_text(
        "common: {model: net, data: digits, batch_size: 4}\ntrainings: {fast: {batch_size: 8}, slow: {}}\n"
    )
    paper = load_paper(_write(tmp_path, text))
    assert paper.trainings["fast"] == {"model": "net", "data": "digits", "batch_size": 8}
    *_, (fast, answer), (slow, _), (_, large), (_, small) = paper.experiments[0].rows
    assert (fast.system, fast.model, fast.dataset, fast.batch_size, slow.batch_size) == ("fast", "net", "digits", 8, 4)
    assert answer.trained == TrainedQuantity("fast", "epochs_to_accuracy")
    assert [large.trained, small.trained] == [TrainedQuantity("fast", f"accuracy:{size}") for size in ("6 GB", "3 GB")]
    assert paper.experiments[0].rows[0][1].direction_only == "smaller"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("Table 1,net", "Table 1,not", "name a model 'not'; there are: net"),
        ("card,ours", "card,theirs", "name a system 'theirs'; there are: ours"),
        (",card,", ",cord,", "name a device 'cord'; there are: card"),
    ],
)
def test_a_name_that_the_vocabulary_does_not_have_is_refused(
    before: str, after: str, expected: str, tmp_path: Path
) -> None:
    _write(tmp_path, "answers: [{where: {}, value: {metric: step_time_s}}]")
    reference = tmp_path / "reference.csv"
    reference.write_text(reference.read_text().replace(before, after))
    paper = load_paper(tmp_path)
    with pytest.raises(MembenchError, match=expected):
        compose_cells(paper, needed_cells(paper))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("[{where: {metric: memory}, input: given}]", r"line 3 .*time\) is answered 0 times"),
        ("[{where: {}, input: given}, {where: {metric: time}, input: given}]", "line 3 .* 2 times, not once: table1"),
        ("[{where: {colour: red}, input: given}]", "rows have no column colour"),
        ("[{where: {}, value: {metric: m, ratio: {systm: ours}}}]", "a cell has no systm; it has metric, model, "),
        ("[{where: {}, value: {metric: m, mean: {model: nots}}}]", "there is no 'nots'"),
        ("[{where: {}, input: given, colour: red}]", "unexpected keyword argument 'colour'"),
        ("[{where: {}}]", "exactly one of value, trained, input and not_run"),
        ("[{where: {}, value: {metric: m, ratio: {}, percent: {}}}]", "at most one form"),
        ("[{where: {}, value: {metric: m, rato: {}}}]", "is not a quantity"),
    ],
)
def test_refuses_what_does_not_add_up(answers: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(MembenchError, match=expected):
        load_paper(_write(tmp_path, f"answers: {answers}\n"))


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("paper.yaml", "title: [", "paper.yaml is not valid YAML: while parsing"),
        ("paper.yaml", "", "paper.yaml has no options"),
        ("paper.yaml", "title: A paper", "does not read as a paper's experiments: there is no 'sets'"),
        ("remarks.yaml", "causes: 3", "does not read as a paper's experiments"),
        (
            "remarks.yaml",
            "reasons: []",
            "remarks.yaml has reasons; it may have contradictions, inconsistencies, causes",
        ),
        ("reference.csv", HEAD + "\nTable 1,net,data,few,card,ours,memory,MB,3,false,,\n", "line 2 of .* 'few'"),
        ("reference.csv", HEAD + "\nTable 1,net\n", "line 2 of reference.csv does not read"),
    ],
)
def test_refuses_a_broken_file_by_its_name(file: str, text: str, expected: str, tmp_path: Path) -> None:
    directory = _write(tmp_path, "answers: [{where: {}, input: given}]")
    (directory / file).write_text(text)
    with pytest.raises(MembenchError, match=expected):
        load_paper(directory)


def test_a_metric_may_be_of_the_layer_named_in_the_note_of_a_row(tmp_path: Path) -> None:
    experiment = 'answers:\n  - {where: {item: Table 1}, value: {metric: "memory:{note}"}}\n'
    directory = _write(tmp_path, experiment)
    rows = (directory / "reference.csv").read_text().replace("false,,", "false,layer 7; as printed,")
    (directory / "reference.csv").write_text(rows)
    [first, second] = load_paper(directory).experiments[0].rows
    assert first[1].value is not None and first[1].value.metric == "memory:layer 7"
    assert second[1].value is not None and second[1].value.metric == "memory:"


def test_units_are_the_general_ones_and_the_papers_own(tmp_path: Path) -> None:
    directory = _write(tmp_path, "answers: [{where: {}, input: given}]")
    (directory / "paper.yaml").write_text(VOCABULARY + "units: {parts: 1, km: 1.0e+3}\n")
    paper = load_paper(directory)
    assert (paper.units["km"], paper.units["MB"]) == (1000, MIB)


def test_columns_that_are_not_read_are_allowed(tmp_path: Path) -> None:
    directory = _write(tmp_path, "answers: [{where: {}, input: given}]")
    lines = (directory / "reference.csv").read_text().splitlines()
    wider = [f"paper,{lines[0]},figure", *(f"net,{line}," for line in lines[1:])]
    (directory / "reference.csv").write_text("\n".join(wider) + "\n")
    assert len(load_paper(directory).experiments[0].rows) == 2


CHOICES = """
choices: [{name: a unit, where: {metric: memory}, text: chosen}]
alternatives:
  a unit:
    - name: another one
      source: Section 2
      vocabulary: {models: {net: {batch_sizes: {normal: 8}}}, sets: {nets: [net, net]}}
      metrics: {peak_memory_bytes: map_memory_bytes}
      rows: {metric: memory}
      cells: [{where: {framework: caffe, system: "our*"}, set: {framework: {context_bytes: 7, group_bytes: null}}}]
    - {name: by hand, answers: [{where: {metric: memory}, value: {metric: weight_bytes, ratio: {metric: x}}}]}
    - {name: unknown, not_run: there is no such code}
"""


def test_a_paper_is_read_under_an_alternative_to_a_choice(tmp_path: Path) -> None:
    text = "answers: [{where: {}, value: {metric: peak_memory_bytes, mean: {model: nets}}}]"
    (tmp_path / "choices.yaml").write_text(CHOICES)
    paper = load_paper(_write(tmp_path, text))
    merged, by_hand, unknown = paper.alternatives
    assert [(each.choice, each.name) for each in paper.alternatives] == [
        ("a unit", "another one"), ("a unit", "by hand"), ("a unit", "unknown"),
    ]  # fmt: skip
    assert unknown.not_run
    under = load_paper(tmp_path, merged)
    (_, memory), (_, time) = under.experiments[0].rows
    assert memory.value is not None and time.value is not None
    assert (memory.value.metric, time.value.metric) == ("map_memory_bytes", "peak_memory_bytes")
    assert memory.value.over == {"model": ("net", "net")}
    assert under.models["net"] == {"configuration": "lenet", "dataset": "data", "batch_sizes": {"normal": 8}}
    (_, memory), _ = load_paper(tmp_path, by_hand).experiments[0].rows
    assert memory.value is not None
    assert (memory.value.metric, memory.value.reference) == ("weight_bytes", {"metric": "x"})


def test_an_alternative_changes_the_configurations_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "choices.yaml").write_text(CHOICES)
    paper = load_paper(_write(tmp_path, "answers: [{where: {}, value: {metric: peak_memory_bytes}}]"))
    under = load_paper(tmp_path, paper.alternatives[0])
    [before, _] = compose_cells(paper, needed_cells(paper)).values()
    [after, _] = compose_cells(under, needed_cells(under)).values()
    assert "group_bytes" in before["framework"] and "group_bytes" not in after["framework"]
    assert after["framework"]["context_bytes"] == 7
    assert {**after, "framework": before["framework"]} == before
