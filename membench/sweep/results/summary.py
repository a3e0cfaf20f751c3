"""A record as text for a terminal."""

from collections.abc import Iterator, Mapping

from membench.core.configuration import method_of
from membench.core.document import Element, Facts
from membench.core.record import AT_PEAK, Configuration, Outcome, Record, framework_name, is_simulated, limits_of
from membench.core.units import format_bytes, format_seconds, parse_bytes


def summary(record: Record, *more: tuple[str, str]) -> list[Element]:
    """Return a cell's configuration and result as they are printed.

    Args:
        more: further names and values.
    """
    notes = [f"  {record.note}"] if record.note else []
    if record.outcome is not Outcome.OK:
        notes.append(f"  {record.outcome.words}: {record.reason}")
    return [title(record.configuration), *notes, Facts((*_values(record), *more))]


def title(configuration: Configuration) -> str:
    """Return a cell's model, batch, method, limits and place in a line."""
    model, batch_size = configuration["model"]["name"], configuration["batch_size"]
    method, limits = method_of(configuration), limits_of(configuration)
    return ", ".join([model, f"batch {batch_size}", method, *limits, place(configuration)])


def place(configuration: Configuration) -> str:
    """Return where a cell runs, or is simulated to."""
    if is_simulated(configuration):
        machine = configuration.get("machine")
        inside = f" in machine {machine['name']}" if machine else ""
        return f"simulated on {_devices(configuration)}{inside} under {framework_name(configuration)}"
    return f"measured on this machine's {'CPU' if configuration['backend']['name'] == 'cpu' else 'GPU'}"


def _devices(configuration: Configuration) -> str:
    name, cluster = configuration["device"]["name"], configuration["cluster"]
    devices = cluster.get("hosts", 1) * cluster.get("devices_per_host", 1)
    return name if devices == 1 else f"{devices} x {name}"


def _values(record: Record) -> Iterator[tuple[str, str]]:
    metrics = record.metrics
    if (budget := record.configuration.get("budget")) is not None:
        yield "budget", _exact(parse_bytes(budget))
    if "required_memory_bytes" in metrics:
        capacity = f" of {format_bytes(metrics['capacity_bytes'])}" if "capacity_bytes" in metrics else ""
        yield "peak memory", _exact(metrics["required_memory_bytes"]) + capacity
        if parts := _parts(metrics):
            yield "made up of", parts
    if "used_bytes" in metrics:
        besides_bytes = metrics["used_bytes"] - metrics["reserved_bytes"]
        yield "reserved", f"{_exact(metrics['reserved_bytes'])}, by PyTorch's caching allocator"
        yield "used", f"{_exact(metrics['used_bytes'])}, {format_bytes(besides_bytes)} of it besides the step"
    if not is_simulated(record.configuration) and "peak_memory_bytes" in metrics:
        yield "measured peak", _exact(metrics["peak_memory_bytes"])
    if "density" in record.configuration["strategy"] and "planned_density" in metrics:
        source = "measured" if record.configuration["strategy"]["density"] == "measured" else "given"
        yield "planned density", f"{metrics['planned_density']:.3f}, {source}"
    if metrics.get("rounding"):
        yield "rounding", f"stored values differ by up to {metrics['rounding']:.2%}, and gradients with them"
    if "step_time_s" in metrics:
        yield "step time", format_seconds(metrics["step_time_s"])
        yield "throughput", f"{metrics['images_per_s']:,.1f} samples/s"
    if "lower_bound_s" in record.layer_metrics:
        bound_s, gap = (record.layer_metrics[name] for name in ("lower_bound_s", "gap"))
        yield "lower bound", f"{format_seconds(bound_s)}; the step takes {gap:.1%} more"
    if metrics.get("processes", 1) > 1:
        what = "gradients" if "fsdp" not in record.configuration.get("parallel", {}) else "weights and gradients"
        exchange = f"{what} exchanged in {format_seconds(metrics['exchange_time_s'])}"
        yield "processes", f"{metrics['processes']}; {exchange}"
    if metrics.get("transferred_bytes"):
        exposed = metrics["exposed_transfer_s"]
        copied_out, back = metrics["offloaded_bytes"], metrics["prefetched_bytes"]
        copies = f"{format_bytes(copied_out)} to the host, {format_bytes(back)} back"
        yield "transferred", f"{copies}; {format_seconds(exposed)} of it not hidden behind computation"


def _exact(size_bytes: float) -> str:
    """Return a size for a person and in bytes, from which the unit follows."""
    return f"{format_bytes(size_bytes)} ({size_bytes:,.0f} bytes)"


def _parts(metrics: Mapping[str, float]) -> str:
    """Return what a planned peak consists of, the largest part first; together the parts are the peak."""
    parts = {
        name.removesuffix(AT_PEAK).replace("_", " "): size for name, size in metrics.items() if name.endswith(AT_PEAK)
    }
    return " + ".join(
        f"{format_bytes(parts[name])} of {name}" for name in sorted(parts, key=parts.__getitem__, reverse=True)
    )
