"""`python -m benchmarks.gpu_steps`; see `benchmarks.gpu_steps.run`, which processes of a pool import by its name."""

from benchmarks.gpu_steps.run import arguments, main

if __name__ == "__main__":
    main(arguments())
