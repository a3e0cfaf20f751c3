"""Capture: a `Workload` is traced on fake tensors and becomes a `TaskGraph`.

`capture` applies the passes, `trace` runs the step, `recorder` writes operators down, `layers` knows which layer is
running. Where something is traced in another form than the program calls it, that form is an entry of a file of
`operators`:

    functions          a function of torch in place of another: dropout, recurrent networks, attention on a GPU
    library_kernels    an operator as the kernels that it runs as: torch's composites, bitsandbytes' products
    fused_layers       an operator as its parts, within a layer that chooses it, in evaluation
    aten               facts about an operator that its schema lacks: kinds, operations, aliasing, layouts of outputs
    real_outputs       outputs of an operator that its shape function gets wrong: oneDNN's LSTM
    triton_launches    launches that reach no dispatcher, as operators

What a step has around its operators is in `module` (checkpoints, hooks, refusals), `update` (optimizers) and `values`
(masks, numbers). Whether a step still is what was captured: `state`, and `recorded` (another recording).
"""
