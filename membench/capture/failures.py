"""Causes and remedies of failures that torch reports in words of its own, on tensors without data."""

VALUE_READ = (
    "Python reads the value of a tensor, which differs from step to step",
    "leave it a tensor: torch.where in place of if, the tensor in place of its item(); membench.predict takes the values of a "
    "batch with data",
)
"""Cause and remedy of the refusal of a number that leaves the device."""

_GRADIENTS_WITHIN = (
    "it takes gradients within itself in a way that asks for a GPU, and this machine has none",
    "take them by torch.autograd.grad in place of torch.func, or predict on a machine with a GPU",
)
_NO_GPU = (
    "it asks for a GPU, as a CUDA stream or an operator without a shape function does, and this machine has none",
    "register a fake implementation of the operator (torch.library), or leave it out, or predict on a machine with a GPU",
)

_CAUSES = {
    "hasPrimaryContext": _GRADIENTS_WITHIN,
    "opt_ready_stream": _GRADIENTS_WITHIN,
    "NVIDIA driver": _NO_GPU,
    "No CUDA GPUs": _NO_GPU,
    "not compiled with CUDA": _NO_GPU,
    "dummy base class": _NO_GPU,  # of a CUDA event or stream
    "CUDA error: CUDA driver": _NO_GPU,
    "data is not allocated yet": (  # of a tensor among numbers, torch.tensor([0.5, mean]), or in a kernel's own C++
        f"{VALUE_READ[0]}, or a kernel that is not an operator of torch reads it",
        f"{VALUE_READ[1]}; register the kernel: torch.library.custom_op, with register_fake and register_autograd",
    ),
    "shape_env must not be None": (
        "it makes a nested tensor, whose sizes depend on data",
        "pack the sequences: torch.nn.attention.varlen, with their limits as a tensor, or pad them",
    ),
}
"""By a part of torch's message."""


def cause_without_data(message: str) -> tuple[str, str] | None:
    """Return the cause and the remedy of a failure; None if the message is not known."""
    return next((each for part, each in _CAUSES.items() if part in message), None)
