"""Capture: a `Workload` is traced on fake tensors and becomes a `TaskGraph`.

`capture` applies the passes, `trace` runs the step, `recorder` writes operators down, `layers` knows which layer is running. Where
something is traced in another form than the program calls it, that form is an entry of one of these:

    functions          a function of torch in place of another: dropout, recurrent networks, attention and device questions on a GPU
    library_kernels    an operator as the kernels that it runs as: torch's composites, bitsandbytes' products
    fused_layers       an operator as its parts, within a layer that chooses it: attention and encoder layers in evaluation
    aten               facts about an operator that its schema lacks: kinds, operations, aliasing, layouts of outputs
    real_outputs       outputs of an operator that its shape function gets wrong: oneDNN's LSTM
    triton_launches    launches that reach no dispatcher, as operators
    known_masks        what a library asks of values, where they are known

and what a step has around it in a file each: `checkpoint` (regions that run again), `hooks`, `collectives`, `carried` and `unquantized`
(weights with statistics of their own), `random_state`, `python_state`, `update` with `update_recorder` (optimizers).
"""
