"""Fits a framework's constants on its own rows of a paper's tables.

    python -m membench.calibrate framework=caffe device=k40m

Reads what Layrub's paper measured of that framework itself (Table 5: seconds of 20 iterations; Table 6: runtime memory,
which it has of Caffe alone), and no row of any other system. Prints every residual, and writes
``conf/framework/<framework>.yaml``, the same bytes each time.

`rows` reads the paper's numbers, `times` and `memory` fit them, `subjects` says what is fitted for each framework.

    python -m membench.calibrate device=cuda

measures this machine's GPU instead (`gpu`) and writes ``conf/device/<gpu>.yaml``.
"""
