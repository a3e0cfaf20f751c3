import re

from membench.suite.provenance import provenance


def test_says_where_a_record_comes_from() -> None:
    made = provenance()
    assert made["commit"] is None or re.fullmatch("[0-9a-f]{40}", made["commit"])
    assert isinstance(made["clean"], bool)
    assert {"python", "torch", "torchvision"} <= made["versions"].keys()
    assert made["time"].endswith("+00:00")
