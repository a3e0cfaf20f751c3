"""Records of trainings made up for the tests."""

from membench.core.record import Outcome, Record, Source

CONFIGURATION = {
    "model": {"name": "digits_cnn"},
    "data": {"_target_": "membench.data.digits.digits"},
    "strategy": {"_target_": "membench.strategies.eager.Eager"},
    "recipe": {"batch_size": 64, "learning_rate": 0.05, "seed": 0},
}
PROVENANCE = {"device": "cpu", "versions": {"torch": "2"}, "commit": "0123456789abcdef", "clean": True}


def run(test_accuracy: list[float], seed: int = 0) -> Record:
    epochs = len(test_accuracy)
    samples = {
        "loss": tuple(1 / (1 + epoch) for epoch in range(epochs)),
        "training_accuracy": (0.5,) * epochs,
        "test_accuracy": tuple(test_accuracy),
        "time_s": (2.0,) * epochs,
    }
    metrics = {name: values[-1] for name, values in samples.items()}
    recipe = CONFIGURATION["recipe"] | {"seed": seed}
    configuration = CONFIGURATION | {"recipe": recipe}
    return Record(
        configuration,
        f"hash {seed}",
        Source.MEASURED,
        Outcome.OK,
        metrics=metrics,
        samples=samples,
        provenance=PROVENANCE,
    )
