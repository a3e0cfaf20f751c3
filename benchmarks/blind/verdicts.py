"""Compare the predictions of a blind test with the papers' values, which were entered after them.

    python -m benchmarks.blind.verdicts

Reads results/blind/PAPER.csv and benchmarks/blind/PAPER_values.csv, writes results/blind/verdicts.csv and prints a
summary.
"""

from itertools import combinations

import pandas as pd

from benchmarks.blind.predict import DESCRIBED, PAPERS, RESULTS
from membench.core.tables import write_csv

CLOSE = 0.10
"""A prediction that deviates by no more counts as reproduced, as in the five papers' tables."""
COLUMNS = [
    "paper",
    "row_id",
    "table",
    "network",
    "method",
    "quantity",
    "predicted",
    "value",
    "deviation_percent",
    "verdict",
]


def main() -> None:
    judged = pd.concat([judged_rows(paper) for paper in PAPERS])
    write_csv(judged.astype(object).fillna(""), RESULTS / "verdicts.csv")
    print(summary(judged).to_string(index=False))


def judged_rows(paper: str) -> pd.DataFrame:
    """Return a paper's rows with its values, and the verdict on each prediction."""
    predicted = pd.read_csv(RESULTS / f"{paper}.csv")
    values = pd.read_csv(DESCRIBED / f"{paper}_values.csv")
    rows = predicted.merge(values, on="row_id", validate="one_to_one").assign(paper=paper)
    deviation = rows["predicted"] / rows["value"] - 1
    rows["deviation_percent"] = (100 * deviation).round(1)
    rows["verdict"] = deviation.abs().le(CLOSE).map({True: "reproduced", False: "deviates"})
    rows.loc[rows["predicted"].isna(), "verdict"] = "not run"
    return rows[COLUMNS]


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return counts, medians and the order of methods, by paper and table."""
    return pd.DataFrame(
        [
            {
                "paper": paper,
                "table": table,
                "predicted": len(run := group.dropna(subset="predicted")),
                "reproduced": (run["verdict"] == "reproduced").sum(),
                "median %": round(run["deviation_percent"].abs().median(), 1),
                "90th %": round(run["deviation_percent"].abs().quantile(0.9), 1),
                "order": "{} of {}".format(*ordered(run)),
            }
            for (paper, table), group in rows.groupby(["paper", "table"])
        ]
    )


def ordered(rows: pd.DataFrame) -> tuple[int, int]:
    """Return how many pairs of methods on one network are predicted in the paper's order, and how many it orders."""
    found = []
    for _, group in rows.groupby(["network", "quantity"]):
        for (_, one), (_, other) in combinations(group.iterrows(), 2):
            if one["value"] != other["value"]:
                found.append((one["value"] < other["value"]) is bool(one["predicted"] < other["predicted"]))
    return sum(found), len(found)


if __name__ == "__main__":
    main()
